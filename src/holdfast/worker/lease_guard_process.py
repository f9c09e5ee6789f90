"""The lease guard process: ends child processes whose leases were not renewed in time.

A worker that is frozen cannot end its child processes, and a child that holds the GIL cannot end itself. This
process needs neither of them: it reads the deadline of every child from memory that it shares with the
worker, sleeps until the earliest one, and kills the process group of a child that is past its deadline. It
also kills what is left of a process group when the child at its head or the worker is gone.

The worker runs this file as a script with few imports, so that the process is small and starts quickly.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import Final, NamedTuple

WATCH_COMMAND: Final = b"W"  # watch the child process `pid`, whose deadline is in `slot`
FORGET_COMMAND: Final = b"F"  # the worker has seen the end of this child process
READ_DEADLINES_COMMAND: Final = b"R"  # a deadline may be earlier than before
COMMAND_STRUCT: Final = struct.Struct("<cIq")  # command, slot, pid
# In the byte order and alignment of the machine: each field is then written at once, never byte by byte.
SLOT_STRUCT: Final = struct.Struct("@dd")  # deadline (monotonic clock), whether this process ended the child
DEADLINE_STRUCT: Final = struct.Struct("@d")
EXPIRED_OFFSET: Final = DEADLINE_STRUCT.size


class WatchedChild(NamedTuple):
    pid: int
    slot: int
    pidfd: int | None  # None where the system has no such descriptors


class LeaseGuardProcess:
    """Watches the child processes of one worker until that worker ends."""

    def __init__(self, connection: socket.socket, slots: mmap.mmap) -> None:
        self._connection = connection
        self._slots = slots
        self._received = b""
        self._children: dict[int, WatchedChild] = {}
        self._pids_by_pidfd: dict[int, int] = {}
        self._poller = select.poll()
        self._poller.register(connection, select.POLLIN)

    def run(self) -> None:
        """Watch until the worker closes its end of the socket, as it does when it dies."""
        worker_is_alive = True
        while worker_is_alive:
            descriptors = {descriptor for descriptor, _ in self._poller.poll(self._compute_pause_ms())}
            has_commands = self._connection.fileno() in descriptors
            # Commands come last: they may close descriptors that are in this list, and open others.
            for descriptor in descriptors - {self._connection.fileno()}:
                self._end_child(self._pids_by_pidfd[descriptor])
            if has_commands:
                worker_is_alive = self._read_commands()
            self._end_expired_children()
        for pid in list(self._children):
            self._end_child(pid)

    def _compute_pause_ms(self) -> int | None:
        deadline = min((self._read_deadline(child) for child in self._children.values()), default=math.inf)
        if deadline == math.inf:
            return None
        return max(0, math.ceil((deadline - time.monotonic()) * 1000))

    def _read_deadline(self, child: WatchedChild) -> float:
        deadline: float = DEADLINE_STRUCT.unpack_from(self._slots, child.slot * SLOT_STRUCT.size)[0]
        return deadline

    def _end_expired_children(self) -> None:
        now = time.monotonic()
        for child in list(self._children.values()):
            if self._read_deadline(child) <= now:
                # First the mark, then the kill: the worker reads it when it sees the end of the child.
                DEADLINE_STRUCT.pack_into(self._slots, child.slot * SLOT_STRUCT.size + EXPIRED_OFFSET, 1.0)
                self._end_child(child.pid)

    def _read_commands(self) -> bool:
        """Read commands from the worker. Return False if the worker is gone."""
        try:
            received = self._connection.recv(1 << 16)
        except OSError:
            return False
        if not received:
            return False
        self._received += received
        complete = len(self._received) - len(self._received) % COMMAND_STRUCT.size
        commands, self._received = self._received[:complete], self._received[complete:]
        for command, slot, pid in COMMAND_STRUCT.iter_unpack(commands):
            if command == WATCH_COMMAND:
                self._watch_child(slot, pid)
            elif command == FORGET_COMMAND:
                self._forget_child(pid)
        return True

    def _watch_child(self, slot: int, pid: int) -> None:
        pidfd: int | None = None
        if sys.platform == "linux":
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:  # the child is gone already; its process group may not be
                self._end_child(pid)
                return
            self._poller.register(pidfd, select.POLLIN)
            self._pids_by_pidfd[pidfd] = pid
        self._children[pid] = WatchedChild(pid, slot, pidfd)

    def _forget_child(self, pid: int) -> None:
        child = self._children.pop(pid, None)
        if child is not None and child.pidfd is not None:
            del self._pids_by_pidfd[child.pidfd]
            self._poller.unregister(child.pidfd)
            os.close(child.pidfd)

    def _end_child(self, pid: int) -> None:
        """Kill the process group of a child process, which has the number of the child."""
        self._forget_child(pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def main() -> None:
    """Run the lease guard process. The arguments are descriptors: the socket and the shared memory."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # sent to the worker; this process ends with it
    connection = socket.socket(fileno=int(sys.argv[1]))
    LeaseGuardProcess(connection, mmap.mmap(int(sys.argv[2]), 0)).run()


if __name__ == "__main__":
    main()
