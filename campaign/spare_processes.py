"""Spare processes that a worker of the campaign forks in advance, so that a child starts in milliseconds.

A worker starts a Python process for its heartbeat and for each child that runs suspect tasks. In a run that
kills workers within a second these starts would take most of the time. So a worker forks a few processes
before it starts, and `SpareProcess` passes a command to one of them where `Popen` would start a program: the
same code in its own process, with the same parent, the same descriptors and its own session.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Sequence

from campaign.records import get_process_key
from holdfast.cli import child
from holdfast.worker import child_process as isolation_process
from holdfast.worker import heartbeat, heartbeat_process

__all__ = ["fork_spares", "process_keys"]

process_keys: dict[int, int] = {}  # process key by pid, for every started process
MIN_TEMPORARY_DESCRIPTOR = 200  # above the numbers that the command expects
_ready: list[tuple[int, socket.socket]] = []


def fork_spares(count: int) -> None:
    """Fork `count` spare processes and let the worker use them. Call it before threads or a loop exist."""
    for _ in range(count):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            _wait_for_command(theirs)
        theirs.close()
        _ready.append((pid, ours))
    for module in (heartbeat, isolation_process):
        module.subprocess = types.SimpleNamespace(**vars(subprocess))  # type: ignore[attr-defined]
        module.subprocess.Popen = start_process


def start_process(command: Sequence[str], **popen_options: object) -> subprocess.Popen[bytes]:
    """Use a spare process if one is left, else start a program."""
    started = SpareProcess(command, **popen_options) if _ready else subprocess.Popen(command, **popen_options)  # type: ignore[call-overload]
    process_keys[started.pid] = get_process_key(started.pid)
    return started


class SpareProcess(subprocess.Popen[bytes]):
    def __init__(
        self, command: Sequence[str], **popen_options: object
    ) -> None:  # super() would start a program
        self.args = list(command)
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._waitpid_lock = threading.Lock()
        numbers = list(popen_options["pass_fds"])  # type: ignore[call-overload]
        descriptors = list(numbers)
        if popen_options.get("stdout") == subprocess.PIPE:
            reading, writing = os.pipe()
            self.stdout = os.fdopen(reading, "rb")
            descriptors.append(writing)
        self.pid, line = _ready.pop()
        with line:
            socket.send_fds(line, [json.dumps([list(command), numbers]).encode()], descriptors)
        for number in descriptors[len(numbers) :]:
            os.close(number)


def _wait_for_command(line: socket.socket) -> None:
    """Wait in the spare process for a command. Exit when the worker exits first."""
    code = 1
    try:
        _close_all_but(line.fileno())
        message, received, _, _ = socket.recv_fds(line, 1 << 16, 16)
        if message:
            command, numbers = json.loads(message)
            line.close()
            _move_descriptors(received, numbers)
            os.setsid()
            code = _run_command(command)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        os._exit(code)


def _run_command(command: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main: Callable[[], None] = heartbeat_process.main
    start = 2
    if "-m" in command:
        main, start = child.main, command.index("-m") + 1
    sys.argv = command[start:]
    main()
    return 0


def _close_all_but(kept: int) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > 2 and int(name) != kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _move_descriptors(received: list[int], numbers: list[int]) -> None:
    """Move each descriptor to the number that the command names. One more is standard output."""
    high = [fcntl.fcntl(number, fcntl.F_DUPFD, MIN_TEMPORARY_DESCRIPTOR) for number in received]
    for number in received:
        os.close(number)
    for number, target in zip(high, [*numbers, 1], strict=False):
        os.dup2(number, target)
    if len(high) > len(numbers):
        os.dup2(1, 2)
    for number in high:
        os.close(number)
