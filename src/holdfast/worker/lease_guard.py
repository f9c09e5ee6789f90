"""The worker's side of the lease guard: the deadlines of child processes, and the process that enforces them.

A task in a child process must not outlive its lease, also when the worker is frozen and the task holds the
GIL. So a small process (lease_guard_process.py) watches the deadline of each child. A confirmed renewal of
the lease moves the deadline: one write to shared memory, from any thread. While the worker cannot write,
because a task holds its GIL, the guard reads the renewals of the heartbeat process itself (renewal_table.py).
"""

from __future__ import annotations

import contextlib
import math
import mmap
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import BinaryIO, Final, cast

from holdfast.worker import lease_guard_process as protocol
from holdfast.worker.attempts import Attempt
from holdfast.worker.heartbeat_protocol import encode_lease_key

GUARD_EXIT_TIMEOUT_S: Final = 2.0
MAX_WATCHED_CHILDREN: Final = 4096
COMMAND_BUFFER_BYTES: Final = 1 << 16
_GUARD_SCRIPT: Final = Path(__file__).with_name("lease_guard_process.py")


class ChildDeadline:
    """The deadline of one child process. It is infinite while the child runs no task."""

    def __init__(self, guard: LeaseGuard, slot: int, pid: int) -> None:
        self._guard = guard
        self.slot = slot
        self.pid = pid
        self._attempt: Attempt | None = None
        self._lock = threading.Lock()
        guard.write_slot(slot, 0.0, b"")

    def begin_attempt(self, attempt: Attempt) -> None:
        """Set the deadline for an attempt, before the child receives it, and follow the lease's renewals."""
        attempt.on_renewed = self.extend
        with self._lock:
            self._attempt = attempt
            # Without a deadline first, which counts as soon as it is written.
            self._guard.write_slot(self.slot, attempt.claimed.lease_s, encode_lease_key(attempt.claimed))
            self._guard.write_deadline(self.slot, _compute_deadline(attempt))
        self._guard.announce_deadline()

    def extend(self, attempt: Attempt) -> None:
        """Move the deadline after a confirmed renewal. Called in the heartbeat's thread."""
        with self._lock:
            if self._attempt is attempt:
                self._guard.write_deadline(self.slot, _compute_deadline(attempt))

    def end_attempt(self) -> None:
        with self._lock:
            self._attempt = None
            self._guard.write_deadline(self.slot, math.inf)

    @property
    def has_expired(self) -> bool:
        """Whether the guard ended the child process."""
        return self._guard.read_expired(self.slot)

    def release(self) -> None:
        """Return the slot after the end of the child process."""
        self.end_attempt()
        self._guard.forget_child(self)


def _compute_deadline(attempt: Attempt) -> float:
    return attempt.renewed_at + attempt.claimed.lease_s * (1 - protocol.CHILD_KILL_LEASE_SHARE)


class LeaseGuard:
    """Starts the guard process with the first child process, and again if the guard process dies."""

    def __init__(self) -> None:
        self.renewals_descriptor: int | None = None  # of the heartbeat's shared memory (renewal_table.py)
        self._free_slots = list(range(MAX_WATCHED_CHILDREN - 1, -1, -1))
        self._deadlines: dict[int, ChildDeadline] = {}
        self._file: BinaryIO | None = None
        self._memory = mmap.mmap(-1, 1)  # replaced with the first child
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def process_pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def watch_child(self, pid: int) -> ChildDeadline:
        """Let the guard process watch a new child process, which leads its own process group."""
        self._open_memory()
        deadline = ChildDeadline(self, self._free_slots.pop(), pid)
        self._deadlines[pid] = deadline
        if not self._start_missing_process():
            self._send_command(protocol.WATCH_COMMAND, deadline.slot, pid)
        return deadline

    def forget_child(self, deadline: ChildDeadline) -> None:
        if self._deadlines.pop(deadline.pid, None) is not None:
            self._free_slots.append(deadline.slot)
            self._send_command(protocol.FORGET_COMMAND, deadline.slot, deadline.pid)

    def announce_deadline(self) -> None:
        """Let the guard process read the deadlines again, because one of them may be earlier than before."""
        if not self._start_missing_process():
            self._send_command(protocol.READ_DEADLINES_COMMAND)

    # The shared memory

    def _open_memory(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the guard)
            self._file.truncate(MAX_WATCHED_CHILDREN * protocol.SLOT_STRUCT.size)
            self._memory = mmap.mmap(self._file.fileno(), 0)

    def write_slot(self, slot: int, lease_s: float, lease_key: bytes) -> None:
        """Write what belongs to an attempt, with a deadline that is infinite."""
        offset = slot * protocol.SLOT_STRUCT.size
        protocol.SLOT_STRUCT.pack_into(self._memory, offset, math.inf, 0.0, lease_s, lease_key)

    def write_deadline(self, slot: int, deadline: float) -> None:
        protocol.DEADLINE_STRUCT.pack_into(self._memory, slot * protocol.SLOT_STRUCT.size, deadline)

    def read_expired(self, slot: int) -> bool:
        return bool(protocol.SLOT_STRUCT.unpack_from(self._memory, slot * protocol.SLOT_STRUCT.size)[1])

    # The process

    def close(self) -> None:
        """End the guard process. It ends what is left of the child processes."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            try:
                self._process.wait(GUARD_EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._socket = None
        if self._file is not None:
            self._file.close()

    def _start_missing_process(self) -> bool:
        """Start the guard process if there is none. Return whether it was started."""
        if self._process is not None and self._process.poll() is None:
            return False
        if self._socket is not None:
            self._socket.close()
        worker_end, guard_end = socket.socketpair()
        worker_end.setblocking(False)
        # Small, so that a guard process that does not read is noticed after a few commands.
        worker_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, COMMAND_BUFFER_BYTES)
        descriptors = [guard_end.fileno(), cast("BinaryIO", self._file).fileno()]
        if self.renewals_descriptor is not None:
            descriptors.append(self.renewals_descriptor)
        with guard_end:
            # Isolated and without site packages: it starts in milliseconds and needs nothing of them.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD_SCRIPT), *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._socket = worker_end
        pack = protocol.COMMAND_STRUCT.pack
        children = self._deadlines.values()
        self._send_bytes(b"".join(pack(protocol.WATCH_COMMAND, child.slot, child.pid) for child in children))
        return True

    def _send_command(self, command: bytes, slot: int = 0, pid: int = 0) -> None:
        self._send_bytes(protocol.COMMAND_STRUCT.pack(command, slot, pid))

    def _send_bytes(self, commands: bytes) -> None:
        """Send commands. A guard process that does not read is killed; the next attempt starts another."""
        if self._socket is None or self._process is None:
            return
        try:
            sent = self._socket.send(commands)
        except OSError:
            sent = 0
        if sent < len(commands):
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
