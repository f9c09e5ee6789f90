"""PgBouncer in front of the test server, for tests that must work through a pooler."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from outside_programs import find_program

from holdfast.settings import Secret


def find_pgbouncer() -> str:
    return find_program("pgbouncer")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def pooler(url: Secret, mode: str, size: int = 12) -> Generator[Secret]:
    """Yield the URL of the same database through a pooler that is small enough to share connections."""
    there = urlsplit(url.reveal())
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pooler-"))
    config = folder / "pgbouncer.ini"
    login = f"user={there.username} password={there.password or ''}"
    config.write_text(
        f"[databases]\n* = host={there.hostname} port={there.port} {login}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = {mode}\ndefault_pool_size = {size}\nauth_file = {folder}/users\n"
        f"logfile = {folder}/log\n"
    )
    (folder / "users").touch()
    become = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
    if become:
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, "nobody")
    server = subprocess.Popen([find_pgbouncer(), str(config)], stderr=subprocess.DEVNULL, **become)  # type: ignore[call-overload]
    yield Secret(urlunsplit(there._replace(netloc=f"{there.username}:any@127.0.0.1:{port}")))
    server.terminate()
    server.wait(20)
    shutil.rmtree(folder)
