"""The worker's side of the heartbeat: starts the heartbeat process and runs a thread that listens to it.

The process (heartbeat_process.py) receives every lease before its task starts and renews it until the outcome
is accepted. The same goes for messages (messages/visibility.py). The thread learns which leases are lost,
sends progress on its own connection, watches the event loop, and stops each attempt before its lease ends
when no renewal was confirmed. That time counts from when the last confirmed renewal was sent, so no other
worker can hold the task yet. A heartbeat process that dies or does not answer (heartbeat_link.py) is
replaced, and the worker claims nothing until the new one answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from holdfast import telemetry
from holdfast.engine.leases import Lease, LeasedTask, WorkerCommand
from holdfast.settings import Secret, Settings
from holdfast.worker import heartbeat_protocol as protocol
from holdfast.worker.attempts import STOP_REASON_UNRENEWED, Attempt, RunningAttempts
from holdfast.worker.background import ServiceFailureReporter
from holdfast.worker.framing import FrameDecoder, encode_frame
from holdfast.worker.heartbeat_link import (
    HEARTBEAT_SHUTDOWN_TIMEOUT_S,
    IDLE_PING_INTERVAL_S,
    PING_INTERVAL_S,
    SOCKET_BUFFER_BYTES,
    HeartbeatLink,
)
from holdfast.worker.heartbeat_protocol import HeartbeatStartMessage, LeaseRenewals, SharedLoopTimestamp
from holdfast.worker.heartbeat_ticks import HEARTBEAT_TICK_INTERVAL_S, TickPacer
from holdfast.worker.loop_watchdog import LoopWatchdog
from holdfast.worker.messages.visibility import VisibilityRenewalClient
from holdfast.worker.progress_reporter import ProgressReporter

HEARTBEAT_READY_TIMEOUT_S = 15.0
LOOP_BLOCKED_AFTER_S = 2.0  # an event loop that has not run for this long does not enforce time limits
STATUS_INTERVAL_S, IDLE_STATUS_INTERVAL_S = 15.0, 600.0
MAX_LEASE_CHECK_INTERVAL_S = 1.0
LEASE_CHECK_INTERVAL_SHARE = 0.05  # of the shortest lease
SHARED_MEMORY_BYTES = 1 << 16
_log = logging.getLogger("holdfast.worker")


class Heartbeat:
    """Keeps the leases of one worker alive through a heartbeat process."""

    def __init__(
        self,
        url: Secret,
        settings: Settings,
        worker: str,
        running: RunningAttempts,
        visibility: VisibilityRenewalClient,
        build_worker_status: Callable[[], dict[str, Any]] = dict[str, Any],
    ) -> None:
        self._url = url
        self._settings = settings
        self._worker = worker
        self._running = running
        self._visibility = visibility
        self._build_worker_status = build_worker_status
        self.on_command: Callable[[WorkerCommand], None] = lambda _: None
        self._renewal_failures = ServiceFailureReporter("heartbeat process")
        self._ended = threading.Event()
        self._ready = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._worker_loop: asyncio.AbstractEventLoop | None = None
        self._memory = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the worker ends)
        self._memory.write(bytes(SHARED_MEMORY_BYTES))
        self._memory.flush()
        self._loop_timestamp = SharedLoopTimestamp(self._memory.fileno())
        self.link = HeartbeatLink(self._memory.fileno())
        visibility.send = self.link.send_bytes
        self._children: set[int] = set()  # pids
        self._resend_leases = False
        self._gone = asyncio.Event()  # the current process is gone; used in the heartbeat thread
        self.ticks = TickPacer(lambda: self._holds_something or self.has_consumers)
        self.has_consumers = False
        self._progress = ProgressReporter(url, settings, worker, running.list_attempts)
        self._watchdog = LoopWatchdog(running, worker)
        self._status_sent_at = 0.0
        self._receive: Callable[[], None] = lambda: None  # reads what the process has sent

    @property
    def process_pid(self) -> int | None:
        return self.link.pid

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
        return None if self.link.socket is None else self.link.socket.fileno()

    @property
    def memory_descriptor(self) -> int:
        """The descriptor of the shared memory in which the heartbeat process records renewals."""
        return self._memory.fileno()

    # Called on the worker's event loop

    def start(self) -> None:
        if self._thread is None:
            self._worker_loop = self._visibility.worker_loop = self.link.worker_loop = (
                asyncio.get_running_loop()
            )
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
            self.link.send_frame(protocol.SHUTDOWN_FRAME_TYPE, b"done" if holds_nothing else b"")
            await asyncio.to_thread(self.link.close, wait=holds_nothing)

    def update_leases(
        self, claimed: Sequence[tuple[LeasedTask, int]], ended: Sequence[Lease], renewed_at: float
    ) -> None:
        """Send the leases of claimed tasks, with their places, and ended leases to the heartbeat process."""
        frames = b""
        if ended:
            frames = encode_frame(protocol.DROP_LEASES_FRAME_TYPE, protocol.encode_lease_keys(ended))
        if claimed:
            frames += protocol.encode_leases(claimed, renewed_at)
        if frames:
            self.link.send_bytes(frames)

    def add_child(self, pid: int) -> None:
        """Tell the heartbeat process about a child process, which leads a process group. Thread-safe.

        After the death of this worker, the heartbeat process ends the group before it returns the leases.
        """
        self._children.add(pid)
        self.link.send_bytes(protocol.encode_child_frame(protocol.CHILD_STARTED_FRAME_TYPE, pid))

    def remove_child(self, pid: int) -> None:
        """Tell the heartbeat process that a child process has ended. Thread-safe."""
        self._children.discard(pid)
        self.link.send_bytes(protocol.encode_child_frame(protocol.CHILD_ENDED_FRAME_TYPE, pid))

    def renew_now(self) -> None:
        """Renew all leases now. The responses show which tasks were cancelled."""
        if len(self._running):
            self.link.send_frame(protocol.RENEW_NOW_FRAME_TYPE)

    def _record_loop_run(self) -> None:
        """Record that the event loop runs, and schedule the next record."""
        if self._thread is not None or not self._ended.is_set():
            now = time.monotonic()
            self._loop_timestamp.write_instant(now)
            pause_s = self.ticks.interval_s
            self._watchdog.record_run(now, next_run_in_s=pause_s)
            cast("asyncio.AbstractEventLoop", self._worker_loop).call_later(pause_s, self._record_loop_run)

    @property
    def _holds_something(self) -> bool:
        return bool(len(self._running) or self._visibility.has_messages)

    # The process

    def _start_process(self) -> None:
        """Start a heartbeat process, in place of the one before, and send it everything that it must know."""
        self._gone = asyncio.Event()
        self.link.start_process()
        start = msgspec.msgpack.encode(self._build_start_message())
        frames = encode_frame(protocol.START_FRAME_TYPE, start) + self._encode_current_leases()
        for pid in set(self._children):
            frames += protocol.encode_child_frame(protocol.CHILD_STARTED_FRAME_TYPE, pid)
        self.link.send_bytes(frames + self._visibility.encode_current_messages())
        self.link.send_ping()
        self._status_sent_at = 0.0

    def _encode_current_leases(self) -> bytes:
        attempts = self._running.list_attempts()
        if not attempts:
            return b""
        renewed_at = min(attempt.renewed_at for attempt in attempts)
        return protocol.encode_leases([(attempt.claimed, attempt.place) for attempt in attempts], renewed_at)

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

    # Called in the heartbeat thread

    def _run_thread(self) -> None:
        asyncio.run(self._run_loops())

    async def _run_loops(self) -> None:
        loops = (self._keep_heartbeat_process_running(), self._progress.run(self._ended))
        tasks = [asyncio.create_task(loop) for loop in loops]
        await self._watch_leases()
        self._progress.wake_if_needed(ending=True)
        self._gone.set()
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
            blocking_task = self._watchdog.find_blocking_task(now)
            if blocking_task is not None:
                self.link.send_frame(protocol.LOOP_BLOCKED_FRAME_TYPE, blocking_task)
            if self.link.has_unsent_bytes:
                self.link.send_bytes(b"")
            self._check_process()
            self._send_worker_status(now)
            self._progress.wake_if_needed()
            await self.ticks.wait_for_next_tick()

    def _check_process(self) -> None:
        """Ping the heartbeat process, and kill it if it does not answer."""
        if self._resend_leases:  # tasks that were being started when the process was replaced are missing
            self._resend_leases = False
            self.link.send_bytes(self._encode_current_leases())
        self.link.send_ping_if_due(PING_INTERVAL_S if self._holds_something else IDLE_PING_INTERVAL_S)
        if self.link.must_be_replaced():
            self.link.kill_process()
            self._gone.set()

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
            self.link.send_frame(
                protocol.WORKER_STATUS_FRAME_TYPE, msgspec.json.encode(self._build_worker_status())
            )

    async def _keep_heartbeat_process_running(self) -> None:
        while not self._ended.is_set():
            try:
                await self._receive_heartbeat_frames()
            except Exception:
                # If this loop ended, a worker that goes on working would lose every lease.
                _log.exception("The heartbeat failed and continues.")
            if not self._ended.is_set():
                await asyncio.sleep(HEARTBEAT_TICK_INTERVAL_S)
                telemetry.emit("worker.heartbeat_replaced", worker=self._worker)
                self._start_process()
                self._resend_leases = True

    async def _receive_heartbeat_frames(self) -> None:
        """Handle frames from the heartbeat process until the process is gone."""
        loop, process_socket = asyncio.get_running_loop(), self.link.socket
        frames, gone = FrameDecoder(), self._gone
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
            await gone.wait()
        finally:
            self._receive = lambda: None
            loop.remove_reader(process_socket)

    def _handle_frame(self, kind: bytes, body: bytes) -> None:
        if kind == protocol.LEASES_RENEWED_FRAME_TYPE:
            self._apply_renewals(msgspec.msgpack.decode(body, type=LeaseRenewals))
        elif kind == protocol.PONG_FRAME_TYPE:
            self.link.record_answer()
        elif kind == protocol.LEASES_GIVEN_UP_FRAME_TYPE:
            self._stop_attempts(body, STOP_REASON_UNRENEWED)
        elif kind == protocol.MESSAGES_RENEWED_FRAME_TYPE:
            self._visibility.apply_renewals(body)
        elif kind == protocol.READY_FRAME_TYPE and self._worker_loop is not None:
            self._worker_loop.call_soon_threadsafe(self._ready.set)
        elif kind == protocol.DATABASE_PROBLEM_FRAME_TYPE:
            self._renewal_failures.report_failure(body.decode(errors="replace"))
        elif kind == protocol.COMMAND_FRAME_TYPE and self._worker_loop is not None:
            self._worker_loop.call_soon_threadsafe(self.on_command, cast("WorkerCommand", body.decode()))

    def _apply_renewals(self, renewals: LeaseRenewals) -> None:
        attempts = self._running.index_by_lease_key()
        for key in protocol.split_lease_keys(renewals.renewed):
            attempt = attempts.get(key)
            if attempt is not None and attempt.renewed_at < renewals.sent_at:
                attempt.renewed_at = renewals.sent_at
                if attempt.on_renewed is not None:
                    attempt.on_renewed(attempt)
        self._stop_attempts(renewals.cancelled, "cancelled")
        self._stop_attempts(renewals.lost, "lease lost")

    def _stop_attempts(self, lease_keys: bytes, reason: str) -> None:
        if not lease_keys:
            return
        attempts = self._running.index_by_lease_key()
        for key in protocol.split_lease_keys(lease_keys):
            attempt = attempts.get(key)
            if attempt is not None and attempt.context is not None and attempt.context.completed:
                attempt.renewed_at = float("inf")  # it completed in the user's own transaction
                if attempt.on_renewed is not None:
                    attempt.on_renewed(attempt)
            elif attempt is not None:
                self._stop_attempt(attempt, reason)

    def _stop_attempt(self, attempt: Attempt, reason: str) -> None:
        if not attempt.mark_stopped(reason):  # plain functions see it even if the loop is blocked
            return
        telemetry.emit("task.lease_lost", task=attempt.claimed.id, attempt=attempt.claimed.attempt)
        if self._worker_loop is not None and not self._worker_loop.is_closed():
            self._worker_loop.call_soon_threadsafe(attempt.interrupt_code)
