"""A PostgreSQL server that a run can crash, stop, fill up and start again."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import asyncpg

from holdfast import settings as settings_module
from holdfast.engine.embedded import binaries
from holdfast.engine.embedded.account import (
    ServerOsAccount,
    build_server_environment,
    choose_data_folder,
    choose_server_account,
)
from holdfast.engine.embedded.cluster import PostgresCluster
from holdfast.engine.embedded.home import EmbeddedHome
from holdfast.settings import Secret

DEFAULT_SERVER_OPTIONS = {
    "max_connections": "100",
    "fsync": "on",
    "synchronous_commit": "on",
    "deadlock_timeout": "200ms",
    "log_lock_waits": "on",
    "max_wal_size": "1GB",
    "wal_level": "replica",
}
COMMIT_LOG_SEGMENT_BYTES = 256 * 1024
TRANSACTIONS_PER_SEGMENT = COMMIT_LOG_SEGMENT_BYTES * 4  # two bits per transaction


def choose_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class FaultServer:
    """A PostgreSQL server with its own data folder, as a primary or as a standby."""

    def __init__(
        self, folder: Path, options: Mapping[str, str] | None = None, *, standby_of: FaultServer | None = None
    ) -> None:
        settings = settings_module.load_settings({"home": str(folder)})
        self.home = EmbeddedHome(settings)
        self.home.create()
        self._account: ServerOsAccount = choose_server_account(self.home)
        programs = binaries.make_postgres_binaries_runnable(
            binaries.choose_postgres_binaries(settings, None), self._account
        )
        self._cluster = PostgresCluster(self.home, self._account, programs)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = self.home.choose_free_port()
        self.log = Path(tempfile.mkstemp(prefix="campaign-", suffix=".log")[1])
        if standby_of is None:
            self.password = self.home.create_password()
            self._cluster.create(self.password)
            self._cluster.configure({**DEFAULT_SERVER_OPTIONS, **(options or {})})
        else:
            self.password = standby_of.password
            self._copy_primary(standby_of)
        self.url: Secret = self.home.build_url(self.password, self.port, "postgres")

    def _copy_primary(self, primary: FaultServer) -> None:
        """Copy the data folder of the primary and configure this server as its standby."""
        program = self._cluster.binaries.program_path("pg_basebackup")
        target = choose_data_folder(self.home, self._account)
        self._account.take_ownership(target.parent)
        command = [program, "-d", primary.url.reveal(), "-D", str(target), "-R", "-X", "stream", "-c", "fast"]
        process = self._account.run_program(command)
        if process.returncode:
            raise RuntimeError(process.stderr.decode())

    def create_archive_folder(self, folder: Path) -> None:
        """Create a folder that the server may write, for its WAL."""
        folder.mkdir(mode=0o755)
        self._account.take_ownership(folder)

    def recover_to(self, target_time: str, archive: Path) -> None:
        """Make this copy of a primary replay archived WAL up to a time, and then accept writes.

        The server must be stopped. It does not archive, so that two histories never share an archive.
        """
        options = {
            "restore_command": f"cp {archive}/%f %p", "recovery_target_time": target_time,
            "recovery_target_action": "promote", "archive_mode": "off",
        }  # fmt: skip
        self._cluster.configure({**DEFAULT_SERVER_OPTIONS, **options})
        data = self.home.data_folder
        (data / "standby.signal").rename(data / "recovery.signal")

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(self.url.reveal(), timeout=10)

    async def promote(self) -> None:
        connection = await self.connect()
        await connection.fetchval("select pg_promote(true, 60)")
        await connection.close()

    def start(self) -> None:
        account_options: dict[str, Any] = {}
        if not self._account.is_current_user:
            account_options = {"user": self._account.uid, "group": self._account.gid, "extra_groups": []}
        self._cluster.repair()
        command = self._cluster.build_server_start_plan(self.port).command
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=build_server_environment(),
                cwd="/",
                stdout=log,
                stderr=log,
                start_new_session=True,
                **account_options,
            )

    async def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                connection = await asyncpg.connect(self.url.reveal(), timeout=5)
            except (OSError, asyncpg.PostgresError, TimeoutError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.02)
            else:
                await connection.close()
                return

    @property
    def has_exited(self) -> bool:
        """Whether the server has exited, for example after a panic."""
        return self._process is None or self._process.poll() is not None

    @property
    def pid(self) -> int | None:
        """The process of the server, or None while it is stopped."""
        return None if self._process is None else self._process.pid

    def crash(self) -> None:
        """Stop every process of the server at once, as a power failure does."""
        self._stop_with_signal(signal.SIGQUIT)

    def _stop_with_signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    def stop(self) -> None:
        self._stop_with_signal(signal.SIGINT)

    def skip_to_transaction(self, number: int) -> None:
        """Set the next transaction id. The server must be stopped."""
        data = self.home.data_folder
        if number // TRANSACTIONS_PER_SEGMENT:
            segment = data / "pg_xact" / f"{number // TRANSACTIONS_PER_SEGMENT:04X}"
            segment.write_bytes(bytes(COMMIT_LOG_SEGMENT_BYTES))
            self._account.take_ownership(segment)
        program = self._cluster.binaries.program_path("pg_resetwal")
        process = self._account.run_program([program, "-x", str(number), "-D", str(data)])
        if process.returncode:
            raise RuntimeError(process.stderr.decode())

    def destroy(self) -> None:
        self._stop_with_signal(signal.SIGQUIT)
        shutil.rmtree(self.home.data_folder, ignore_errors=True)
        shutil.rmtree(self.home.folder, ignore_errors=True)
        self.log.unlink(missing_ok=True)
