"""Notices that the loop does not turn, and says which task holds it up and for how long.

It looks from another thread. A C call that keeps the GIL keeps that thread waiting too; it gets its turn when
the call returns, with the guilty task still on the loop, so that this one is named as well.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback

from holdfast import telemetry
from holdfast.worker.running import Attempt, Running

NOTICE_SECONDS = 1.0
AGAIN_SECONDS = 10.0
_log = logging.getLogger("holdfast.worker")


class Watchdog:
    def __init__(self, running: Running, worker: str) -> None:
        self._running = running
        self._worker = worker
        self._turned_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._say_at = 0.0
        self._blamed: bytes = b""
        self.lag = 0.0
        self.blocked: dict[str, object] | None = None  # the last time it happened, for people

    @property
    def late(self) -> float:
        """Seconds since the loop turned last, from any thread."""
        return time.monotonic() - self._turned_at if self._turned_at else 0.0

    def turned(self, now: float) -> None:
        """On the loop: here we are."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.get_ident()
        if self._turned_at:
            self.lag = max(now - self._turned_at - 0.25, self.lag * 0.9, 0.0)
        self._turned_at = now
        self._say_at = 0.0

    def look(self, now: float) -> bytes | None:
        """In another thread. The id of the task to blame when that has changed; empty: nobody any more."""
        late = now - self._turned_at
        if not self._turned_at or late < NOTICE_SECONDS:
            if self._blamed:
                self._blamed = b""
                return b""
            return None
        attempt = self._on_the_loop()
        if now >= self._say_at:
            self._say_at = now + AGAIN_SECONDS
            self._tell(attempt, late)
        blamed = attempt.claimed.id.bytes if attempt is not None else b""
        if blamed == self._blamed:
            return None
        self._blamed = blamed
        return blamed

    def _on_the_loop(self) -> Attempt | None:
        runner = asyncio.current_task(self._loop) if self._loop is not None else None
        return next((a for a in self._running.all() if a.runner is runner), None) if runner else None

    def _tell(self, attempt: Attempt | None, seconds: float) -> None:
        name = attempt.claimed.type if attempt is not None else None
        task = attempt.claimed.id if attempt is not None else None
        self.blocked = {"name": name, "task": str(task) if task else None, "seconds": round(seconds, 1)}
        telemetry.emit(
            "worker.blocked",
            worker=self._worker,
            task=task,
            name=name,
            seconds=round(seconds, 3),
            place=self._place(),
        )

    def _place(self) -> str | None:
        """The line of code that the loop is in."""
        frame = sys._current_frames().get(self._thread or 0)  # pyright: ignore[reportPrivateUsage]
        if frame is None:
            return None
        last = traceback.extract_stack(frame, limit=1)[-1]
        return f"{last.filename}:{last.lineno} {last.name}"
