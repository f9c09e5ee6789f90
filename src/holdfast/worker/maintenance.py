"""Maintenance that any worker may run for all: it does not matter which worker does it, or how many.

`tick` moves ended jobs to the history, creates and drops partitions and prunes archives, in bounded steps
that run concurrently. Claims handle what is urgent themselves (due tasks, lost leases), so an idle worker
ticks rarely.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.engine import alerts, maintenance
from holdfast.engine.connection import Database
from holdfast.worker.background import BackgroundService

BUSY_TICK_INTERVAL_S = 30.0
IDLE_TICK_INTERVAL_S: Final = 600.0
DATABASE_RESTART_INTERVAL_S: Final = 1.0
CHECK_INTERVAL_WITHOUT_LISTENER_S: Final = 15.0  # without notifications
MAX_MAINTENANCE_JITTER_S: Final = 0.1
ALERT_INTERVAL_S: Final = 30.0
MAX_ALERT_PAUSE_S: Final = 120.0  # of a worker while others evaluate the rules


class PeriodicMaintenance(BackgroundService):
    """Runs the database maintenance and deletes unneeded files, at intervals."""

    def __init__(
        self,
        database: Database,
        is_busy: Callable[[], bool],
        sweep_files: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__()
        self._database = database
        self._is_busy = is_busy
        self._sweep_files = sweep_files
        # Random, so that many workers do not tick in step.
        self._waited_s = random.uniform(0, BUSY_TICK_INTERVAL_S)  # noqa: S311

    async def run_round(self) -> None:
        await self._wait_for_next_tick()
        more = True
        while more:
            async with self._database.connection() as connection:
                more = bool((await maintenance.tick(connection)).get("more"))
        if self._sweep_files is not None:
            await self._sweep_files()

    async def _wait_for_next_tick(self) -> None:
        while self._waited_s < (BUSY_TICK_INTERVAL_S if self._is_busy() else IDLE_TICK_INTERVAL_S):
            await asyncio.sleep(BUSY_TICK_INTERVAL_S / 10)
            self._waited_s += BUSY_TICK_INTERVAL_S / 10
        self._waited_s = 0.0


class UrgentMaintenance(BackgroundService):
    """Continues bulk actions and ends pauses as soon as a notification arrives."""

    def __init__(self, database: Database, listener_works: Callable[[], bool]) -> None:
        super().__init__()
        self._database = database
        self._listener_works = listener_works
        self._notified = asyncio.Event()
        self._notified.set()  # there may be work from a time without workers
        self._next_s: float | None = None

    def notify(self) -> None:
        self._notified.set()

    async def run_round(self) -> None:
        pause_s = self._next_s
        if not self._listener_works():
            pause_s = min(pause_s or CHECK_INTERVAL_WITHOUT_LISTENER_S, CHECK_INTERVAL_WITHOUT_LISTENER_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._notified.wait()
        self._notified.clear()
        await asyncio.sleep(random.uniform(0, MAX_MAINTENANCE_JITTER_S))  # noqa: S311  (all workers are notified at once)
        try:
            async with self._database.connection() as connection:
                self._next_s = await maintenance.run_urgent_maintenance(connection)
        except Exception:
            self._notified.set()  # it is still to be done
            raise


class AlertEvaluation(BackgroundService):
    """Evaluates alert rules. All workers and API processes together do it once in half a minute.

    A worker that comes too late, because another one does it, comes less often. So a fleet asks rarely, and
    somebody takes over when the one that evaluates ends.
    """

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self.pause_s = ALERT_INTERVAL_S

    async def run_round(self) -> None:
        await asyncio.sleep(random.uniform(1.0, 1.3) * self.pause_s)  # noqa: S311  (not all at once)
        async with self._database.connection() as connection:
            event_count = await alerts.evaluate_alerts(connection)
        self.pause_s = (
            ALERT_INTERVAL_S if event_count is not None else min(2 * self.pause_s, MAX_ALERT_PAUSE_S)
        )


class DatabaseRestarter(BackgroundService):
    """Restarts the embedded database while the database is unreachable.

    The embedded database stops with the process that started it.
    """

    def __init__(self, restart: Callable[[], object] | None, is_unreachable: Callable[[], bool]) -> None:
        super().__init__()
        self._restart = restart
        self._is_unreachable = is_unreachable

    def start(self) -> None:
        if self._restart is not None:
            super().start()

    async def run_round(self) -> None:
        await asyncio.sleep(DATABASE_RESTART_INTERVAL_S)
        if self._is_unreachable() and self._restart is not None:
            await asyncio.to_thread(self._restart)
