"""Start and stop the embedded PostgreSQL server, for development and small installations.

`start_server` makes the calling process a *user* of the one server of a home folder, and starts the server if
it is not running. The server runs until its last user has called `release` or died. supervisor.py explains
how this works for every way a process can die; docs/decisions/0003-embedded-postgresql.md explains why.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from holdfast import telemetry
from holdfast.engine.embedded import binaries, login_probe
from holdfast.engine.embedded.account import check_home_owner
from holdfast.engine.embedded.cluster import suggest_fix
from holdfast.engine.embedded.home import EmbeddedHome
from holdfast.engine.embedded.launch import (
    STOP_TIMEOUT_S,
    find_running_server_url,
    launch_server,
    stop_server_processes,
)
from holdfast.errors import EmbeddedDatabaseError, RefusedError
from holdfast.settings import Secret, Settings, redact_url

__all__ = [
    "EmbeddedServer",
    "find_psql",
    "find_running_server",
    "locate_database",
    "reset_server",
    "start_permanent_server",
    "start_server",
    "stop_server",
]


@dataclass
class EmbeddedServer:
    """A running embedded server. The open lock file `user_lock_fd` makes this process one of its users."""

    url: Secret
    home: EmbeddedHome = field(repr=False)
    user_lock_fd: int | None = field(repr=False)

    @property
    def is_permanent(self) -> bool:
        """Whether the server keeps running after its last user is gone."""
        return self.home.keep.exists()

    @property
    def version(self) -> str:
        """The version of the running PostgreSQL server."""
        return login_probe.get_server_version(self.url)

    def release(self) -> None:
        """Stop being a user of the server. The death of the process has the same effect."""
        user_lock_fd, self.user_lock_fd = self.user_lock_fd, None
        if user_lock_fd is not None:
            # Closed and not unlocked: a forked child may share the lock and still use the server.
            os.close(user_lock_fd)

    def keep_running_for(self, duration: timedelta) -> None:
        """Keep the server running for `duration` from now, even without users."""
        until = time.time() + duration.total_seconds()
        self.home.linger.unlink(missing_ok=True)  # root may own the file, although we own the folder
        self.home.linger.touch()
        os.utime(self.home.linger, (until, until))

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def locate_database(settings: Settings) -> tuple[Secret, EmbeddedServer | None]:
    """Return the URL of the database: DATABASE_URL, or the embedded server, which is started if needed."""
    if settings.database_url:
        return settings.database_url, None
    if settings.shards is not None:
        raise RefusedError(
            "This needs one shard, and the setting shards has several.",
            fix="Select one: HOLDFAST_SHARD=1, or holdfast --shard 1 with a command.",
        )
    server = start_server(settings)
    return server.url, server


def start_server(settings: Settings, *, options: Mapping[str, str] | None = None) -> EmbeddedServer:
    """Return the running embedded server, or start it. The call blocks. Concurrent calls are safe.

    `options` are PostgreSQL settings for a server that this call starts. A running server is not changed.
    """
    started = time.monotonic()
    home = EmbeddedHome(settings)
    with _explain_os_errors(home):
        check_home_owner(home)
        home.create()
        with home.hold_start_lock():
            user_lock_fd = home.acquire_user_lock(STOP_TIMEOUT_S)
            if user_lock_fd is None:
                raise EmbeddedDatabaseError(
                    f"The embedded PostgreSQL in {home.folder} has not stopped in time.",
                    fix=f"See {home.log}.",
                )
            try:
                url, fresh = find_running_server_url(home, wait=True), False
                if url is None:
                    url, fresh = launch_server(settings, home, options or {})
            except BaseException:
                os.close(user_lock_fd)
                raise
    seconds = round(time.monotonic() - started, 3)
    telemetry.emit("database.started", url=redact_url(url.reveal()), seconds=seconds, fresh=fresh)
    return EmbeddedServer(url, home, user_lock_fd)


def find_running_server(settings: Settings) -> EmbeddedServer | None:
    """Become a user of the embedded server if it is running, else return None. Never start it."""
    home = EmbeddedHome(settings)
    with _explain_os_errors(home):
        if not home.folder.exists():
            return None
        check_home_owner(home)
        if not home.has_supervisor():
            return None
        user_lock_fd = home.acquire_user_lock(0.1)
        if user_lock_fd is None:
            return None  # it is stopping
        url = find_running_server_url(home, wait=False)
    if url is None:
        os.close(user_lock_fd)
        return None
    return EmbeddedServer(url, home, user_lock_fd)


def start_permanent_server(settings: Settings) -> EmbeddedServer:
    """Start the server and keep it running without users until `stop_server`."""
    server = start_server(settings)
    if not server.is_permanent:
        server.home.keep.touch()
    return server


def stop_server(settings: Settings) -> bool:
    """Stop the server, even if it has users. Return False if it was not running."""
    home = EmbeddedHome(settings)
    with _explain_os_errors(home):
        if not home.folder.exists():
            return False
        check_home_owner(home)
        with home.hold_start_lock():
            was_running = stop_server_processes(home)
    if was_running:
        telemetry.emit("database.stopped", reason="stop requested")
    return was_running


def reset_server(settings: Settings) -> None:
    """Stop the server and delete its data, password and port. The next start creates an empty database."""
    home = EmbeddedHome(settings)
    with _explain_os_errors(home):
        if not home.folder.exists():
            return
        check_home_owner(home)
        with home.hold_start_lock():
            home.refuse_foreign_folder()
            stop_server_processes(home)
            home.delete_cluster()


def find_psql(settings: Settings) -> Path:
    """Return the path of psql, of the same version as the embedded cluster if there is one."""
    home = EmbeddedHome(settings)
    with _explain_os_errors(home):
        version = home.cluster_version if settings.database_url is None else None
    return binaries.choose_psql(settings, version)


@contextmanager
def _explain_os_errors(home: EmbeddedHome) -> Generator[None]:
    """Convert OSError inside the block to EmbeddedDatabaseError with a fix."""
    try:
        yield
    except OSError as error:
        text = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        raise EmbeddedDatabaseError(
            f"The embedded PostgreSQL in {home.folder} cannot be used: {text}.",
            fix=suggest_fix(text),
        ) from error
