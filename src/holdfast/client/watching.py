"""How a client learns that a job has changed, without asking again and again.

One listener for all that the client waits for, started with the first wait. The database announces the jobs
on its list of awaited ones; a job is put there before it is looked at, so that a change is seen or announced.
An announcement is a hint and looking is the truth: a job is looked at from time to time in any case, often
while there is no listener that is proven to hear.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import UUID

from holdfast.engine import jobs
from holdfast.engine.connection import Database
from holdfast.engine.listen import EVENTS, Listener
from holdfast.errors import HoldfastError

RENEW_SECONDS = 45.0
# A change may be recorded just before we are on the list and committed just after we looked.
HEARING = (0.05, 0.25, 1.0, 5.0)
DEAF = (0.02, 0.03, 0.05, 0.1, 0.2, 0.35, 0.5)


class Bell:
    """Rings when a job may have changed."""

    def __init__(self, hears: Callable[[], bool]) -> None:
        self._hears = hears
        self._rung = asyncio.Event()
        self._looks = 0

    def ring(self) -> None:
        self._rung.set()

    async def wait(self, deadline: float | None) -> None:
        """Until it rings, it is time to look anyway, or `deadline` (monotonic) is over."""
        pauses = HEARING if self._hears() else DEAF
        pause = pauses[min(self._looks, len(pauses) - 1)]
        if deadline is not None:
            pause = min(pause, max(deadline - time.monotonic(), 0))
        try:
            async with asyncio.timeout(pause):
                await self._rung.wait()
            self._looks = 0
        except TimeoutError:
            self._looks += 1
        self._rung.clear()


class Watcher:
    def __init__(self, open_database: Callable[[], Awaitable[Database]]) -> None:
        self._open = open_database
        self._name = f"client-{secrets.token_hex(8)}"
        self._bells: dict[UUID, set[Bell]] = {}
        self._over: set[UUID] = set()
        self._listener: Listener | None = None
        self._renewal: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def on(self, job: UUID) -> AsyncGenerator[Bell]:
        """A bell for one job, for as long as somebody waits for it."""
        bell = Bell(self._hears)
        self._bells.setdefault(job, set()).add(bell)
        try:
            await self._announce([job])
            yield bell
        finally:
            self._bells[job].discard(bell)
            if not self._bells[job]:
                del self._bells[job]
                self._over.add(job)

    async def close(self) -> None:
        listener, self._listener = self._listener, None
        renewal, self._renewal = self._renewal, None
        if renewal is not None:
            renewal.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renewal
        if listener is not None:
            await listener.stop()

    def _hears(self) -> bool:
        return self._listener is not None and self._listener.healthy

    async def _announce(self, waited: list[UUID]) -> None:
        """Puts jobs on the list, and takes those off that nobody waits for any more."""
        database = await self._open()
        if database.settings.listen == "off":
            return
        if self._listener is None:
            self._listener = Listener(database.url, database.settings, {EVENTS: self._heard})
            self._listener.start()
            self._renewal = asyncio.create_task(self._renew(), name="awaited jobs")
        over = [job for job in self._over if job not in self._bells]
        self._over.clear()
        # A role that may not do this, or a database that is away: whoever waits looks by himself.
        with contextlib.suppress(HoldfastError):
            async with database.connection() as connection:
                await jobs.await_jobs(connection, self._name, waited, over)

    async def _renew(self) -> None:
        """The list forgets, so that a client that died leaves nothing behind."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            if self._bells or self._over:
                await self._announce(list(self._bells))

    def _heard(self, payload: str) -> None:
        if not payload:
            named = [bell for bells in self._bells.values() for bell in bells]
        else:
            named = list(self._bells.get(UUID(payload), ()))
        for bell in named:
            bell.ring()
