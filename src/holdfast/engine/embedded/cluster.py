"""The data folder of a cluster: create it, repair it, configure it, and build the start command of its
server.

A new cluster is created in a sibling folder and renamed when it is complete, so a folder called `data` is
always complete. Its files are not edited: our settings are in `holdfast.conf`, which includes the file that
initdb wrote. ALTER SYSTEM overrides both.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.engine.embedded import supervisor
from holdfast.engine.embedded.account import (
    ServerOsAccount,
    build_server_environment,
    choose_data_folder,
    take_over_cluster_files,
)
from holdfast.engine.embedded.binaries import PostgresBinaries
from holdfast.engine.embedded.home import EMBEDDED_ROLE_NAME, INCOMPLETE_SUFFIX, EmbeddedHome
from holdfast.errors import EmbeddedDatabaseError
from holdfast.settings import Secret

FIRST_MAJOR_WITH_BUILTIN_LOCALE = 17  # its Unicode locale does not depend on a system library

POSTGRES_SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "128MB",
    "work_mem": "8MB",
    "maintenance_work_mem": "64MB",
    "max_wal_size": "512MB",
    "jit": "off",
    "fsync": "on",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
    "lc_messages": "C",
}


@dataclass(frozen=True)
class PostgresCluster:
    """The data folder of a home, the account of its server, and the programs that serve it."""

    home: EmbeddedHome
    account: ServerOsAccount
    binaries: PostgresBinaries

    def create(self, password: Secret) -> None:
        """Create the cluster: run initdb in a temporary folder, then rename the folder."""
        target = choose_data_folder(self.home, self.account)
        aside = target.with_name(f"{target.name}{INCOMPLETE_SUFFIX}{secrets.token_hex(4)}")
        aside.mkdir(mode=0o700)
        try:
            if target.exists():
                self._discard_abandoned_cluster(target)
            self.account.take_ownership(aside)
            key = aside / "password"
            key.touch(mode=0o600)
            self.account.take_ownership(key)
            key.write_text(password.reveal() + "\n")
            self._run_initdb(aside / "data", key)
            (aside / "data").rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _discard_abandoned_cluster(self, target: Path) -> None:
        """Delete the database cluster that a deleted home folder at the same path left behind."""
        if pid := self.find_postmaster_pid():
            supervisor.send_signal(pid, signal.SIGQUIT)
        supervisor.end_orphan_processes(self.home.cluster_name, self.account.uid)
        shutil.rmtree(target)

    def _run_initdb(self, folder: Path, key: Path) -> None:
        locale = ["--no-locale"]
        if self.binaries.version >= FIRST_MAJOR_WITH_BUILTIN_LOCALE:
            locale = ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        program = (
            self.binaries.program_path("initdb"),
            "-D",
            str(folder),
            "-U",
            EMBEDDED_ROLE_NAME,
            f"--pwfile={key}",
        )
        process = self.account.run_program(
            [*program, "--auth=scram-sha-256", "--encoding=UTF8", "--no-instructions", *locale]
        )
        if process.returncode:
            output = (process.stderr or process.stdout).decode(errors="replace")
            raise EmbeddedDatabaseError(
                f"initdb failed in {self.home.folder}: {find_decisive_line(output)}",
                fix=suggest_fix(output),
            )

    def configure(self, options: Mapping[str, str]) -> None:
        """Write holdfast.conf with the default settings and `options`."""
        lines = [
            f"{name} = {_quote_setting(value)}" for name, value in {**POSTGRES_SETTINGS, **options}.items()
        ]
        path = self.home.data_folder / "holdfast.conf"
        path.unlink(missing_ok=True)
        # O_EXCL follows no link: another account that owns the folder must not redirect the writes of root.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as file:
            file.write("\n".join(["include 'postgresql.conf'", *lines, ""]))
            os.fchmod(file.fileno(), 0o644)

    def build_server_start_plan(self, port: int) -> supervisor.ServerStartPlan:
        """Build the plan from which the supervisor starts the server on this port."""
        data_folder = str(self.home.data_folder)
        # Settings on the command line cannot be changed by configuration files.
        fixed = {
            "config_file": f"{data_folder}/holdfast.conf",
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            # No socket: its path is limited to 107 bytes, and TCP requires the password.
            "unix_socket_directories": "",
            "cluster_name": self.home.cluster_name,
            "logging_collector": "off",
            "log_destination": "stderr",
        }
        options = [part for name, value in fixed.items() for part in ("-c", f"{name}={value}")]
        return supervisor.ServerStartPlan(
            folder=str(self.home.folder),
            data_folder=data_folder,
            command=[self.binaries.program_path("postgres"), "-D", data_folder, *options],
            environment=build_server_environment(),
            uid=self.account.uid,
            gid=self.account.gid,
            cluster_name=self.home.cluster_name,
            port=port,
        )

    def find_postmaster_pid(self) -> int | None:
        """Return the process id of the running postmaster, or None."""
        return supervisor.find_postmaster_pid(
            str(self.home.data_folder), self.home.cluster_name, self.account.uid
        )

    def repair(self) -> list[str]:
        """Repair the data folder after a crash, copy or kill. Return descriptions of the repairs."""
        folder = self.home.data_folder
        repaired = ["files of another owner"] if take_over_cluster_files(folder, self.account) else []
        if folder.stat().st_mode & 0o7777 not in {0o700, 0o750}:
            folder.chmod(0o700)
            repaired.append("folder readable by other users")
        if supervisor.end_orphan_processes(self.home.cluster_name, self.account.uid):
            repaired.append("processes of a killed server")
        pid_file = folder / "postmaster.pid"
        if pid_file.exists():
            pid_file.unlink()
            repaired.append("stale postmaster.pid")
        return repaired

    def set_password(self, password: Secret) -> None:
        """Set the password in single-user mode, which needs no password. No server may run."""
        statement = f"alter role {EMBEDDED_ROLE_NAME} with login superuser password '{password.reveal()}';\n"
        config = f"config_file={self.home.data_folder}/holdfast.conf"
        program = (self.binaries.program_path("postgres"), "--single", "-D", str(self.home.data_folder))
        process = self.account.run_program([*program, "-c", config, "template1"], statement)
        output = process.stderr.decode(errors="replace").replace(password.reveal(), "•••")
        if process.returncode or "ERROR:" in output:
            raise EmbeddedDatabaseError(
                f"The password of the embedded database could not be reset: {find_decisive_line(output)}",
                fix=suggest_fix(output),
            )

    def _end_abandoned_initdb(self, aside: str) -> None:
        """End an initdb process whose parent was killed, found by the folder in its command line."""
        for pid, owner, words in supervisor.iterate_processes():
            if owner == self.account.uid and any(aside in word for word in words):
                supervisor.send_signal(pid, signal.SIGKILL)

    def remove_incomplete_folders(self) -> bool:
        """Remove folders that a killed process left incomplete. Return whether there were any."""
        removed = False
        for target in (self.home.data_folder_in_home, self.home.data_folder_outside_home):
            for aside in target.parent.glob(f"{target.name}{INCOMPLETE_SUFFIX}*"):
                self._end_abandoned_initdb(str(aside))
                shutil.rmtree(aside, ignore_errors=True)
                removed = True
        return removed


def _quote_setting(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


_FATAL_LINE_PATTERN = re.compile(r"(?:FATAL|PANIC|ERROR|initdb: error|postgres: error): .*")
_FAILURE_LINE_PATTERN = re.compile(r"could not .*|^(?=.*No space left|.*denied).*")


def find_decisive_line(output: str) -> str:
    """Return the line of a program's output that explains a failure: the first fatal line, else the last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for position, line in reversed(list(enumerate(lines))):
        if line.endswith("contains errors") and position:
            return lines[position - 1].partition("LOG:")[2].strip() + "."
    fatal = [match[0] for line in lines if (match := _FATAL_LINE_PATTERN.search(line))]
    failed = [match[0] for line in lines if (match := _FAILURE_LINE_PATTERN.search(line))]
    decisive = [*fatal[:1], *failed[-1:], *lines[-1:], "no output"][0]
    return decisive.rstrip(".") + "."


def suggest_fix(output: str) -> str:
    """Return advice for an error message of PostgreSQL or of the operating system."""
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return "Free some disk space (a new database takes about 40 MB) and try again."
    if "could not create shared memory segment" in output or "could not resize shared memory" in output:
        return "Give this system more shared memory (containers: --shm-size=256m), or set DATABASE_URL."
    if "Permission denied" in output or "Read-only file system" in output:
        return "Choose a writable folder with HOLDFAST_HOME, or set DATABASE_URL."
    return "Fix that, choose another folder with HOLDFAST_HOME, or set DATABASE_URL to a running server."
