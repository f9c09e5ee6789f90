"""Learn that a job has changed without polling for it.

All waits of one event loop share one listener, which starts with the first wait. The database announces the
jobs on its list of watched jobs. A job is put on the list before it is read, so that each change is either
read or announced. An announcement is only a hint: a watched job is also read from time to time, and often
while no listener is proven to receive notifications.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from uuid import UUID

from holdfast.engine import jobs
from holdfast.engine.connection import Database
from holdfast.engine.listener import EVENT_CHANNEL, NotificationListener
from holdfast.errors import HoldfastError

WATCH_RENEWAL_INTERVAL_S = 45.0
# Pauses between reads of an unchanged job. With a listener the first ones are short, because a change may be
# recorded just before the job is on the list and committed just after the job was read.
POLL_PAUSES_WITH_LISTENER_S = (0.05, 0.25, 1.0, 5.0)
POLL_PAUSES_WITHOUT_LISTENER_S = (0.02, 0.03, 0.05, 0.1, 0.2, 0.35, 0.5)


class JobChangeSignal:
    """Wakes one waiter when its job may have changed."""

    def __init__(self, is_listening: Callable[[], bool]) -> None:
        self._is_listening = is_listening
        self._notified = asyncio.Event()
        self._reads = 0

    def notify(self) -> None:
        """Wake the caller that waits for the job."""
        self._notified.set()

    async def wait(self, deadline: float | None) -> None:
        """Wait for a notification about the job, for the next poll, or until `deadline`."""
        pauses = POLL_PAUSES_WITH_LISTENER_S if self._is_listening() else POLL_PAUSES_WITHOUT_LISTENER_S
        pause = pauses[min(self._reads, len(pauses) - 1)]
        if deadline is not None:
            pause = min(pause, max(deadline - time.monotonic(), 0))
        try:
            async with asyncio.timeout(pause):
                await self._notified.wait()
            self._reads = 0
        except TimeoutError:
            self._reads += 1
        self._notified.clear()


class JobWatcher:
    """Wakes callers in one event loop when the jobs that they wait for change."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._name = f"client-{secrets.token_hex(8)}"
        self._signals: dict[UUID, set[JobChangeSignal]] = {}
        self._unwatched: set[UUID] = set()
        self._listener: NotificationListener | None = None
        self._renewal: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watch(self, job_id: UUID) -> AsyncGenerator[JobChangeSignal]:
        """Watch one job while the block runs, and yield the signal of its changes."""
        signal = JobChangeSignal(self.is_listening)
        self._signals.setdefault(job_id, set()).add(signal)
        try:
            await self._update_watch_list([job_id])
            yield signal
        finally:
            self._signals[job_id].discard(signal)
            if not self._signals[job_id]:
                del self._signals[job_id]
                self._unwatched.add(job_id)

    async def close(self) -> None:
        """Stop listening for notifications and renewing the watch list."""
        listener, self._listener = self._listener, None
        renewal, self._renewal = self._renewal, None
        if renewal is not None:
            renewal.cancel()
            await asyncio.wait({renewal})
        if listener is not None:
            await listener.stop()

    def is_listening(self) -> bool:
        """Return True if the listener is known to receive notifications."""
        return self._listener is not None and self._listener.is_healthy

    async def _update_watch_list(self, watched: list[UUID]) -> None:
        """Add jobs to the watch list in the database, and remove jobs that nobody waits for."""
        settings = self._database.settings
        if settings.listen == "off":
            return
        if self._listener is None:
            self._listener = NotificationListener(
                self._database.url, settings, {EVENT_CHANNEL: self._wake_waiters}
            )
            self._listener.start()
            self._renewal = asyncio.create_task(self._renew_watch_list(), name="watched jobs")
        unwatched = [job_id for job_id in self._unwatched if job_id not in self._signals]
        self._unwatched.clear()
        # Without the privilege, or while the database is unreachable, waiters poll.
        with contextlib.suppress(HoldfastError):
            async with self._database.connection() as connection:
                await jobs.register_job_waiter(connection, self._name, watched, unwatched)

    async def _renew_watch_list(self) -> None:
        """Renew the entries of the watch list before they expire.

        Entries expire, so that a client that died leaves nothing behind.
        """
        while True:
            await asyncio.sleep(WATCH_RENEWAL_INTERVAL_S)
            if self._signals or self._unwatched:
                await self._update_watch_list(list(self._signals))

    def _wake_waiters(self, payload: str) -> None:
        """Wake the waiters of one job, or all waiters when notifications may have been missed."""
        if not payload:
            signals = [signal for signals in self._signals.values() for signal in signals]
        else:
            signals = list(self._signals.get(UUID(payload), ()))
        for signal in signals:
            signal.notify()
