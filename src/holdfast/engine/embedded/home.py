"""The folder of one embedded server, `<home>/postgres`:

    data/          the cluster, 0700; elsewhere if the server's account cannot reach it, see `data.location`
    password       password of the role `holdfast`, 0600
    port           port on 127.0.0.1; reused at the next start unless another program uses it
    server.log     log of the server and its supervisor, with a maximum size
    start.lock     held by the one process that starts or stops the server
    users.lock, supervisor.lock, keep, linger, stop      see supervisor.py

Lock files are never deleted: a lock on a deleted file excludes no other process.
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

from holdfast.engine.embedded.supervisor import MAX_LOG_BYTES
from holdfast.errors import EmbeddedDatabaseError
from holdfast.settings import Secret, Settings

if sys.platform != "win32":
    import fcntl

EMBEDDED_ROLE_NAME = "holdfast"
EMBEDDED_DATABASE_NAME = "holdfast"
# Used by root only, for files that the server's account cannot reach elsewhere.
SHARED_STATE_FOLDER = Path("/var/lib/holdfast")
FIRST_PORT, PORT_COUNT = 20_000, 10_000  # below the range of ports for outgoing connections
START_LOCK_TIMEOUT_S = 180.0
INCOMPLETE_SUFFIX = ".making-"  # in the names of incomplete folders; the next start removes them


class EmbeddedHome:
    """The folder of one embedded server, with its password, port, log and locks."""

    def __init__(self, settings: Settings) -> None:
        if os.name != "posix":
            raise EmbeddedDatabaseError(
                "The embedded PostgreSQL runs on Linux and macOS, not on Windows.",
                fix="Set DATABASE_URL to a running server, or use WSL.",
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
        """Create the folders of the home. Existing folders keep their permissions."""
        root = os.geteuid() == 0
        self.top.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.top.mkdir()
            self.top.chmod(0o755)
            (self.top / ".gitignore").write_text("*\n")
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir()
            self.folder.chmod(0o711 if root else 0o700)

    # Location of the cluster

    @property
    def data_folder_in_home(self) -> Path:
        """The data folder inside the home."""
        return self.folder / "data"

    @property
    def data_folder_outside_home(self) -> Path:
        """The data folder to use if the server's operating-system user cannot access the home folder."""
        return SHARED_STATE_FOLDER / self._digest[:16] / "data"

    @property
    def data_folder(self) -> Path:
        """The data folder in use."""
        if not self.data_folder_in_home.exists() and self.location.exists():
            return self.data_folder_outside_home
        return Path(os.path.realpath(self.data_folder_in_home))

    @property
    def cluster_name(self) -> str:
        """The name of this cluster in process titles. It is derived from the path, so a copy differs."""
        return f"holdfast-{hashlib.sha256(os.fsencode(self.data_folder)).hexdigest()[:12]}"

    @property
    def cluster_version(self) -> int | None:
        """The major PostgreSQL version of the cluster, or None if there is no cluster."""
        try:
            return int((self.data_folder / "PG_VERSION").read_text().strip().split(".")[0])
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise EmbeddedDatabaseError(
                f"{self.data_folder} is not a PostgreSQL data folder: its PG_VERSION cannot be read.",
                fix="Move the folder away, or run `holdfast db reset`.",
            ) from error

    def refuse_foreign_folder(self) -> None:
        """Raise EmbeddedDatabaseError if the data folder is not a cluster. Remove an empty folder."""
        folder = self.data_folder
        if not folder.exists() or (folder / "PG_VERSION").exists():
            return
        if any(folder.iterdir()):
            raise EmbeddedDatabaseError(
                f"{folder} is not a PostgreSQL data folder, and it is not empty.",
                fix="Move the folder away, or choose another folder with HOLDFAST_HOME.",
            )
        folder.rmdir()

    def delete_cluster(self) -> None:
        """Delete the cluster and its files. Lock files stay, because other processes may wait for them."""
        folder = self.data_folder
        if folder.exists():
            # Renamed first, so that a partly deleted cluster is never used as a complete one.
            renamed = folder.with_name(f"{folder.name}{INCOMPLETE_SUFFIX}{secrets.token_hex(4)}")
            folder.rename(renamed)
            shutil.rmtree(renamed)
        for name in ("password", "port", "server.log", "server.log.1", "data.location"):
            (self.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (self.data_folder_outside_home.parent / "home").unlink(missing_ok=True)
            self.data_folder_outside_home.parent.rmdir()

    # Password and port

    @property
    def password(self) -> Secret | None:
        """The stored password, or None."""
        try:
            return Secret((self.folder / "password").read_text().strip()) or None
        except FileNotFoundError:
            return None

    def create_password(self) -> Secret:
        """Generate and store a password."""
        password = Secret(secrets.token_urlsafe(24))
        self._write_file("password", password.reveal(), 0o600)
        return password

    @property
    def port(self) -> int | None:
        """The stored port, or the port of the running server, or None."""
        for path, line in ((self.folder / "port", 0), (self.data_folder / "postmaster.pid", 3)):
            with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
                return int(path.read_bytes().split(b"\n")[line])
        return None

    def choose_free_port(self, refused: int | None = None) -> int:
        """Choose and store a free port: the stored port if it is free, else another one."""
        first = int(self._digest[:8], 16) % PORT_COUNT
        candidates = [self.port, *(FIRST_PORT + (first + step * 7) % PORT_COUNT for step in range(200))]
        for port in candidates:
            if port and port != refused and _is_port_free(port):
                self._write_file("port", str(port), 0o644)
                return port
        raise EmbeddedDatabaseError(
            "No free port for the embedded PostgreSQL: 200 ports on 127.0.0.1 are in use or not permitted.",
            fix="Allow this process to listen on 127.0.0.1, or set DATABASE_URL to a running server.",
        )

    def build_url(self, password: Secret, port: int, database: str = EMBEDDED_DATABASE_NAME) -> Secret:
        """Return the connection URL of the embedded server."""
        return Secret(f"postgresql://{EMBEDDED_ROLE_NAME}:{password.reveal()}@127.0.0.1:{port}/{database}")

    def _write_file(self, name: str, text: str, mode: int) -> None:
        """Write a file of the home atomically, so that no process reads an incomplete password."""
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

    def write_location(self) -> None:
        """Store the path of an outside cluster in the home, and the path of the home beside the cluster."""
        self._write_file("data.location", os.fspath(self.data_folder_outside_home), 0o644)
        (self.data_folder_outside_home.parent / "home").write_text(
            f"{self.folder}\n", errors="surrogateescape"
        )

    def follow_moved_home(self) -> None:
        """Move an outside cluster to its new path after the home was moved. Refuse a copied home."""
        if self.data_folder_in_home.exists() or not self.location.exists():
            return
        before = Path(self.location.read_text(errors="surrogateescape").strip())
        if before == self.data_folder_outside_home:
            return
        owner = Path((before.parent / "home").read_text(errors="surrogateescape").strip())
        if (owner / "data.location").exists():
            raise EmbeddedDatabaseError(
                f"{self.folder} is a copy of {owner}, whose database is in {before} and was not copied.",
                fix="Run `holdfast db reset` here to start with an empty database, or copy it with pg_dump.",
            )
        before.parent.rename(self.data_folder_outside_home.parent)
        self.write_location()

    # Log

    @property
    def log_size(self) -> int:
        """The size of the log in bytes."""
        return self.log.stat().st_size if self.log.exists() else 0

    def read_log_since(self, size: int) -> str:
        """Return the log after the first `size` bytes."""
        with self.log.open("rb") as log:
            log.seek(size)
            return log.read().decode(errors="replace")

    def trim_log(self) -> None:
        """Rotate the server log if it is larger than `MAX_LOG_BYTES`."""
        if self.log_size > MAX_LOG_BYTES:
            self.log.replace(self.folder / "server.log.1")

    # Locks

    @contextmanager
    def hold_start_lock(self) -> Generator[None]:
        """Hold the lock for starting and stopping the server. Other processes wait."""
        handle = self._open_lock_file("start.lock")
        try:
            if not wait_for_lock(handle, fcntl.LOCK_EX, START_LOCK_TIMEOUT_S):
                raise EmbeddedDatabaseError(
                    f"Another process has been starting or stopping the embedded PostgreSQL in {self.folder} "
                    f"for {timedelta(seconds=START_LOCK_TIMEOUT_S)}.",
                    fix=f"See {self.log}, or end the process that holds {self.folder / 'start.lock'}.",
                )
            yield
        finally:
            os.close(handle)

    def acquire_user_lock(self, seconds: float) -> int | None:
        """Return a descriptor that keeps the server running while it is open; None if it is stopping."""
        handle = self._open_lock_file("users.lock")
        if wait_for_lock(handle, fcntl.LOCK_SH, seconds):
            return handle
        os.close(handle)
        return None

    def has_supervisor(self) -> bool:
        """Return whether a supervisor is running."""
        try:
            handle = os.open(self.folder / "supervisor.lock", os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return not wait_for_lock(handle, fcntl.LOCK_SH, 0)
        finally:
            os.close(handle)

    @property
    def supervisor_pid(self) -> int | None:
        """The process id of the supervisor that started last, or None."""
        try:
            return int((self.folder / "supervisor.lock").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _open_lock_file(self, name: str) -> int:
        return os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o600)


def wait_for_lock(handle: int, kind: int, seconds: float) -> bool:
    """Acquire a file lock within `seconds`. Return whether the lock was acquired."""
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


def _is_port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as PostgreSQL does
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True
