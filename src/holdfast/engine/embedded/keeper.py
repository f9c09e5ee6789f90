"""The process that owns the embedded server. Runs as a script and imports only the standard library.

Protocol. Everything here rests on flock, because the kernel drops those locks however a process dies:

- `users.lock`: every process that needs the server holds it shared. The keeper stops the server only while
  it holds it exclusively, so nobody can become a user of a server that is going down.
- `keeper.lock`: held by the keeper for life, taken before it leaves its parent. Free means: no keeper.
- `keep` (a file): stay up without users. `linger` (its mtime): stay up until then. `stop` (a file): stop now,
  whoever uses the server. A TCP client that is connected counts as a user where /proc tells (Linux).

The keeper starts the postmaster as its own child and reaps it, so a dead one is never taken for a live one.
On Linux the kernel sends the postmaster SIGINT (fast shutdown) when the keeper dies; elsewhere the next
keeper adopts it. A postmaster that dies while it is needed is started again, with back-off.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import fcntl

POLL_SECONDS = 0.2
IDLE_SECONDS = 1.0
SHUTDOWN = (("SIGINT", 60.0), ("SIGQUIT", 5.0), ("SIGKILL", 5.0))  # fast, at once, the hard way
ORPHAN_SECONDS = 3.0
RESTARTS = 5
STEADY_SECONDS = 30.0
LOG_BYTES = 5_000_000
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a keeper is told. No secrets: the server knows its own passwords."""

    folder: str
    data_folder: str
    command: list[str]
    environment: dict[str, str]
    uid: int
    gid: int
    tag: str
    port: int


def processes(only: int | None = None) -> Iterator[tuple[int, int, list[str]]]:
    """(pid, uid, words of the command line) of what runs; zombies have no words and are left out."""
    if not Path("/proc/self/cmdline").exists():
        yield from processes_by_ps(only)
        return
    found = [only] if only else [int(place.name) for place in Path("/proc").iterdir() if place.name.isdigit()]
    for pid in found:
        with contextlib.suppress(OSError):
            place = Path(f"/proc/{pid}")
            words = os.fsdecode((place / "cmdline").read_bytes()).strip("\0 ").split("\0")
            if words != [""]:
                yield pid, place.stat().st_uid, words


def processes_by_ps(only: int | None = None) -> Iterator[tuple[int, int, list[str]]]:
    """The same where there is no /proc; words are torn at blanks there."""
    which = ["-p", str(only)] if only else ["-ax"]
    columns = ["-ww", "-o", "pid=", "-o", "uid=", "-o", "stat=", "-o", "command="]
    listing = subprocess.run(["ps", *which, *columns], capture_output=True, check=False)
    for line in os.fsdecode(listing.stdout).splitlines():
        pid, uid, state, *words = line.split()
        if words and not state.startswith("Z"):
            yield int(pid), int(uid), words


def postmaster(data_folder: str, tag: str, uid: int) -> int | None:
    """The pid of the live postmaster of this very data folder. postmaster.pid alone proves nothing:
    the number may be dead, may belong to another program by now, or came along with a copied folder;
    and it is deleted a moment before the server is really gone."""
    try:
        claimed = int(pid_file_lines(data_folder)[0])
    except (OSError, ValueError):
        claimed = None
    if claimed and _serves(claimed, data_folder, tag, uid):
        return claimed
    found = (pid for pid, owner, words in processes() if owner == uid and f"cluster_name={tag}" in words)
    return next(found, None)


def _serves(pid: int, data_folder: str, tag: str, uid: int) -> bool:
    return any(
        owner == uid and (f"cluster_name={tag}" in words or _serves_by_hand(pid, words, data_folder))
        for _, owner, words in processes(pid)
    )


def pid_file_lines(data_folder: str) -> list[str]:
    """pid, folder, start time, port, socket folder, address, memory, state; a path need not be text."""
    return os.fsdecode(Path(data_folder, "postmaster.pid").read_bytes()).split("\n")


def says_ready(data_folder: str, pid: int | None = None) -> bool:
    """Whether the server says in its pid file that it takes connections, and is not on its way up or down."""
    with contextlib.suppress(OSError, ValueError):
        lines = pid_file_lines(data_folder)
        return pid in {None, int(lines[0] or 0)} and len(lines) > 7 and lines[7].strip() == "ready"
    return False


def _serves_by_hand(pid: int, words: list[str], data_folder: str) -> bool:
    """A postmaster that someone started without us, known by its name and its working folder."""
    if Path(words[0]).name not in {"postgres", "postmaster"}:
        return False
    try:
        return Path(f"/proc/{pid}/cwd").samefile(data_folder)
    except OSError:
        return False


def orphans(tag: str, uid: int) -> list[int]:
    """Server processes of this cluster other than the postmaster, known by the tag in their title."""
    title = f"postgres: {tag}: "
    return [pid for pid, owner, words in processes() if owner == uid and " ".join(words).startswith(title)]


def end_orphans(tag: str, uid: int) -> int:
    """Wait for what a killed postmaster left behind, then end it: it still holds the shared memory.

    Nothing is lost by it. What was committed is in the write-ahead log, which the next start replays.
    """
    found = len(orphans(tag, uid))
    for seconds, number in ((ORPHAN_SECONDS, signal.SIGQUIT), (ORPHAN_SECONDS, signal.SIGKILL), (5.0, None)):
        deadline = time.monotonic() + seconds
        while (left := orphans(tag, uid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            if number is not None:
                send(pid, number)
    return found


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def clients(port: int) -> int:
    """How many TCP clients are connected, as far as this system tells without asking the server."""
    try:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return 0
    fields = (line.split() for line in lines)
    return sum(1 for f in fields if f[1].endswith(f":{port:04X}") and f[3] == "01")


def dying_with_parent(number: int) -> Callable[[], None] | None:
    """What a child runs before it becomes another program, so that it gets `number` when we die.

    It must come after the change of user, which clears the wish; subprocess runs it there.
    """
    if sys.platform != "linux":
        return None
    import ctypes  # noqa: PLC0415  (costs memory in a process that lives long, and only Linux needs it)

    prctl: Callable[..., int] = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os.kill(os.getpid(), number)

    return ask


class Child:
    """A postmaster that we started and reap."""

    def __init__(self, plan: Plan, log: int) -> None:
        mine = plan.uid == os.geteuid()
        self._process = subprocess.Popen(
            plan.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=plan.environment,
            umask=0o077,
            user=None if mine else plan.uid,
            group=None if mine else plan.gid,
            extra_groups=None if mine else [],
            preexec_fn=dying_with_parent(signal.SIGINT),  # noqa: PLW1509  (there is one thread here)
        )
        self.pid = self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None


class Adopted:
    """A postmaster whose keeper was killed."""

    def __init__(self, plan: Plan, pid: int) -> None:
        self._plan = plan
        self.pid = pid

    def alive(self) -> bool:
        return _serves(self.pid, self._plan.data_folder, self._plan.tag, self._plan.uid)


class Keeper:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.folder = Path(plan.folder)
        self.log_path = self.folder / "server.log"
        self.log = os.open(self.log_path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        self.users = os.open(self.folder / "users.lock", os.O_RDWR)
        self.asked_to_stop: str | None = None
        self.idle_since: float | None = None
        self.deaths = 0
        self.up_since = time.monotonic()
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _on_signal(self, number: int, _: object) -> None:
        if number != signal.SIGCHLD:  # which only has to end the pause
            self.asked_to_stop = signal.Signals(number).name

    def say(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        os.write(self.log, f"{stamp} [{os.getpid()}] holdfast keeper: {text}\n".encode(errors="replace"))

    def run(self) -> int:
        pid = postmaster(self.plan.data_folder, self.plan.tag, self.plan.uid)
        server = Adopted(self.plan, pid) if pid else Child(self.plan, self.log)
        if isinstance(server, Child) and not self._comes_up(server):
            return 1
        while True:
            self._pause(POLL_SECONDS)
            if reason := self._reason_to_stop():
                return self._stop(server, reason)
            if not server.alive():
                revived = self._revive(server)
                if revived is None:
                    return 1
                server = revived
            self._trim_log()

    def _pause(self, seconds: float) -> None:
        if select.select([self._wake], [], [], seconds)[0]:
            os.read(self._wake, 4096)

    def _comes_up(self, server: Child) -> bool:
        """Whether the server gets as far as accepting connections. Crash recovery may take its time."""
        while server.alive():
            if says_ready(self.plan.data_folder, server.pid) or self._told_to_stop():
                return True  # in the second case for the main loop to stop it
            self._pause(0.02)
        return False

    def _told_to_stop(self) -> str | None:
        if self.asked_to_stop:
            return self.asked_to_stop
        if (self.folder / "stop").exists():
            return "asked to"
        try:
            here = (self.folder / "users.lock").stat()
        except FileNotFoundError:
            return "the folder is gone"
        return None if os.path.samestat(here, os.fstat(self.users)) else "the folder was replaced"

    def _reason_to_stop(self) -> str | None:
        if reason := self._told_to_stop():
            return reason
        if self._needed():
            self.idle_since = None
            return None
        now = time.monotonic()
        self.idle_since = now if self.idle_since is None else self.idle_since
        if now - self.idle_since < IDLE_SECONDS or not locked(self.users):
            return None
        if not self._wanted() and not clients(self.plan.port):
            return "the last user is gone"  # and nobody can come: users.lock stays ours
        fcntl.flock(self.users, fcntl.LOCK_UN)
        return None

    def _needed(self) -> bool:
        if self._wanted() or clients(self.plan.port):
            return True
        free = locked(self.users)
        if free:
            fcntl.flock(self.users, fcntl.LOCK_UN)
        return not free

    def _wanted(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if (self.folder / "linger").stat().st_mtime > time.time():
                return True
        return (self.folder / "keep").exists()

    def _revive(self, dead: Child | Adopted) -> Child | None:
        if time.monotonic() - self.up_since > STEADY_SECONDS:
            self.deaths = 0
        while self.deaths < RESTARTS:
            if not self._needed():
                self.say(f"the server (pid {dead.pid}) died, and nobody needs it")
                return None
            self._pause(min(3.0, 0.1 * 3**self.deaths) if self.deaths else 0)
            self.deaths += 1
            if self._told_to_stop():
                return None
            self.say(f"the server (pid {dead.pid}) died; starting it again, attempt {self.deaths}")
            self._clear_up_after(dead.pid)
            dead = Child(self.plan, self.log)
            if self._comes_up(dead):
                self.up_since = time.monotonic()
                return dead
        self.say(f"gave up: the server died {RESTARTS} times in a row; the reason is above")
        return None

    def _clear_up_after(self, pid: int) -> None:
        end_orphans(self.plan.tag, self.plan.uid)
        with contextlib.suppress(OSError):
            # The number may be given to another program at any moment, and PostgreSQL would respect it.
            if pid_file_lines(self.plan.data_folder)[0] == str(pid):
                Path(self.plan.data_folder, "postmaster.pid").unlink()

    def _stop(self, server: Child | Adopted, reason: str) -> int:
        self.say(f"stopping: {reason}")
        for name, seconds in SHUTDOWN:
            if server.alive():
                send(server.pid, signal.Signals[name])
            deadline = time.monotonic() + seconds
            while server.alive() and time.monotonic() < deadline:
                self._pause(0.02)
        if server.alive():
            self.say(f"the server (pid {server.pid}) does not stop")
            return 1
        return 0

    def _trim_log(self) -> None:
        with contextlib.suppress(OSError):
            if self.log_path.stat().st_size > LOG_BYTES:
                shutil.copyfile(self.log_path, f"{self.log_path}.1")
                os.truncate(self.log_path, 0)  # everyone appends, so nobody's offset is lost


def locked(handle: int) -> bool:
    """Whether we hold the lock exclusively now."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main() -> int:
    fields: dict[str, Any] = json.load(sys.stdin)
    plan = Plan(**fields)
    lock = os.open(Path(plan.folder, "keeper.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(50):  # whoever looks whether a keeper lives holds the lock for an instant
        if locked(lock):
            break
        time.sleep(0.01)
    else:
        return 3
    if os.fork():
        os._exit(0)  # who started us need not reap us; the lock goes on in the child
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    keeper = Keeper(plan)
    try:
        return keeper.run()
    except Exception:
        keeper.say(traceback.format_exc())
        raise


if __name__ == "__main__":
    sys.exit(main())
