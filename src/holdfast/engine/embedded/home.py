"""The folder of one embedded server, `<home>/postgres`, and what is in it.

    data/          the cluster, 0700; elsewhere if the server's account cannot reach it, see `data.location`
    password       of the role `holdfast`, 0600
    port           where it listens on 127.0.0.1; kept from start to start as long as nobody else takes it
    server.log     of the server and its keeper, bounded
    start.lock     held by the one process that starts or stops
    users.lock, keeper.lock, keep, linger, stop      see keeper.py

Lock files are never deleted: a lock on a deleted file excludes nobody.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from holdfast.engine.embedded.keeper import LOG_BYTES
from holdfast.errors import EmbeddedError
from holdfast.settings import Secret, Settings

if sys.platform != "win32":
    import fcntl

ROLE = "holdfast"
DATABASE = "holdfast"
STATE = Path(
    "/var/lib/holdfast"
)  # only for root, and only for what the server's account cannot reach elsewhere
FIRST_PORT, PORTS = 20_000, 10_000  # below the range from which systems give ports to outgoing connections
LOCK_SECONDS = 180.0
ASIDE = ".making-"  # in the name of folders that are not whole; the next start removes them


class Home:
    def __init__(self, settings: Settings) -> None:
        if os.name != "posix":
            raise EmbeddedError(
                "The embedded PostgreSQL runs on Linux and macOS, not on Windows.",
                fix="Set DATABASE_URL to a server that runs, or work inside WSL.",
            )
        self.top = Path(os.path.realpath(settings.home))
        self.folder = self.top / "postgres"
        self.log = self.folder / "server.log"
        self.keep = self.folder / "keep"
        self.stop = self.folder / "stop"
        self.linger = self.folder / "linger"
        self.location = self.folder / "data.location"
        self._digest = hashlib.sha256(os.fsencode(self.folder)).hexdigest()

    def create(self) -> None:
        """Make the folders. New ones of root let the server's account through; old ones stay as they are."""
        root = os.geteuid() == 0
        self.top.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.top.mkdir()
            self.top.chmod(0o755)
            (self.top / ".gitignore").write_text("*\n")
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir()
            self.folder.chmod(0o711 if root else 0o700)

    # Where the cluster is

    @property
    def inside(self) -> Path:
        return self.folder / "data"

    @property
    def outside(self) -> Path:
        return STATE / self._digest[:16] / "data"

    @property
    def data_folder(self) -> Path:
        if not self.inside.exists() and self.location.exists():
            return self.outside
        return Path(os.path.realpath(self.inside))

    @property
    def tag(self) -> str:
        """Names this cluster in process titles. From the path, so that a copy has another one."""
        return f"holdfast-{hashlib.sha256(os.fsencode(self.data_folder)).hexdigest()[:12]}"

    @property
    def cluster_version(self) -> int | None:
        try:
            return int((self.data_folder / "PG_VERSION").read_text().strip().split(".")[0])
        except FileNotFoundError:
            return None
        except ValueError as problem:
            raise EmbeddedError(
                f"{self.data_folder} is not a PostgreSQL data folder: its PG_VERSION cannot be read.",
                fix="Move it away, or run `holdfast db reset`.",
            ) from problem

    def refuse_what_is_not_ours(self) -> None:
        """A folder `data` that is no cluster is left alone, unless there is nothing in it."""
        folder = self.data_folder
        if not folder.exists() or (folder / "PG_VERSION").exists():
            return
        if any(folder.iterdir()):
            raise EmbeddedError(
                f"{folder} is not a PostgreSQL data folder, and it is not empty.",
                fix="Move it away, or choose another folder with HOLDFAST_HOME.",
            )
        folder.rmdir()

    def destroy(self) -> None:
        """Remove what belongs to one cluster. The locks stay: others may be waiting for them."""
        folder = self.data_folder
        if folder.exists():
            # Out of the way in one step: half a cluster must never be taken for a whole one.
            doomed = folder.with_name(f"{folder.name}{ASIDE}{secrets.token_hex(4)}")
            folder.rename(doomed)
            shutil.rmtree(doomed)
        for name in ("password", "port", "server.log", "server.log.1", "data.location"):
            (self.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (self.outside.parent / "home").unlink(missing_ok=True)
            self.outside.parent.rmdir()

    # Password and port

    @property
    def password(self) -> Secret | None:
        try:
            return Secret((self.folder / "password").read_text().strip()) or None
        except FileNotFoundError:
            return None

    def new_password(self) -> Secret:
        password = Secret(secrets.token_urlsafe(24))
        self._write("password", password.reveal(), 0o600)
        return password

    @property
    def port(self) -> int | None:
        for path, line in ((self.folder / "port", 0), (self.data_folder / "postmaster.pid", 3)):
            with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
                return int(path.read_bytes().split(b"\n")[line])
        return None

    def free_port(self, refused: int | None = None) -> int:
        """The remembered port if it is free, else one that is; the first choice follows from the path."""
        first = int(self._digest[:8], 16) % PORTS
        candidates = [self.port, *(FIRST_PORT + (first + step * 7) % PORTS for step in range(200))]
        for port in candidates:
            if port and port != refused and _is_free(port):
                self._write("port", str(port), 0o644)
                return port
        raise EmbeddedError(
            "No free port for the embedded PostgreSQL: 200 were tried on 127.0.0.1, all taken or forbidden.",
            fix="Allow this process to listen on 127.0.0.1, or set DATABASE_URL to a server that runs.",
        )

    def url(self, password: Secret, port: int, database: str = DATABASE) -> Secret:
        return Secret(f"postgresql://{ROLE}:{password.reveal()}@127.0.0.1:{port}/{database}")

    def _write(self, name: str, text: str, mode: int) -> None:
        """Whole or not at all: a half-written password would be a wrong one."""
        new = self.folder / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.folder / name)
        except BaseException:
            new.unlink(missing_ok=True)
            raise

    def note_location(self) -> None:
        """Say here where the cluster is, and there whose it is."""
        self._write("data.location", os.fspath(self.outside), 0o644)
        (self.outside.parent / "home").write_text(f"{self.folder}\n", errors="surrogateescape")

    def follow_move(self) -> None:
        """Take the cluster along if it is outside and this folder was moved; a copy of it has none."""
        if self.inside.exists() or not self.location.exists():
            return
        before = Path(self.location.read_text(errors="surrogateescape").strip())
        if before == self.outside:
            return
        owner = Path((before.parent / "home").read_text(errors="surrogateescape").strip())
        if (owner / "data.location").exists():
            raise EmbeddedError(
                f"{self.folder} is a copy of {owner}, whose database is in {before} and was not copied.",
                fix="Run `holdfast db reset` here to begin with an empty one, or copy it with pg_dump.",
            )
        before.parent.rename(self.outside.parent)
        self.note_location()

    # Log

    @property
    def log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def log_since(self, size: int) -> str:
        with self.log.open("rb") as log:
            log.seek(size)
            return log.read().decode(errors="replace")

    def trim_log(self) -> None:
        if self.log_size > LOG_BYTES:
            self.log.replace(self.folder / "server.log.1")

    # Locks

    @contextmanager
    def starting(self) -> Generator[None]:
        """One process at a time starts or stops the server; the others wait here."""
        handle = self._open_lock("start.lock")
        try:
            if not wait_for_lock(handle, fcntl.LOCK_EX, LOCK_SECONDS):
                raise EmbeddedError(
                    f"Another process has been starting or stopping the embedded PostgreSQL in {self.folder} "
                    f"for {timedelta(seconds=LOCK_SECONDS)}.",
                    fix=f"See {self.log}, or end the process that holds {self.folder / 'start.lock'}.",
                )
            yield
        finally:
            os.close(handle)

    def become_user(self, seconds: float) -> int | None:
        """A descriptor that keeps the server up as long as it is open, or None if it is going down now."""
        handle = self._open_lock("users.lock")
        if wait_for_lock(handle, fcntl.LOCK_SH, seconds):
            return handle
        os.close(handle)
        return None

    def has_keeper(self) -> bool:
        try:
            handle = os.open(self.folder / "keeper.lock", os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return not wait_for_lock(handle, fcntl.LOCK_SH, 0)
        finally:
            os.close(handle)

    @property
    def keeper_pid(self) -> int | None:
        try:
            return int((self.folder / "keeper.lock").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _open_lock(self, name: str) -> int:
        return os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o600)


def wait_for_lock(handle: int, kind: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as PostgreSQL does
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True
