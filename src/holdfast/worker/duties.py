"""What must be done from time to time for everyone: any worker may do it, and it does not matter which.

`tick` moves ended jobs to the history, makes and drops days, prunes archives, in bounded steps that any
number of workers may run at once. Claims see to what is urgent themselves (due tasks, lost leases), so a
worker that has been idle ticks seldom.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

from holdfast.engine import insight
from holdfast.engine.connection import Database
from holdfast.worker.service import Service

BUSY_SECONDS = 30.0
IDLE_SECONDS = 600.0
AWAY_SECONDS = 1.0
DEAF_SECONDS = 15.0  # for those who are not told
SPREAD_SECONDS = 0.1


class Upkeep(Service):
    def __init__(
        self,
        database: Database,
        busy: Callable[[], bool],
        sweep: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__()
        self._database = database
        self._busy = busy
        self._sweep = sweep
        self._waited = random.uniform(0, BUSY_SECONDS)  # noqa: S311  (so that a fleet does not tick in step)

    async def step(self) -> None:
        await self._wait()
        more = True
        while more:
            async with self._database.connection() as connection:
                more = bool((await insight.tick(connection)).get("more"))
        if self._sweep is not None:
            await self._sweep()

    async def _wait(self) -> None:
        """Half a minute while there is work, ten minutes while there is none."""
        while self._waited < (BUSY_SECONDS if self._busy() else IDLE_SECONDS):
            await asyncio.sleep(BUSY_SECONDS / 10)
            self._waited += BUSY_SECONDS / 10
        self._waited = 0.0


class Tending(Service):
    """What somebody waits for: bulk actions, pauses that end. Done when told, then as the answer says."""

    def __init__(self, database: Database, hears: Callable[[], bool]) -> None:
        super().__init__()
        self._database = database
        self._hears = hears
        self._bell = asyncio.Event()
        self._bell.set()  # what was begun while nobody was there
        self._next_s: float | None = None

    def ring(self) -> None:
        self._bell.set()

    async def step(self) -> None:
        pause = self._next_s if self._hears() else min(self._next_s or DEAF_SECONDS, DEAF_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._bell.wait()
        self._bell.clear()
        await asyncio.sleep(random.uniform(0, SPREAD_SECONDS))  # noqa: S311  (a fleet is told all at once)
        try:
            async with self._database.connection() as connection:
                self._next_s = await insight.tend(connection)
        except Exception:
            self._bell.set()  # it is still to be done
            raise


class Reviver(Service):
    """While the database is away: it may be the embedded one, which goes down with its keeper."""

    def __init__(self, revive: Callable[[], object] | None, away: Callable[[], bool]) -> None:
        super().__init__()
        self._revive = revive
        self._away = away

    def start(self) -> None:
        if self._revive is not None:
            super().start()

    async def step(self) -> None:
        await asyncio.sleep(AWAY_SECONDS)
        if self._away() and self._revive is not None:
            await asyncio.to_thread(self._revive)
