"""Detect a blocked event loop, and report which task blocks it and for how long.

The check runs in another thread. A C call that holds the GIL delays that thread too. When the call returns,
the thread runs while the blocking task is still on the loop, so that task is reported as well.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback

from holdfast import telemetry
from holdfast.worker.attempts import Attempt, RunningAttempts
from holdfast.worker.heartbeat_protocol import encode_lease_key

LOOP_BLOCKED_REPORT_AFTER_S = 1.0
LOOP_BLOCKED_REPORT_INTERVAL_S = 10.0
LOOP_LAG_DECAY_FACTOR = 0.9  # per run of the loop
_log = logging.getLogger("holdfast.worker")


class LoopWatchdog:
    """Detects that an event loop is blocked, from another thread."""

    def __init__(self, running: RunningAttempts, worker: str) -> None:
        self._running = running
        self._worker = worker
        self._last_run_at = 0.0
        self._next_run_in_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._next_report_at = 0.0
        self._blocking_task: bytes = b""
        self.lag_s = 0.0
        self.blocked_loop_report: dict[str, object] | None = None  # the last report, shown to operators

    @property
    def seconds_since_loop_ran(self) -> float:
        """Seconds since the event loop last ran. Thread-safe."""
        return time.monotonic() - self._last_run_at if self._last_run_at else 0.0

    def record_run(self, now: float, *, next_run_in_s: float) -> None:
        """Record that the event loop runs now, and when it should run next. Call it on the event loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.get_ident()
        if self._last_run_at:
            self.lag_s = max(
                now - self._last_run_at - self._next_run_in_s,
                self.lag_s * LOOP_LAG_DECAY_FACTOR,
                0.0,
            )
        self._last_run_at = now
        self._next_run_in_s = next_run_in_s
        self._next_report_at = 0.0

    def find_blocking_task(self, now: float) -> bytes | None:
        """Return the lease key of the task that blocks the loop, b"" if none does, None if unchanged.

        Call it in another thread.
        """
        blocked_s = now - self._last_run_at
        if not self._last_run_at or blocked_s < LOOP_BLOCKED_REPORT_AFTER_S:
            if self._blocking_task:
                self._blocking_task = b""
                return b""
            return None
        attempt = self._find_running_attempt()
        if now >= self._next_report_at:
            self._next_report_at = now + LOOP_BLOCKED_REPORT_INTERVAL_S
            self._report_blocked_loop(attempt, blocked_s)
        blocking_task = encode_lease_key(attempt.claimed) if attempt is not None else b""
        if blocking_task == self._blocking_task:
            return None
        self._blocking_task = blocking_task
        return blocking_task

    def _find_running_attempt(self) -> Attempt | None:
        runner = asyncio.current_task(self._loop) if self._loop is not None else None
        return (
            next((a for a in self._running.list_attempts() if a.runner is runner), None) if runner else None
        )

    def _report_blocked_loop(self, attempt: Attempt | None, seconds: float) -> None:
        name = attempt.claimed.type if attempt is not None else None
        task = attempt.claimed.id if attempt is not None else None
        self.blocked_loop_report = {
            "name": name,
            "task": str(task) if task else None,
            "seconds": round(seconds, 1),
        }
        telemetry.emit(
            "worker.event_loop_blocked",
            worker=self._worker,
            task=task,
            name=name,
            seconds=round(seconds, 3),
            place=self._find_code_location(),
        )

    def _find_code_location(self) -> str | None:
        """Return the file, line and function that the event loop executes."""
        frame = sys._current_frames().get(self._thread or 0)  # pyright: ignore[reportPrivateUsage]
        if frame is None:
            return None
        last = traceback.extract_stack(frame, limit=1)[-1]
        return f"{last.filename}:{last.lineno} {last.name}"
