"""Start PgBouncer between workers and the server, in session or transaction mode."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from campaign.servers import choose_free_port
from holdfast.settings import Secret

FIND_PGBOUNCER_SCRIPT = Path(__file__).parents[1] / "scripts" / "pgbouncer.sh"
PGBOUNCER_CONFIG = """[databases]
* = host={host} port={to} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
auth_file = {folder}/users
logfile = {folder}/log
pool_mode = {mode}
max_client_conn = 2000
default_pool_size = {size}
"""


@contextmanager
def start_pooler(url: Secret, folder: Path, mode: str, size: int) -> Generator[Secret]:
    """Start PgBouncer with `size` server connections, and yield the URL of the database through it."""
    address, port = urlsplit(url.reveal()), choose_free_port()
    folder.mkdir()
    config = PGBOUNCER_CONFIG.format(
        host=address.hostname, to=address.port, user=address.username, password=address.password or "",
        port=port, folder=folder, mode=mode, size=size,
    )  # fmt: skip
    (folder / "config").write_text(config, encoding="utf-8")
    (folder / "users").touch()
    (folder / "log").touch()
    account_options: dict[str, object] = {}
    if os.geteuid() == 0:  # PgBouncer refuses to run as root
        account_options = {"user": "nobody", "extra_groups": []}
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, "nobody")
    program = subprocess.run(
        [FIND_PGBOUNCER_SCRIPT], check=True, capture_output=True, text=True
    ).stdout.strip()
    pooler = subprocess.Popen([program, str(folder / "config")], stderr=subprocess.DEVNULL, **account_options)  # type: ignore[call-overload]
    try:
        yield Secret(urlunsplit(address._replace(netloc=f"{address.username}:any@127.0.0.1:{port}")))
    finally:
        pooler.terminate()
        pooler.wait(20)
