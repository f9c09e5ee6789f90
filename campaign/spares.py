"""Processes kept ready for a worker that will want some: forked, so that they cost milliseconds.

A worker starts Python twice in its life: for the process that renews its leases and for children that run its
suspects. In a run that kills it within a second this would be most of what is done. So a worker of a run
forks a few processes before it starts, and `Spare` hands a command to one of them where `Popen` would start
it: the same code, in a process of its own, with the same parent, descriptors and a session of its own.
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

from campaign.records import life_of
from holdfast.cli import child
from holdfast.worker import heartbeat, heartbeat_child, isolation_process

__all__ = ["keep", "lives"]

lives: dict[int, int] = {}  # of the processes that were started, by their pids
HIGH = 200  # descriptors are put here first, out of the way of the numbers they are wanted at
_ready: list[tuple[int, socket.socket]] = []


def keep(count: int) -> None:
    """Fork them, and have the worker's parts take them. Before it has threads or a loop."""
    for _ in range(count):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            _wait(theirs)
        theirs.close()
        _ready.append((pid, ours))
    for module in (heartbeat, isolation_process):
        module.subprocess = types.SimpleNamespace(**vars(subprocess))  # type: ignore[attr-defined]
        module.subprocess.Popen = popen


def popen(command: Sequence[str], **how: object) -> subprocess.Popen[bytes]:
    """A spare if there is one left."""
    started = Spare(command, **how) if _ready else subprocess.Popen(command, **how)  # type: ignore[call-overload]
    lives[started.pid] = life_of(started.pid)
    return started


class Spare(subprocess.Popen[bytes]):
    def __init__(self, command: Sequence[str], **how: object) -> None:  # super() would start something
        self.args = list(command)
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._waitpid_lock = threading.Lock()
        numbers = list(how["pass_fds"])  # type: ignore[call-overload]
        given = list(numbers)
        if how.get("stdout") == subprocess.PIPE:
            reading, writing = os.pipe()
            self.stdout = os.fdopen(reading, "rb")
            given.append(writing)
        self.pid, line = _ready.pop()
        with line:
            socket.send_fds(line, [json.dumps([list(command), numbers]).encode()], given)
        for number in given[len(numbers) :]:
            os.close(number)


def _wait(line: socket.socket) -> None:
    """In the spare, until it is told what to be; if its worker is gone before, it was not needed."""
    code = 1
    try:
        _close_all_but(line.fileno())
        said, received, _, _ = socket.recv_fds(line, 1 << 16, 16)
        if said:
            command, numbers = json.loads(said)
            line.close()
            _place(received, numbers)
            os.setsid()
            code = _become(command)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        os._exit(code)


def _become(command: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main: Callable[[], None] = heartbeat_child.main
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


def _place(received: list[int], numbers: list[int]) -> None:
    """Each at the number that the command names; one more is where to write."""
    high = [fcntl.fcntl(number, fcntl.F_DUPFD, HIGH) for number in received]
    for number in received:
        os.close(number)
    for number, wanted in zip(high, [*numbers, 1], strict=False):
        os.dup2(number, wanted)
    if len(high) > len(numbers):
        os.dup2(1, 2)
    for number in high:
        os.close(number)
