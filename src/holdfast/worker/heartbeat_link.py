"""The worker's link to its heartbeat process: starts it, sends frames to it, and checks that it answers.

The worker sends pings, at most one at a time, and the process answers each. A process that does not answer
is silent: perhaps nobody renews the leases, so the worker claims nothing. A process that stays silent is
killed, and the heartbeat starts another one.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from holdfast.worker import heartbeat_protocol as protocol
from holdfast.worker.framing import encode_frame

HEARTBEAT_SHUTDOWN_TIMEOUT_S = 2.0
SOCKET_BUFFER_BYTES = 1 << 20
PING_INTERVAL_S = 1.0  # while the worker holds leases or messages
IDLE_PING_INTERVAL_S = 15.0
MAX_PING_ANSWER_WAIT_S = 1.5  # the worker claims nothing while a ping is unanswered for longer
MAX_ANSWER_AGE_S = (
    PING_INTERVAL_S + MAX_PING_ANSWER_WAIT_S
)  # tasks are started only after an answer that is not older
# A silent process is killed after this many checks, one every quarter of a second. Checks are counted, not
# seconds: after a pause of the whole machine or container, the answer may be on its way.
MAX_UNANSWERED_CHECKS = 14
MAX_UNANSWERED_CHECKS_DURING_START = 120  # a new process imports the package before it answers
_HEARTBEAT_PROCESS_CODE = "from holdfast.worker.heartbeat_process import main; main()"


class HeartbeatLink:
    """The heartbeat process of a worker and the socket to it. Frames can be sent from any thread."""

    def __init__(self, memory_descriptor: int) -> None:
        self._memory_descriptor = memory_descriptor
        self._process: subprocess.Popen[bytes] | None = None
        self.socket: socket.socket | None = None
        self._unsent = bytearray()
        self._sending = threading.Lock()
        self._pinging = threading.Lock()
        self._pinged_at: float | None = None  # when the unanswered ping was sent
        self._answered_at = float("-inf")  # when the last ping that was answered had been sent
        self._has_answered = False  # this process, since it was started
        self._unanswered_checks = 0
        self._answered = asyncio.Event()
        self._waiting_for_answer = False
        self.worker_loop: asyncio.AbstractEventLoop | None = None
        self.on_answer_after_silence: Callable[[], None] = lambda: None  # called on the worker's event loop

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    # The process

    def start_process(self) -> None:
        """Start the heartbeat process. Kill the one before: two would undo each other's renewals."""
        worker_end, process_end = socket.socketpair()
        worker_end.setblocking(False)
        for end in (worker_end, process_end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        descriptors = (process_end.fileno(), self._memory_descriptor)
        self._end_process()
        with process_end:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _HEARTBEAT_PROCESS_CODE, *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        with self._pinging:
            self._pinged_at, self._has_answered, self._unanswered_checks = None, False, 0
        with self._sending:
            old_socket, self.socket, self._unsent = self.socket, worker_end, bytearray()
        if old_socket is not None:
            old_socket.close()

    def kill_process(self) -> None:
        if self._process is not None:
            self._process.kill()

    def close(self, *, wait: bool) -> None:
        """Close the socket to the heartbeat process. With `wait`, wait until the process exits.

        Otherwise the process releases the remaining leases after this worker has ended.
        """
        if self.socket is not None:
            self.socket.close()
        if self._process is not None and wait:
            try:
                self._process.wait(HEARTBEAT_SHUTDOWN_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._end_process()  # it holds nothing

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.kill()
            try:
                self._process.wait(HEARTBEAT_SHUTDOWN_TIMEOUT_S)
            except subprocess.TimeoutExpired:  # it waits for a disk and dies later; attempts must be watched
                return

    # Frames

    @property
    def has_unsent_bytes(self) -> bool:
        return bool(self._unsent)

    def send_frame(self, kind: bytes, body: bytes = b"") -> None:
        self.send_bytes(encode_frame(kind, body))

    def send_bytes(self, message: bytes) -> None:
        with self._sending:
            if self._unsent:
                self._unsent += message
                message = bytes(self._unsent)
                self._unsent.clear()
            try:
                sent = self.socket.send(message) if self.socket is not None else 0
            except BlockingIOError:
                sent = 0
            except OSError:  # the process died; its replacement receives everything again
                return
            if sent < len(message):
                self._unsent += message[sent:]

    # Pings

    @property
    def is_unresponsive(self) -> bool:
        """Whether the process has not answered a ping in time, or not yet answered its first ping."""
        pinged_at = self._pinged_at
        return not self._has_answered or (
            pinged_at is not None and time.monotonic() > pinged_at + MAX_PING_ANSWER_WAIT_S
        )

    def ping_if_answer_is_old(self) -> None:
        """Ping the process if its last answer is old, as after an idle time. Called with every claim."""
        self.send_ping_if_due(MAX_ANSWER_AGE_S)

    async def wait_for_answer(self) -> bool:
        """Return whether the process has answered recently. Wait for an answer if necessary.

        Called on the worker's event loop before claimed tasks start: nobody would renew their leases.
        """
        if self._has_recent_answer():
            return True
        self._waiting_for_answer = True
        self.send_ping()
        try:
            async with asyncio.timeout(MAX_PING_ANSWER_WAIT_S):
                while not self._has_recent_answer():
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting_for_answer = False
        return True

    def _has_recent_answer(self) -> bool:
        return self._has_answered and time.monotonic() <= self._answered_at + MAX_ANSWER_AGE_S

    def send_ping(self) -> None:
        """Send a ping, unless one is unanswered."""
        with self._pinging:
            if self._pinged_at is not None:
                return
            self._pinged_at = time.monotonic()
        self.send_frame(protocol.PING_FRAME_TYPE)

    def send_ping_if_due(self, interval_s: float) -> None:
        if self._pinged_at is None and time.monotonic() >= self._answered_at + interval_s:
            self.send_ping()

    def record_answer(self) -> None:
        """Record the answer to the ping. Called in the heartbeat thread."""
        with self._pinging:
            pinged_at = self._pinged_at
            # Earlier than `is_unresponsive`, which another thread may ask in this moment.
            was_late = not self._has_answered or (
                pinged_at is not None and time.monotonic() > pinged_at + MAX_PING_ANSWER_WAIT_S / 2
            )
            if pinged_at is not None:
                self._answered_at = pinged_at
            self._pinged_at, self._has_answered, self._unanswered_checks = None, True, 0
        if self.worker_loop is None or self.worker_loop.is_closed():
            return
        if self._waiting_for_answer:
            self.worker_loop.call_soon_threadsafe(self._answered.set)
        if was_late:
            self.worker_loop.call_soon_threadsafe(self.on_answer_after_silence)

    def must_be_replaced(self) -> bool:
        """Return whether the process has not answered for too long.

        Called four times a second.
        """
        self._unanswered_checks = 0 if self._pinged_at is None else self._unanswered_checks + 1
        max_checks = MAX_UNANSWERED_CHECKS if self._has_answered else MAX_UNANSWERED_CHECKS_DURING_START
        return self._unanswered_checks > max_checks
