"""Keeps leases alive from a thread of its own with a connection of its own.

User code on the event loop cannot stop it. It renews every quarter of the shortest lease, carries the newest
progress a few times a second, and learns which leases are lost. When it cannot reach the database it stops
each attempt before its lease ends, counted from when the last good renewal was sent: nobody else can hold
the task by then.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast import telemetry
from holdfast.engine import leases
from holdfast.engine.connection import Connection, connected
from holdfast.errors import HoldfastError
from holdfast.model import Progress
from holdfast.settings import Secret, Settings
from holdfast.worker.running import Attempt

Companion = Callable[[threading.Event], Coroutine[Any, Any, None]]

TICK = 0.25
SHARE = 0.25
LAST_SECONDS = 2.0
_log = logging.getLogger("holdfast.worker")


class Heartbeat:
    def __init__(
        self,
        url: Secret,
        settings: Settings,
        worker: str,
        attempts: Callable[[], list[Attempt]],
        companion: Companion,
    ) -> None:
        self._url = url
        self._settings = settings
        self._worker = worker
        self._attempts = attempts
        self._companion = companion  # what else must go on whatever user code does to the worker's loop
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._worker_loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        if self._thread is None:
            self._worker_loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
            self._thread.start()

    async def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.set()
            await asyncio.to_thread(thread.join)

    def _run(self) -> None:
        asyncio.run(self._all())

    async def _all(self) -> None:
        parts = (self._beat_until_ended(), self._companion(self._ended))
        going = [asyncio.create_task(part) for part in parts]
        await self._guard()
        # The others look at `ended` too; one that hangs in a call is not waited for.
        _, hanging = await asyncio.wait(going, timeout=LAST_SECONDS)
        for part in hanging:
            part.cancel()
        await asyncio.gather(*going, return_exceptions=True)

    async def _guard(self) -> None:
        """Beside the beats, because a connection attempt or a call may hang for longer than a lease."""
        while not self._ended.is_set():
            self._stop_what_may_be_lost()
            await asyncio.sleep(TICK)

    async def _beat_until_ended(self) -> None:
        while not self._ended.is_set():
            try:
                async with connected(self._url, self._settings) as connection:
                    await self._beat_while_connected(connection)
            except HoldfastError as problem:
                telemetry.emit("database.away", error=str(problem), retry_in=TICK)
                await asyncio.sleep(TICK)
            except Exception:
                # A heartbeat that ends here would lose every lease of a worker that goes on working.
                _log.exception("the heartbeat failed and goes on")
                await asyncio.sleep(TICK)

    async def _beat_while_connected(self, connection: Connection) -> None:
        while not self._ended.is_set():
            due = self._due()
            if due:
                await asyncio.wait_for(self._beat(connection, due), self._patience(due))
            await asyncio.sleep(TICK)

    def _due(self) -> list[Attempt]:
        """All attempts when any needs renewal; else those with news."""
        attempts = self._attempts()
        now = time.monotonic()
        if any(now >= a.renewed_at + a.claimed.lease_s * SHARE for a in attempts):
            return attempts
        return [a for a in attempts if a.context.unreported() is not None]

    def _patience(self, attempts: list[Attempt]) -> float:
        return max(0.1, min(a.must_stop_at for a in attempts) - time.monotonic())

    async def _beat(self, connection: Connection, attempts: list[Attempt]) -> None:
        sent_at = time.monotonic()
        news = {a.claimed.id: report for a in attempts if (report := a.context.unreported()) is not None}
        answer = await leases.beat(
            connection, worker=self._worker, held=[a.claimed for a in attempts], progress=news
        )
        for attempt in attempts:
            self._apply(attempt, answer, news.get(attempt.claimed.id), sent_at)

    def _apply(self, attempt: Attempt, answer: leases.Beat, report: Progress | None, sent_at: float) -> None:
        if attempt.claimed.id in answer.cancelled:
            self._stop(attempt, "cancelled")
        elif attempt.claimed.id in answer.lost:
            self._stop(attempt, "lease lost")
        else:
            attempt.renewed_at = sent_at
            if report is not None:
                attempt.context.reported(report)

    def _stop_what_may_be_lost(self) -> None:
        now = time.monotonic()
        for attempt in self._attempts():
            if now >= attempt.must_stop_at:
                self._stop(attempt, "lease not renewed in time")

    def _stop(self, attempt: Attempt, reason: str) -> None:
        if attempt.context.cancelled:
            return
        attempt.context.stop(reason)  # plain code sees it even if the loop is blocked
        telemetry.emit("task.lease_lost", task=attempt.claimed.id, attempt=attempt.claimed.attempt)
        if self._worker_loop is not None and not self._worker_loop.is_closed():
            self._worker_loop.call_soon_threadsafe(attempt.runner.cancel, reason)
