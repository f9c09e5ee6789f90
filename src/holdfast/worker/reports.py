"""Progress on its way to the database: the newest of each attempt, a few times a second.

From the heartbeat's thread, so that a task which blocks the loop can still say how far it is, with a
connection that is opened when there is something to say.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from holdfast import telemetry
from holdfast.engine import leases
from holdfast.engine.connection import Connection, connected
from holdfast.errors import HoldfastError
from holdfast.settings import Secret, Settings
from holdfast.worker.running import Attempt

TICK = 0.25
IDLE_SECONDS = 30.0
_log = logging.getLogger("holdfast.worker")


class Reports:
    def __init__(
        self, url: Secret, settings: Settings, worker: str, attempts: Callable[[], list[Attempt]]
    ) -> None:
        self._url = url
        self._settings = settings
        self._worker = worker
        self._attempts = attempts

    async def run(self, ended: threading.Event) -> None:
        while not ended.is_set():
            if self._due():
                await self._report_for_a_while(ended)
            await asyncio.sleep(TICK)

    async def _report_for_a_while(self, ended: threading.Event) -> None:
        try:
            async with connected(self._url, self._settings) as connection:
                await self._report_while_connected(connection, ended)
        except HoldfastError as problem:
            telemetry.emit("database.away", error=str(problem), retry_in=TICK)
        except Exception:
            _log.exception("reporting progress failed and goes on")

    async def _report_while_connected(self, connection: Connection, ended: threading.Event) -> None:
        used_at = time.monotonic()
        while not ended.is_set() and time.monotonic() < used_at + IDLE_SECONDS:
            due = self._due()
            if due:
                used_at = time.monotonic()
                await self._report(connection, due)
            await asyncio.sleep(TICK)

    def _due(self) -> list[Attempt]:
        return [a for a in self._attempts() if a.context is not None and a.context.unreported() is not None]

    async def _report(self, connection: Connection, attempts: list[Attempt]) -> None:
        news = {
            a.claimed.id: (a.context, report)
            for a in attempts
            if a.context is not None and (report := a.context.unreported()) is not None
        }
        # Beating is what carries progress; it renews these leases too, which does no harm.
        answer = await leases.beat(
            connection,
            worker=self._worker,
            held=[a.claimed for a in attempts],
            progress={i: report for i, (_, report) in news.items()},
        )
        for i, (context, report) in news.items():
            if i not in answer.lost:
                context.reported(report)
