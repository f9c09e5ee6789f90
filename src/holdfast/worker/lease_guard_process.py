"""The lease guard process: ends child processes whose leases were not renewed in time.

A worker that is frozen cannot end its child processes, and a child that holds the GIL cannot end itself. This
process needs neither of them: it reads the deadline of every child from memory that it shares with the
worker, sleeps until the earliest one, and kills the process group of a child that is past its deadline. A
worker whose GIL is held cannot move deadlines, so the renewals of its heartbeat process count too. The guard
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
# In the byte order and alignment of the machine: each instant is then written at once, never byte by byte.
# A slot: deadline (monotonic clock), whether this process ended the child, seconds of the lease, lease key.
SLOT_STRUCT: Final = struct.Struct("@ddd28s4x")
# A renewal that the heartbeat process recorded: lease key, when the renewal was sent.
RENEWAL_STRUCT: Final = struct.Struct("@28s4xd")
RENEWALS_OFFSET: Final = 4096  # the first page of that memory has other uses
DEADLINE_STRUCT: Final = struct.Struct("@d")
EXPIRED_OFFSET: Final = DEADLINE_STRUCT.size
# A child is ended this share of its lease before the lease ends. A worker that is alive stops an attempt
# earlier (LEASE_SAFETY_SHARE), so that the task can end in order.
CHILD_KILL_LEASE_SHARE: Final = 0.1


class WatchedChild(NamedTuple):
    pid: int
    slot: int
    pidfd: int | None  # None where the system has no such descriptors


class LeaseGuardProcess:
    """Watches the child processes of one worker until that worker ends."""

    def __init__(self, connection: socket.socket, slots: mmap.mmap, renewals: mmap.mmap | None) -> None:
        self._connection = connection
        self._slots = slots
        self._renewals = renewals
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
        now = time.monotonic()
        deadlines = (self._read_deadline(child, now) for child in self._children.values())
        deadline = min(deadlines, default=math.inf)
        return None if deadline == math.inf else max(0, math.ceil((deadline - now) * 1000))

    def _read_deadline(self, child: WatchedChild, now: float) -> float:
        deadline, _, lease_s, key = SLOT_STRUCT.unpack_from(self._slots, child.slot * SLOT_STRUCT.size)
        if deadline <= now:  # the worker may not have been able to move it
            renewed_at = self._find_renewal(key)
            deadline = max(deadline, renewed_at + lease_s * (1 - CHILD_KILL_LEASE_SHARE))
        return float(deadline)

    def _find_renewal(self, lease_key: bytes) -> float:
        """Return when the last renewal that the heartbeat process recorded was sent, or minus infinity."""
        if self._renewals is None:
            return -math.inf
        size = len(self._renewals) - (len(self._renewals) - RENEWALS_OFFSET) % RENEWAL_STRUCT.size
        entries = RENEWAL_STRUCT.iter_unpack(self._renewals[RENEWALS_OFFSET:size])
        return max((sent_at for key, sent_at in entries if key == lease_key), default=-math.inf)

    def _end_expired_children(self) -> None:
        now = time.monotonic()
        for child in list(self._children.values()):
            if self._read_deadline(child, now) <= now:
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
    """Run the lease guard process.

    The arguments are descriptors: the socket, the memory with the deadlines, and the memory in which the
    heartbeat process records renewals, if there is one.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # sent to the worker; this process ends with it
    connection = socket.socket(fileno=int(sys.argv[1]))
    slots, *renewals = (mmap.mmap(int(descriptor), 0) for descriptor in sys.argv[2:])
    LeaseGuardProcess(connection, slots, renewals[0] if renewals else None).run()


if __name__ == "__main__":
    main()
