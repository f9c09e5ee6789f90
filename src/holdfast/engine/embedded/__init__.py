"""The PostgreSQL that comes with Holdfast, for development and small use.

`start` makes the calling process a *user* of the one server of a home folder, and starts it if it does not
run. The server stays up as long as a user lives that has not called `release`; keeper.py says how that is
kept true however a process dies, docs/decisions/0003-embedded-postgresql.md says why.
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
from holdfast.engine.embedded import binaries, login
from holdfast.engine.embedded.account import check_owner
from holdfast.engine.embedded.cluster import advice
from holdfast.engine.embedded.home import Home
from holdfast.engine.embedded.launch import STOP_SECONDS, launched, running, stopped
from holdfast.errors import EmbeddedError
from holdfast.settings import Secret, Settings, redact_url

__all__ = ["Server", "find", "keep", "locate", "psql", "reset", "start", "stop"]


@dataclass
class Server:
    """A running server, and this process's claim on it."""

    url: Secret
    home: Home = field(repr=False)
    claim: int | None = field(repr=False)

    @property
    def kept(self) -> bool:
        return self.home.keep.exists()

    @property
    def version(self) -> str:
        return login.server_version(self.url)

    def release(self) -> None:
        """This process no longer needs the server. Dying, in whatever way, has the same effect."""
        claim, self.claim = self.claim, None
        if claim is not None:
            # Closed and not unlocked: a forked child may share the lock and still need the server.
            os.close(claim)

    def linger(self, how_long: timedelta) -> None:
        """Stay up that long from now on even without users."""
        until = time.time() + how_long.total_seconds()
        self.home.linger.unlink(missing_ok=True)  # it may be root's, in a folder that is ours
        self.home.linger.touch()
        os.utime(self.home.linger, (until, until))

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def locate(settings: Settings) -> tuple[Secret, Server | None]:
    """The database to use: DATABASE_URL when it is set, else the embedded one, started if need be."""
    if settings.database_url:
        return settings.database_url, None
    server = start(settings)
    return server.url, server


def start(settings: Settings, *, options: Mapping[str, str] | None = None) -> Server:
    """A server that answers. Blocks; any number of processes may call it at once.

    `options` are PostgreSQL settings for a server that this call starts; one that runs is left as it is.
    """
    began = time.monotonic()
    home = Home(settings)
    with _explained(home):
        check_owner(home)
        home.create()
        with home.starting():
            claim = home.become_user(STOP_SECONDS)
            if claim is None:
                raise EmbeddedError(
                    f"The embedded PostgreSQL in {home.folder} is being stopped and does not come to an end.",
                    fix=f"See {home.log}.",
                )
            try:
                url, fresh = running(home, wait=True), False
                if url is None:
                    url, fresh = launched(settings, home, options or {})
            except BaseException:
                os.close(claim)
                raise
    seconds = round(time.monotonic() - began, 3)
    telemetry.emit("database.started", url=redact_url(url.reveal()), seconds=seconds, fresh=fresh)
    return Server(url, home, claim)


def find(settings: Settings) -> Server | None:
    """The server if it runs and answers; nothing is started, made or mended."""
    home = Home(settings)
    with _explained(home):
        if not home.folder.exists():
            return None
        check_owner(home)
        if not home.has_keeper():
            return None
        claim = home.become_user(0.1)
        if claim is None:
            return None  # it is going down
        url = running(home, wait=False)
    if url is None:
        os.close(claim)
        return None
    return Server(url, home, claim)


def keep(settings: Settings) -> Server:
    """Start it, and let it stay up without users until `stop`."""
    server = start(settings)
    if not server.kept:
        server.home.keep.touch()
    return server


def stop(settings: Settings) -> bool:
    """Stop it, whoever uses it. Whether there was anything to stop."""
    home = Home(settings)
    with _explained(home):
        if not home.folder.exists():
            return False
        check_owner(home)
        with home.starting():
            found = stopped(home)
    if found:
        telemetry.emit("database.stopped", reason="asked to")
    return found


def reset(settings: Settings) -> None:
    """Stop it and destroy its data, password and port. The next start makes an empty one."""
    home = Home(settings)
    with _explained(home):
        if not home.folder.exists():
            return
        check_owner(home)
        with home.starting():
            home.refuse_what_is_not_ours()
            stopped(home)
            home.destroy()


def psql(settings: Settings) -> Path:
    """The psql to use, of the version that serves the embedded cluster if there is one."""
    home = Home(settings)
    with _explained(home):
        version = home.cluster_version if settings.database_url is None else None
    return binaries.psql_for(settings, version)


@contextmanager
def _explained(home: Home) -> Generator[None]:
    """What the system refuses, as one sentence with a way out."""
    try:
        yield
    except OSError as problem:
        what = f"{problem.strerror or problem}{f': {problem.filename}' if problem.filename else ''}"
        raise EmbeddedError(
            f"The embedded PostgreSQL in {home.folder} cannot be used: {what}.",
            fix=advice(what),
        ) from problem
