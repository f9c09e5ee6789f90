"""The parent process of one Chromium or another program: it limits the program and ends with the worker.

The worker runs this file as a script with the options of `parse_launcher_options`. It imports nothing but the
standard library, so that it starts in milliseconds and stays small.

The launcher starts Chromium as an unprivileged user, and watches three things:

- its standard input, a pipe that only the worker holds. The pipe closes when the worker dies, also by
  kill -9.
- the processes of Chromium. All of them stay descendants of the launcher, which adopts orphans (subreaper).
- their memory and their number. Chromium reserves more address space than any `ulimit` allows, so that only
  measuring works.

At the end it kills all descendants and removes the profile. If the worker has died, it also removes the
folder of the option `work_folder`, which nobody else would remove. Chromium itself dies with the launcher
(PDEATHSIG).

`media/programs.py` runs ffmpeg and other programs with the same launcher.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import shutil
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
WATCH_INTERVAL_S = 0.5
# Exit codes of the launcher that tell the worker which limit Chromium exceeded.
EXIT_TOO_MUCH_MEMORY = 77
EXIT_TOO_MANY_PROCESSES = 78
EXIT_NOT_STARTED = 79
# The descriptors on which Chromium expects its debugging pipe.
CHROMIUM_INPUT_FD, CHROMIUM_OUTPUT_FD = 3, 4
MIN_FREE_FD = 10
# The worker, its heartbeat and an API on the same machine come first: with this, about three times as often.
NICENESS = 5


def set_process_option(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def lower_priority() -> None:
    """Let other processes of the machine come first.

    Where the kernel gives each session the same share (autogroup), niceness counts inside the session only,
    and the session has a niceness of its own.
    """
    os.nice(NICENESS)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:  # noqa: PTH123
            file.write(str(NICENESS))


def find_descendants(root: int) -> list[int]:
    """Return all living descendants of a process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  (pathlib is slow to import)
        if name.isdigit() and (parent := read_parent(name)) is not None:
            children.setdefault(parent, []).append(int(name))
    descendants: list[int] = []
    pending = [root]
    while pending:
        pids = children.pop(pending.pop(), [])
        descendants += pids
        pending += pids
    return descendants


def read_parent(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            # The name of the program, in parentheses, may itself contain parentheses and spaces.
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state in (b"Z", b"X") else int(parent)


def measure_memory(pids: list[int]) -> int:
    """Return the bytes of private and shared memory of processes, without the pages of program files."""
    kibibytes = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123
            for line in file:
                if line.startswith((b"RssAnon:", b"RssShmem:")):
                    kibibytes += int(line.split()[1])
    return kibibytes * 1024


def start_chromium(command: list[str], pipe: tuple[int, int], user: tuple[int, int] | None) -> int:
    """Start Chromium in a child process and return its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        set_up_chromium_process(pipe, user)
        os.execv(command[0], command)  # noqa: S606
    except BaseException as error:
        os.write(2, f"Chromium cannot be started: {error}\n".encode())
    os._exit(EXIT_NOT_STARTED)


def set_up_chromium_process(pipe: tuple[int, int], user: tuple[int, int] | None) -> None:
    # Both ends are copied away first, because either may occupy a descriptor that the other needs.
    input_fd, output_fd = (fcntl.fcntl(fd, fcntl.F_DUPFD, MIN_FREE_FD) for fd in pipe)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    os.dup2(input_fd, CHROMIUM_INPUT_FD)
    os.dup2(output_fd, CHROMIUM_OUTPUT_FD)
    os.closerange(CHROMIUM_OUTPUT_FD + 1, 256)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if user is not None:
        os.setgroups([])
        os.setgid(user[1])
        os.setuid(user[0])
    # A change of the user resets this option, so it comes last.
    set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def watch_chromium(pid: int, max_memory_bytes: int, max_processes: int) -> int:
    """Wait until the worker closes the pipe, Chromium ends or a limit is exceeded. Return an exit code."""
    child_ended, notify_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(notify_fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, note_ended_child)
    is_first = True
    while True:
        # The program may have ended before the signal was awaited.
        readable, _, _ = select.select([0, child_ended], [], [], 0 if is_first else WATCH_INTERVAL_S)
        is_first = False
        if 0 in readable and not os.read(0, 4096):
            return 0
        if child_ended in readable:
            os.read(child_ended, 4096)
        exit_code = reap_children(pid)
        if exit_code is not None:
            return exit_code
        pids = find_descendants(os.getpid())
        if len(pids) > max_processes:
            return EXIT_TOO_MANY_PROCESSES
        if measure_memory(pids) > max_memory_bytes:
            return EXIT_TOO_MUCH_MEMORY


def reap_children(chromium: int) -> int | None:
    """Collect ended children. Return the exit code of Chromium if it was among them."""
    exit_code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == chromium:
                exit_code = abs(os.waitstatus_to_exitcode(ended[1]))
    return exit_code


def kill_descendants() -> None:
    """Kill all descendants, and wait until none is left. Killed parents leave their children to us."""
    while pids := find_descendants(os.getpid()):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def parse_launcher_options(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Split `name=value ... -- command ...` into the options and the command."""
    split = arguments.index("--")
    options = dict(argument.split("=", 1) for argument in arguments[:split])
    return options, arguments[split + 1 :]


def stop_on_signal(number: int, frame: object) -> None:
    raise SystemExit(0)


def note_ended_child(number: int, frame: object) -> None:
    """Do nothing: Python writes to the wakeup descriptor only for signals that have a function."""


def main() -> int:
    options, command = parse_launcher_options(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop_on_signal)
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    # A second way to notice the death of the worker, if another process has inherited the pipe.
    set_process_option(PR_SET_PDEATHSIG, signal.SIGTERM)
    pipe = (int(options["input_fd"]), int(options["output_fd"]))
    user = (int(options["uid"]), int(options["gid"])) if "uid" in options else None
    try:
        if os.getppid() != int(options["worker_pid"]):
            return 0
        lower_priority()
        pid = start_chromium(command, pipe, user)
        for fd in pipe:
            os.close(fd)
        return watch_chromium(pid, int(options["max_memory_bytes"]), int(options["max_processes"]))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kill_descendants()
        shutil.rmtree(options["profile"], ignore_errors=True)
        if "work_folder" in options and os.getppid() != int(options["worker_pid"]):
            shutil.rmtree(options["work_folder"], ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
