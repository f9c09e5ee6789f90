"""One data folder: make it, put it right after whatever happened, and say how its server is started.

A new cluster is made in a sibling folder and renamed when it is complete, so a folder called `data` is
always whole. Nothing in it is edited: our settings are in a file of their own, `holdfast.conf`, which
includes the one that initdb wrote; ALTER SYSTEM still has the last word.
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

from holdfast.engine.embedded import keeper
from holdfast.engine.embedded.account import Account, adopt_files, environment, reachable_folder
from holdfast.engine.embedded.binaries import Binaries
from holdfast.engine.embedded.home import ASIDE, ROLE, Home
from holdfast.errors import EmbeddedError
from holdfast.settings import Secret

BUILTIN_LOCALE = 17  # the first version with a Unicode locale that depends on no library of the system

SETTINGS = {
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
class Cluster:
    home: Home
    account: Account
    binaries: Binaries

    def make(self, password: Secret) -> None:
        """Run initdb aside, then put the finished folder in its place in one step."""
        target = reachable_folder(self.home, self.account)
        aside = target.with_name(f"{target.name}{ASIDE}{secrets.token_hex(4)}")
        aside.mkdir(mode=0o700)
        try:
            if target.exists():
                self._discard_abandoned(target)
            self.account.own(aside)
            key = aside / "password"
            key.touch(mode=0o600)
            self.account.own(key)
            key.write_text(password.reveal() + "\n")
            self._initdb(aside / "data", key)
            (aside / "data").rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _discard_abandoned(self, target: Path) -> None:
        """Outside the home may be the cluster of an earlier home at the same place, which was deleted."""
        if pid := self.postmaster():
            keeper.send(pid, signal.SIGQUIT)
        keeper.end_orphans(self.home.tag, self.account.uid)
        shutil.rmtree(target)

    def _initdb(self, folder: Path, key: Path) -> None:
        locale = ["--no-locale"]
        if self.binaries.version >= BUILTIN_LOCALE:
            locale = ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        program = (self.binaries.program("initdb"), "-D", str(folder), "-U", ROLE, f"--pwfile={key}")
        done = self.account.run(
            [*program, "--auth=scram-sha-256", "--encoding=UTF8", "--no-instructions", *locale]
        )
        if done.returncode:
            said = (done.stderr or done.stdout).decode(errors="replace")
            raise EmbeddedError(
                f"The embedded database could not be made in {self.home.folder}: {telling_line(said)}",
                fix=advice(said),
            )

    def configure(self, options: Mapping[str, str]) -> None:
        lines = [f"{name} = {_quoted(value)}" for name, value in {**SETTINGS, **options}.items()]
        path = self.home.data_folder / "holdfast.conf"
        path.unlink(missing_ok=True)
        # Made anew and by no link: root must not be led out of a folder that another account owns.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as file:
            file.write("\n".join(["include 'postgresql.conf'", *lines, ""]))
            os.fchmod(file.fileno(), 0o644)

    def plan(self, port: int) -> keeper.Plan:
        data_folder = str(self.home.data_folder)
        # On the command line is what nobody may change underneath us.
        fixed = {
            "config_file": f"{data_folder}/holdfast.conf",
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            # No socket: its path is limited to 107 bytes, and a password is asked for on TCP anyway.
            "unix_socket_directories": "",
            "cluster_name": self.home.tag,
            "logging_collector": "off",
            "log_destination": "stderr",
        }
        options = [part for name, value in fixed.items() for part in ("-c", f"{name}={value}")]
        return keeper.Plan(
            folder=str(self.home.folder),
            data_folder=data_folder,
            command=[self.binaries.program("postgres"), "-D", data_folder, *options],
            environment=environment(),
            uid=self.account.uid,
            gid=self.account.gid,
            tag=self.home.tag,
            port=port,
        )

    def postmaster(self) -> int | None:
        return keeper.postmaster(str(self.home.data_folder), self.home.tag, self.account.uid)

    def put_right(self) -> list[str]:
        """Undo what a crash, a copy or a kill left behind while no server runs. Says what was found."""
        folder = self.home.data_folder
        found = ["files of another owner"] if adopt_files(folder, self.account) else []
        if folder.stat().st_mode & 0o7777 not in {0o700, 0o750}:
            folder.chmod(0o700)
            found.append("folder open to others")
        if keeper.end_orphans(self.home.tag, self.account.uid):
            found.append("processes of a killed server")
        pid_file = folder / "postmaster.pid"
        if pid_file.exists():
            pid_file.unlink()
            found.append("stale postmaster.pid")
        return found

    def set_password(self, password: Secret) -> None:
        """Through the single-user mode, which asks for no password; only while no server runs."""
        statement = f"alter role {ROLE} with login superuser password '{password.reveal()}';\n"
        config = f"config_file={self.home.data_folder}/holdfast.conf"
        program = (self.binaries.program("postgres"), "--single", "-D", str(self.home.data_folder))
        done = self.account.run([*program, "-c", config, "template1"], statement)
        said = done.stderr.decode(errors="replace").replace(password.reveal(), "•••")
        if done.returncode or "ERROR:" in said:
            raise EmbeddedError(
                f"The password of the embedded database could not be set anew: {telling_line(said)}",
                fix=advice(said),
            )

    def _end_initdb(self, aside: str) -> None:
        """Whoever names this folder, whose name is random, is the initdb of a starter that was killed."""
        for pid, owner, words in keeper.processes():
            if owner == self.account.uid and any(aside in word for word in words):
                keeper.send(pid, signal.SIGKILL)

    def clear_up_half_made(self) -> bool:
        found = False
        for target in (self.home.inside, self.home.outside):
            for aside in target.parent.glob(f"{target.name}{ASIDE}*"):
                self._end_initdb(str(aside))
                shutil.rmtree(aside, ignore_errors=True)
                found = True
        return found


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


_FATAL = re.compile(r"(?:FATAL|PANIC|ERROR|initdb: error|postgres: error): .*")
_FAILED = re.compile(r"could not .*|.*No space left.*|.*denied.*")


def telling_line(said: str) -> str:
    """The line of a log that tells most: the first fatal one, since others follow from it; else the last."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for position, line in reversed(list(enumerate(lines))):
        if line.endswith("contains errors") and position:
            return lines[position - 1].partition("LOG:")[2].strip() + "."
    fatal = [match[0] for line in lines if (match := _FATAL.search(line))]
    failed = [match[0] for line in lines if (match := _FAILED.search(line))]
    told = [*fatal[:1], *failed[-1:], *lines[-1:], "it said nothing"][0]
    return told.rstrip(".") + "."


def advice(said: str) -> str:
    if "No space left on device" in said or "Disk quota exceeded" in said:
        return "Free some disk space (a new database takes about 40 MB) and try again."
    if "could not create shared memory segment" in said or "could not resize shared memory" in said:
        return "Give this system more shared memory (containers: --shm-size=256m), or set DATABASE_URL."
    if "Permission denied" in said or "Read-only file system" in said:
        return "Choose a writable folder with HOLDFAST_HOME, or set DATABASE_URL."
    return "Mend that, choose another folder with HOLDFAST_HOME, or set DATABASE_URL to a server that runs."
