"""The worker's side of the heartbeat: starts the heartbeat process and runs a thread that listens to it.

The process (heartbeat_process.py) receives every lease before its task starts and renews it until the outcome
is accepted. The same goes for messages (messages/visibility.py). The thread learns which leases are lost,
sends progress on its own connection, watches the event loop, and stops each attempt before its lease ends
when no renewal was confirmed. That time counts from when the last confirmed renewal was sent, so no other
worker can hold the task yet. A heartbeat process that dies is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import UUID

import msgspec

from holdfast import telemetry
from holdfast.engine.leases import LeasedTask, WorkerCommand
from holdfast.settings import Secret, Settings
from holdfast.worker import heartbeat_protocol as protocol
from holdfast.worker.attempts import STOP_REASON_UNRENEWED, Attempt, RunningAttempts
from holdfast.worker.framing import FrameDecoder, encode_frame
from holdfast.worker.heartbeat_protocol import HeartbeatStartMessage, LeaseRenewals, LoopTimestamp
from holdfast.worker.loop_watchdog import LoopWatchdog
from holdfast.worker.messages.visibility import VisibilityKeeper
from holdfast.worker.progress_reporter import ProgressReporter

HEARTBEAT_TICK_INTERVAL_S = 0.25
HEARTBEAT_SHUTDOWN_TIMEOUT_S = 2.0
HEARTBEAT_READY_TIMEOUT_S = 15.0
LOOP_BLOCKED_AFTER_S = 2.0  # an event loop that has not run for this long does not enforce time limits
STATUS_INTERVAL_S, IDLE_STATUS_INTERVAL_S = 15.0, 600.0
MAX_LEASE_CHECK_INTERVAL_S = 1.0
LEASE_CHECK_INTERVAL_SHARE = 0.05  # of the shortest lease
SOCKET_BUFFER_BYTES = 1 << 20
SHARED_MEMORY_BYTES = 1 << 16
_HEARTBEAT_PROCESS_CODE = "from holdfast.worker.heartbeat_process import main; main()"
_log = logging.getLogger("holdfast.worker")


class Heartbeat:
    """Keeps the leases of one worker alive through a heartbeat process."""

    def __init__(
        self,
        url: Secret,
        settings: Settings,
        worker: str,
        running: RunningAttempts,
        visibility: VisibilityKeeper,
        build_worker_status: Callable[[], dict[str, Any]] = dict[str, Any],
    ) -> None:
        self._url = url
        self._settings = settings
        self._worker = worker
        self._running = running
        self._visibility = visibility
        visibility.send = self._send_bytes
        self._build_worker_status = build_worker_status
        self.on_command: Callable[[WorkerCommand], None] = lambda _: None
        self._ended = threading.Event()
        self._ready = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._worker_loop: asyncio.AbstractEventLoop | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._unsent = bytearray()
        self._sending = threading.Lock()
        self._memory = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the worker ends)
        self._memory.write(bytes(SHARED_MEMORY_BYTES))
        self._memory.flush()
        self._loop_timestamp = LoopTimestamp(self._memory.fileno())
        self._progress = ProgressReporter(url, settings, worker, running.list_attempts)
        self._watchdog = LoopWatchdog(running, worker)
        self._status_sent_at = 0.0
        self._receive: Callable[[], None] = lambda: None  # reads what the process has sent

    @property
    def process_pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def loop_lag_s(self) -> float:
        """The recent delay of the worker's event loop, in seconds."""
        return self._watchdog.lag_s

    @property
    def seconds_since_loop_ran(self) -> float:
        """Seconds since the event loop last ran."""
        return self._watchdog.seconds_since_loop_ran

    @property
    def blocked_loop_report(self) -> dict[str, object] | None:
        return self._watchdog.blocked_loop_report

    @property
    def socket_descriptor(self) -> int | None:
        """The descriptor of the heartbeat socket, which child processes inherit.

        The heartbeat process notices through it when the child processes end.
        """
        return None if self._socket is None else self._socket.fileno()

    # Called on the worker's event loop

    def start(self) -> None:
        if self._thread is None:
            self._worker_loop = self._visibility.worker_loop = asyncio.get_running_loop()
            self._record_loop_run()
            self._start_process()
            self._thread = threading.Thread(target=self._run_thread, name="heartbeat", daemon=True)
            self._thread.start()

    async def wait_until_ready(self) -> None:
        """Wait until the heartbeat process is connected to the database.

        Then leases do not depend on how fast the process starts.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_READY_TIMEOUT_S):
                await self._ready.wait()

    async def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.set()
            await asyncio.to_thread(thread.join)
            holds_nothing = not len(self._running) and not self._visibility.has_messages
            self._send_frame(protocol.SHUTDOWN_FRAME, b"done" if holds_nothing else b"")
            await asyncio.to_thread(self._close_process, wait=holds_nothing)

    def update_leases(
        self, claimed: Sequence[tuple[LeasedTask, bool]], ended: Sequence[UUID], renewed_at: float
    ) -> None:
        """Send the leases of claimed tasks and the ids of ended tasks to the heartbeat process."""
        frames = b""
        if ended:
            frames = encode_frame(protocol.DROP_LEASES_FRAME, b"".join([task_id.bytes for task_id in ended]))
        if claimed:
            frames += protocol.encode_leases(claimed, renewed_at)
        if frames:
            self._send_bytes(frames)

    def renew_now(self) -> None:
        """Renew all leases now. The responses show which tasks were cancelled."""
        if len(self._running):
            self._send_frame(protocol.RENEW_NOW_FRAME)

    def _record_loop_run(self) -> None:
        """Record that the event loop runs, and schedule the next record."""
        if self._thread is not None or not self._ended.is_set():
            now = time.monotonic()
            self._loop_timestamp.write_instant(now)
            self._watchdog.record_run(now)
            cast("asyncio.AbstractEventLoop", self._worker_loop).call_later(
                HEARTBEAT_TICK_INTERVAL_S, self._record_loop_run
            )

    # The process

    def _start_process(self) -> None:
        worker_end, process_end = socket.socketpair()
        worker_end.setblocking(False)
        for end in (worker_end, process_end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        descriptors = (process_end.fileno(), self._memory.fileno())
        if self._process is not None:  # it closed its socket; two processes would undo each other's renewals
            self._process.kill()
            self._process.wait()
        with process_end:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _HEARTBEAT_PROCESS_CODE, *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        with self._sending:
            old_socket, self._socket, self._unsent = self._socket, worker_end, bytearray()
        if old_socket is not None:
            old_socket.close()
        self._send_frame(protocol.START_FRAME, msgspec.msgpack.encode(self._build_start_message()))
        attempts = self._running.list_attempts()
        if attempts:
            renewed_at = min(attempt.renewed_at for attempt in attempts)
            leases = [(attempt.claimed, attempt.isolated) for attempt in attempts]
            self._send_bytes(protocol.encode_leases(leases, renewed_at))
        self._send_bytes(self._visibility.encode_current_messages())
        self._status_sent_at = 0.0

    def _build_start_message(self) -> HeartbeatStartMessage:
        return HeartbeatStartMessage(
            url=self._url.reveal(),
            worker=self._worker,
            pid=os.getpid(),
            connect_timeout_s=self._settings.connect_timeout.total_seconds(),
            call_timeout_s=self._settings.call_timeout.total_seconds(),
            log_format=self._settings.log_format,
            loop_blocked_after_s=LOOP_BLOCKED_AFTER_S,
        )

    def _close_process(self, *, wait: bool) -> None:
        """Close the socket to the heartbeat process. With `wait`, wait until the process exits.

        Otherwise the process releases the remaining leases after this worker has ended.
        """
        if self._socket is not None:
            self._socket.close()
        if self._process is not None and wait:
            try:
                self._process.wait(HEARTBEAT_SHUTDOWN_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # it holds nothing
                self._process.wait()

    def _send_frame(self, kind: bytes, body: bytes = b"") -> None:
        self._send_bytes(encode_frame(kind, body))

    def _send_bytes(self, message: bytes) -> None:
        with self._sending:
            if self._unsent:
                self._unsent += message
                message = bytes(self._unsent)
                self._unsent.clear()
            try:
                sent = self._socket.send(message) if self._socket is not None else 0
            except BlockingIOError:
                sent = 0
            except OSError:  # the process died; its replacement receives everything again
                return
            if sent < len(message):
                self._unsent += message[sent:]

    # Called in the heartbeat thread

    def _run_thread(self) -> None:
        asyncio.run(self._run_loops())

    async def _run_loops(self) -> None:
        loops = (self._listen_forever(), self._progress.run(self._ended))
        tasks = [asyncio.create_task(loop) for loop in loops]
        await self._watch_leases()
        # The other loops end by themselves; one that hangs in a call is cancelled.
        _, hanging = await asyncio.wait(tasks, timeout=HEARTBEAT_SHUTDOWN_TIMEOUT_S)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_leases(self) -> None:
        """Stop attempts whose leases may be lost, until the heartbeat stops.

        This loop runs beside the other loops, so that none of them can delay it.
        """
        next_check_at = 0.0
        while not self._ended.is_set():
            self._receive()  # renewals may have arrived while this thread was starved
            now = time.monotonic()
            if now >= next_check_at:
                next_check_at = now + self._stop_unrenewed_attempts(now)
            self._visibility.stop_unrenewed_deliveries(now)
            blocking_task = self._watchdog.check_loop(now)
            if blocking_task is not None:
                self._send_frame(protocol.BLOCKING_TASK_FRAME, blocking_task)
            if self._unsent:
                self._send_bytes(b"")
            self._send_worker_status(now)
            await asyncio.sleep(HEARTBEAT_TICK_INTERVAL_S)

    def _stop_unrenewed_attempts(self, now: float) -> float:
        """Stop attempts whose leases end soon. Return the seconds until the next check."""
        pause_s = MAX_LEASE_CHECK_INTERVAL_S
        for attempt in self._running.list_attempts():
            pause_s = min(pause_s, attempt.claimed.lease_s * LEASE_CHECK_INTERVAL_SHARE)
            if now >= attempt.lease_safe_until:
                self._stop_attempt(attempt, STOP_REASON_UNRENEWED)
        return pause_s

    def _send_worker_status(self, now: float) -> None:
        interval_s = STATUS_INTERVAL_S if len(self._running) else IDLE_STATUS_INTERVAL_S
        if now >= self._status_sent_at + interval_s:
            self._status_sent_at = now
            self._send_frame(protocol.WORKER_STATUS_FRAME, msgspec.json.encode(self._build_worker_status()))

    async def _listen_forever(self) -> None:
        while not self._ended.is_set():
            try:
                await self._listen_to_process()
            except Exception:
                # If this loop ended, a worker that goes on working would lose every lease.
                _log.exception("The heartbeat failed and continues.")
            if not self._ended.is_set():
                await asyncio.sleep(HEARTBEAT_TICK_INTERVAL_S)
                telemetry.emit("worker.heartbeat_replaced", worker=self._worker)
                self._start_process()

    async def _listen_to_process(self) -> None:
        """Handle frames from the heartbeat process until the process is gone."""
        loop, process_socket = asyncio.get_running_loop(), self._socket
        frames, gone = FrameDecoder(), asyncio.Event()
        if process_socket is None:
            return

        def receive() -> None:
            try:
                received = b"" if gone.is_set() else process_socket.recv(SOCKET_BUFFER_BYTES)
            except BlockingIOError:
                return
            except OSError:
                received = b""
            if not received:
                gone.set()
                loop.remove_reader(process_socket)
            for kind, body in frames.feed(received):
                self._handle_frame(kind, body)

        self._receive = receive
        loop.add_reader(process_socket, receive)
        try:
            while not (gone.is_set() or self._ended.is_set()):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await gone.wait()
        finally:
            self._receive = lambda: None
            loop.remove_reader(process_socket)

    def _handle_frame(self, kind: bytes, body: bytes) -> None:
        if kind == protocol.LEASES_RENEWED_FRAME:
            self._apply_renewals(msgspec.msgpack.decode(body, type=LeaseRenewals))
        elif kind == protocol.MESSAGES_RENEWED_FRAME:
            self._visibility.apply_renewals(body)
        elif kind == protocol.READY_FRAME and self._worker_loop is not None:
            self._worker_loop.call_soon_threadsafe(self._ready.set)
        elif kind == protocol.DATABASE_PROBLEM_FRAME:
            telemetry.emit(
                "database.connection_failed",
                error=body.decode(errors="replace"),
                retry_in=HEARTBEAT_TICK_INTERVAL_S,
            )
        elif kind == protocol.COMMAND_FRAME and self._worker_loop is not None:
            self._worker_loop.call_soon_threadsafe(self.on_command, cast("WorkerCommand", body.decode()))

    def _apply_renewals(self, renewals: LeaseRenewals) -> None:
        attempts = self._running.index_by_id()
        for task_id in protocol.split_task_ids(renewals.renewed):
            attempt = attempts.get(UUID(bytes=task_id))
            if attempt is not None and attempt.renewed_at < renewals.sent_at:
                attempt.renewed_at = renewals.sent_at
        for task_ids, reason in ((renewals.cancelled, "cancelled"), (renewals.lost, "lease lost")):
            for task_id in protocol.split_task_ids(task_ids):
                attempt = attempts.get(UUID(bytes=task_id))
                if attempt is not None and attempt.context is not None and attempt.context.completed:
                    attempt.renewed_at = float("inf")  # it completed in the user's own transaction
                elif attempt is not None:
                    self._stop_attempt(attempt, reason)

    def _stop_attempt(self, attempt: Attempt, reason: str) -> None:
        if not attempt.mark_stopped(reason):  # plain functions see it even if the loop is blocked
            return
        telemetry.emit("task.lease_lost", task=attempt.claimed.id, attempt=attempt.claimed.attempt)
        if self._worker_loop is not None and not self._worker_loop.is_closed():
            self._worker_loop.call_soon_threadsafe(attempt.interrupt_code)
