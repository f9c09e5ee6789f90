"""Temporary homes for tests of the embedded server, and processes that use its server and are killed."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from holdfast import settings as settings_module
from holdfast.engine import embedded
from holdfast.engine.embedded import supervisor
from holdfast.engine.embedded.home import EmbeddedHome
from holdfast.settings import Secret, Settings

T = TypeVar("T")

USER_PROCESS_CODE = """
import sys
from holdfast import settings
from holdfast.engine import embedded
server = embedded.start_server(settings.load_settings({"home": sys.argv[1]}))
print(server.url.reveal(), flush=True)
sys.stdin.read()
"""


def wait_until(condition: Callable[[], T | None], seconds: float = 20.0) -> T:
    """Return the result of `condition` once it is true. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.05)
    return result


@dataclass
class EmbeddedTestHome:
    """One home and the processes that use its server."""

    settings: Settings
    children: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    @property
    def home(self) -> EmbeddedHome:
        return EmbeddedHome(self.settings)

    @property
    def folder(self) -> Path:
        return self.home.folder

    def find_postmaster_pid(self) -> int | None:
        home = self.home
        if not home.data_folder.exists():
            return None
        return supervisor.find_postmaster_pid(
            str(home.data_folder), home.cluster_name, home.data_folder.stat().st_uid
        )

    def list_process_ids(self) -> list[int]:
        """Return the process ids of everything that runs for this home, except the tests."""
        home = self.home
        mine = {os.getpid(), *(child.pid for child in self.children)}
        marks = (str(home.top), home.cluster_name)
        return [
            pid
            for pid, _, words in supervisor.iterate_processes()
            if pid not in mine and any(mark in word for mark in marks for word in words)
        ]

    def has_no_processes(self) -> bool:
        return not self.list_process_ids()

    def start_user(self) -> subprocess.Popen[str]:
        """Start a process that uses the server until its input ends, or until it is killed."""
        child = subprocess.Popen(
            [sys.executable, "-c", USER_PROCESS_CODE, str(self.settings.home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        return child

    def start_ready_user(self) -> tuple[subprocess.Popen[str], Secret]:
        child = self.start_user()
        return child, read_printed_url(child)

    def end_users(self) -> None:
        for child in self.children:
            child.kill()
            child.communicate()
        self.children.clear()


def read_printed_url(user: subprocess.Popen[str]) -> Secret:
    assert user.stdout is not None
    line = user.stdout.readline().strip()
    if not line:
        raise AssertionError(user.communicate()[1])
    return Secret(line)


def end_user_process(user: subprocess.Popen[str]) -> None:
    """End a user process by closing its input."""
    user.communicate()
    assert user.returncode == 0


def query(url: Secret, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url.reveal(), autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def accepts_connections(url: Secret) -> bool:
    try:
        return query(url, "select 1") == [(1,)]
    except psycopg.OperationalError:
        return False


def kill_processes(*pids: int | None) -> None:
    for pid in pids:
        assert pid is not None
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@contextmanager
def temporary_home(
    name: str = "home", *, create: bool = False, alone: bool = False
) -> Generator[EmbeddedTestHome]:
    """Yield a home that the server's account can reach, and delete it at the end.

    With `create`, it has a cluster with a table `seven`. With `alone`, the server must end by itself.
    """
    top = create_reachable_folder()
    here = EmbeddedTestHome(settings_module.load_settings({"home": str(top / name)}))
    if create:
        subprocess.run(["cp", "-a", copy_source_home(), here.settings.home], check=True)
    try:
        yield here
        here.end_users()
        if not alone and here.folder.exists():
            embedded.stop_server(here.settings)
        wait_until(here.has_no_processes)
    finally:
        here.end_users()
        kill_processes(*here.list_process_ids())
        shutil.rmtree(top)


@cache
def copy_source_home() -> Path:
    """Create a home once; tests that need an existing cluster copy it."""
    top = create_reachable_folder()
    atexit.register(shutil.rmtree, top)
    settings = settings_module.load_settings({"home": str(top / "home")})
    with embedded.start_server(settings) as server:
        query(server.url, "create table seven as select 7 as id")
        embedded.stop_server(settings)
    (settings.home / "postgres" / "port").unlink()
    return settings.home


def create_reachable_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-embedded-"))
    folder.chmod(0o711)
    return folder
