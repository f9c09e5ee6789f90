"""The supervisor process of the embedded server. It runs as a script and imports only the standard library.

Protocol. It relies on flock, because the kernel releases these locks however a process dies:

- `users.lock`: every process that uses the server holds a shared lock. The supervisor stops the server only
  while it holds the exclusive lock, so no process can become a user of a server that is stopping.
- `supervisor.lock`: the supervisor holds it until it ends. If the lock is free, there is no supervisor.
- `keep` (a file): keep running without users. `linger` (its mtime): keep running until then. `stop` (a
  file): stop now, even with users. Where /proc exists (Linux), a connected TCP client counts as a user.

The supervisor starts the postmaster as its child and reaps it, so it never takes a dead one for a live one.
On Linux the kernel sends the postmaster SIGINT (fast shutdown) when the supervisor dies; elsewhere the next
supervisor adopts it. A postmaster that dies while it is needed is restarted, with backoff.
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

POLL_INTERVAL_S = 0.2
IDLE_TIMEOUT_S = 1.0
SHUTDOWN_STEPS = (("SIGINT", 60.0), ("SIGQUIT", 5.0), ("SIGKILL", 5.0))  # fast, immediate, kill
ORPHAN_SHUTDOWN_STEPS = ((3.0, signal.SIGQUIT), (3.0, signal.SIGKILL), (5.0, None))  # wait, then signal
MAX_RESTARTS = 5
STEADY_UPTIME_S = 30.0
MAX_LOG_BYTES = 5_000_000
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class ServerStartPlan:
    """The folders, command and account with which the supervisor starts the server. Has no secrets."""

    folder: str
    data_folder: str
    command: list[str]
    environment: dict[str, str]
    uid: int
    gid: int
    cluster_name: str
    port: int


def iterate_processes(only: int | None = None) -> Iterator[tuple[int, int, list[str]]]:
    """Yield (pid, uid, words of the command line) of all running processes except zombies."""
    if not Path("/proc/self/cmdline").exists():
        yield from iterate_processes_with_ps(only)
        return
    pids = [only] if only else [int(place.name) for place in Path("/proc").iterdir() if place.name.isdigit()]
    for pid in pids:
        with contextlib.suppress(OSError):
            place = Path(f"/proc/{pid}")
            words = os.fsdecode((place / "cmdline").read_bytes()).strip("\0 ").split("\0")
            if words != [""]:
                yield pid, place.stat().st_uid, words


def iterate_processes_with_ps(only: int | None = None) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the same as `iterate_processes` on systems without /proc. Words with spaces are split."""
    which = ["-p", str(only)] if only else ["-ax"]
    columns = ["-ww", "-o", "pid=", "-o", "uid=", "-o", "stat=", "-o", "command="]
    listing = subprocess.run(["ps", *which, *columns], capture_output=True, check=False)
    for line in os.fsdecode(listing.stdout).splitlines():
        pid, uid, state, *words = line.split()
        if words and not state.startswith("Z"):
            yield int(pid), int(uid), words


def find_postmaster_pid(data_folder: str, cluster_name: str, uid: int) -> int | None:
    """Return the process id of the running postmaster of this data folder, or None.

    postmaster.pid alone proves nothing: the process may be dead, its id may belong to another program now, or
    the file came with a copied folder. It is also deleted a moment before the server has ended.
    """
    recorded_pid = None
    with contextlib.suppress(OSError, ValueError):
        recorded_pid = int(read_pid_file(data_folder)[0])
    if recorded_pid and _is_postmaster_of(recorded_pid, data_folder, cluster_name, uid):
        return recorded_pid
    option = f"cluster_name={cluster_name}"
    pids = (pid for pid, owner, words in iterate_processes() if owner == uid and option in words)
    return next(pids, None)


def _is_postmaster_of(pid: int, data_folder: str, cluster_name: str, uid: int) -> bool:
    option = f"cluster_name={cluster_name}"
    return any(
        owner == uid and (option in words or _is_foreign_postmaster(pid, words, data_folder))
        for _, owner, words in iterate_processes(pid)
    )


def read_pid_file(data_folder: str) -> list[str]:
    """Return the lines of postmaster.pid: pid, data folder, start time, port, socket folder, address, ..."""
    return os.fsdecode(Path(data_folder, "postmaster.pid").read_bytes()).split("\n")


def is_postmaster_ready(data_folder: str, pid: int | None = None) -> bool:
    """Return whether postmaster.pid says that the server accepts connections."""
    with contextlib.suppress(OSError, ValueError):
        lines = read_pid_file(data_folder)
        return pid in {None, int(lines[0] or 0)} and len(lines) > 7 and lines[7].strip() == "ready"
    return False


def _is_foreign_postmaster(pid: int, words: list[str], data_folder: str) -> bool:
    """Return whether a process is a postmaster of this data folder that Holdfast did not start."""
    if Path(words[0]).name not in {"postgres", "postmaster"}:
        return False
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cwd").samefile(data_folder)
    return False


def list_orphan_processes(cluster_name: str, uid: int) -> list[int]:
    """Return the process ids of a cluster's server processes that outlived their postmaster."""
    title = f"postgres: {cluster_name}: "
    return [
        p for p, owner, words in iterate_processes() if owner == uid and " ".join(words).startswith(title)
    ]


def end_orphan_processes(cluster_name: str, uid: int) -> int:
    """Wait for the child processes of a killed postmaster to exit, then end the rest. Return their number."""
    # No data is lost: the next start replays the write-ahead log.
    count = len(list_orphan_processes(cluster_name, uid))
    for seconds, number in ORPHAN_SHUTDOWN_STEPS:
        deadline = time.monotonic() + seconds
        while (left := list_orphan_processes(cluster_name, uid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            if number is not None:
                send_signal(pid, number)
    return count


def send_signal(pid: int, number: int) -> None:
    """Send a signal, unless the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def count_clients(port: int) -> int:
    """Return the number of TCP clients connected to a port; 0 on systems without /proc."""
    try:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return 0
    fields = (line.split() for line in lines)
    return sum(1 for f in fields if f[1].endswith(f":{port:04X}") and f[3] == "01")


def build_parent_death_hook(number: int) -> Callable[[], None] | None:
    """Return a function that makes a child receive signal `number` when this process dies, or None."""
    # It must run after the change of user, which clears the setting; subprocess runs it there.
    if sys.platform != "linux":
        return None
    import ctypes  # noqa: PLC0415  (uses memory in a long-lived process, and only Linux needs it)

    prctl: Callable[..., int] = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def set_parent_death_signal() -> None:
        prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os.kill(os.getpid(), number)

    return set_parent_death_signal


class ChildPostmaster:
    """A postmaster that this process started and reaps."""

    def __init__(self, plan: ServerStartPlan, log: int) -> None:
        same_user = plan.uid == os.geteuid()
        self._process = subprocess.Popen(
            plan.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=plan.environment,
            umask=0o077,
            user=None if same_user else plan.uid,
            group=None if same_user else plan.gid,
            extra_groups=None if same_user else [],
            preexec_fn=build_parent_death_hook(signal.SIGINT),  # noqa: PLW1509  (there is one thread here)
        )
        self.pid = self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None


class AdoptedPostmaster:
    """A running postmaster whose supervisor was killed."""

    def __init__(self, plan: ServerStartPlan, pid: int) -> None:
        self._plan = plan
        self.pid = pid

    def is_alive(self) -> bool:
        return _is_postmaster_of(self.pid, self._plan.data_folder, self._plan.cluster_name, self._plan.uid)


class PostmasterSupervisor:
    """Starts the postmaster, restarts it when it dies, and stops it when it has no users."""

    def __init__(self, plan: ServerStartPlan) -> None:
        self.plan = plan
        self.folder = Path(plan.folder)
        self.log_path = self.folder / "server.log"
        self.log = os.open(self.log_path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        self.users = os.open(self.folder / "users.lock", os.O_RDWR)
        self.stop_signal: str | None = None
        self.idle_since: float | None = None
        self.restarts = 0
        self.up_since = time.monotonic()
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, self._handle_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _handle_signal(self, number: int, _: object) -> None:
        if number != signal.SIGCHLD:  # SIGCHLD only ends the pause
            self.stop_signal = signal.Signals(number).name

    def log_line(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        os.write(self.log, f"{stamp} [{os.getpid()}] holdfast supervisor: {text}\n".encode(errors="replace"))

    def run(self) -> int:
        pid = find_postmaster_pid(self.plan.data_folder, self.plan.cluster_name, self.plan.uid)
        server = AdoptedPostmaster(self.plan, pid) if pid else ChildPostmaster(self.plan, self.log)
        if isinstance(server, ChildPostmaster) and not self._wait_until_ready(server):
            return 1
        while True:
            self._sleep_until_signal(POLL_INTERVAL_S)
            if reason := self._find_stop_reason():
                return self._stop_postmaster(server, reason)
            if not server.is_alive():
                revived = self._restart_postmaster(server)
                if revived is None:
                    return 1
                server = revived
            self._trim_log()

    def _sleep_until_signal(self, seconds: float) -> None:
        if select.select([self._wake], [], [], seconds)[0]:
            os.read(self._wake, 4096)

    def _wait_until_ready(self, server: ChildPostmaster) -> bool:
        """Wait until the server accepts connections, even during a recovery. Return False if it dies."""
        while server.is_alive():
            if is_postmaster_ready(self.plan.data_folder, server.pid) or self._find_stop_request():
                return True  # for a stop request, the main loop stops the server
            self._sleep_until_signal(0.02)
        return False

    def _find_stop_request(self) -> str | None:
        if self.stop_signal:
            return self.stop_signal
        if (self.folder / "stop").exists():
            return "stop requested"
        try:
            here = (self.folder / "users.lock").stat()
        except FileNotFoundError:
            return "the folder was deleted"
        return None if os.path.samestat(here, os.fstat(self.users)) else "the folder was replaced"

    def _find_stop_reason(self) -> str | None:
        if reason := self._find_stop_request():
            return reason
        if self._should_keep_running():
            self.idle_since = None
            return None
        now = time.monotonic()
        self.idle_since = now if self.idle_since is None else self.idle_since
        if now - self.idle_since < IDLE_TIMEOUT_S or not try_exclusive_lock(self.users):
            return None
        if not self._has_keep_request() and not count_clients(self.plan.port):
            return "the last user is gone"  # no new user can come: users.lock stays locked
        fcntl.flock(self.users, fcntl.LOCK_UN)
        return None

    def _should_keep_running(self) -> bool:
        if self._has_keep_request() or not try_exclusive_lock(self.users):
            return True
        fcntl.flock(self.users, fcntl.LOCK_UN)
        return count_clients(self.plan.port) > 0  # last, because the list of all connections may be long

    def _has_keep_request(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if (self.folder / "linger").stat().st_mtime > time.time():
                return True
        return (self.folder / "keep").exists()

    def _restart_postmaster(self, dead: ChildPostmaster | AdoptedPostmaster) -> ChildPostmaster | None:
        if time.monotonic() - self.up_since > STEADY_UPTIME_S:
            self.restarts = 0
        while self.restarts < MAX_RESTARTS:
            if not self._should_keep_running():
                self.log_line(f"the server (pid {dead.pid}) died and has no users; not restarting it")
                return None
            self._sleep_until_signal(min(3.0, 0.1 * 3**self.restarts) if self.restarts else 0)
            self.restarts += 1
            if self._find_stop_request():
                return None
            self.log_line(f"the server (pid {dead.pid}) died; restarting it, attempt {self.restarts}")
            self._clean_up_after_postmaster(dead.pid)
            dead = ChildPostmaster(self.plan, self.log)
            if self._wait_until_ready(dead):
                self.up_since = time.monotonic()
                return dead
        self.log_line(f"gave up: the server died {MAX_RESTARTS} times in a row; see the log above")
        return None

    def _clean_up_after_postmaster(self, pid: int) -> None:
        end_orphan_processes(self.plan.cluster_name, self.plan.uid)
        with contextlib.suppress(OSError):
            # Another program can get this process id at any time; PostgreSQL would then refuse to start.
            if read_pid_file(self.plan.data_folder)[0] == str(pid):
                Path(self.plan.data_folder, "postmaster.pid").unlink()

    def _stop_postmaster(self, server: ChildPostmaster | AdoptedPostmaster, reason: str) -> int:
        self.log_line(f"stopping: {reason}")
        for name, seconds in SHUTDOWN_STEPS:
            if server.is_alive():
                send_signal(server.pid, signal.Signals[name])
            deadline = time.monotonic() + seconds
            while server.is_alive() and time.monotonic() < deadline:
                self._sleep_until_signal(0.02)
        if server.is_alive():
            self.log_line(f"the server (pid {server.pid}) did not stop")
            return 1
        return 0

    def _trim_log(self) -> None:
        with contextlib.suppress(OSError):
            if self.log_path.stat().st_size > MAX_LOG_BYTES:
                shutil.copyfile(self.log_path, f"{self.log_path}.1")
                os.truncate(self.log_path, 0)  # every writer appends, so no offset is invalid


def try_exclusive_lock(handle: int) -> bool:
    """Acquire an exclusive file lock without waiting. Return whether it was acquired."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main() -> int:
    fields: dict[str, Any] = json.load(sys.stdin)
    plan = ServerStartPlan(**fields)
    lock = os.open(Path(plan.folder, "supervisor.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(50):  # a process that checks for a supervisor holds the lock for a moment
        if try_exclusive_lock(lock):
            break
        time.sleep(0.01)
    else:
        return 3
    if os.fork():
        os._exit(0)  # our parent need not reap us; the child keeps the lock
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    supervisor = PostmasterSupervisor(plan)
    try:
        return supervisor.run()
    except Exception:
        supervisor.log_line(traceback.format_exc())
        raise


if __name__ == "__main__":
    sys.exit(main())
