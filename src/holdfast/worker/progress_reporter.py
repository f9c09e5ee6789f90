"""Write the progress of attempts to the database: the newest value of each, a few times per second.

Runs in the heartbeat thread, so that a task that blocks the event loop can still report progress. Its
connection is open only while there is progress to write.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from holdfast.engine import leases
from holdfast.engine.connection import Connection, open_connection
from holdfast.settings import Secret, Settings
from holdfast.worker.attempts import Attempt
from holdfast.worker.background import ServiceFailureReporter

PROGRESS_REPORT_INTERVAL_S = 0.25
MAX_IDLE_CONNECTION_S = 30.0


class ProgressReporter:
    """Writes the progress of all attempts of a worker to the database."""

    def __init__(
        self, url: Secret, settings: Settings, worker: str, attempts: Callable[[], list[Attempt]]
    ) -> None:
        self._url = url
        self._settings = settings
        self._worker = worker
        self._attempts = attempts
        self._failures = ServiceFailureReporter("progress reporter")
        self._has_work = asyncio.Event()

    async def run(self, ended: threading.Event) -> None:
        while not ended.is_set():
            if not self._attempts():  # sleep until a tick of the heartbeat finds attempts
                self._has_work.clear()
                await self._has_work.wait()
            if self._list_attempts_with_new_progress():
                await self._report_until_idle(ended)
            await asyncio.sleep(PROGRESS_REPORT_INTERVAL_S)

    def wake_if_needed(self, *, ending: bool = False) -> None:
        """Wake the reporter if there are attempts, or if it has to end. Called in its event loop."""
        if ending or (not self._has_work.is_set() and self._attempts()):
            self._has_work.set()

    async def _report_until_idle(self, ended: threading.Event) -> None:
        try:
            async with open_connection(self._url, self._settings, report_outage=True) as connection:
                await self._report_while_connected(connection, ended)
        except Exception as error:  # progress must not end with one failure
            self._failures.report_failure(error)
        else:
            self._failures.report_success()

    async def _report_while_connected(self, connection: Connection, ended: threading.Event) -> None:
        used_at = time.monotonic()
        while not ended.is_set() and time.monotonic() < used_at + MAX_IDLE_CONNECTION_S:
            due = self._list_attempts_with_new_progress()
            if due:
                used_at = time.monotonic()
                await self._write_progress(connection, due)
            await asyncio.sleep(PROGRESS_REPORT_INTERVAL_S)

    def _list_attempts_with_new_progress(self) -> list[Attempt]:
        return [
            a
            for a in self._attempts()
            if a.context is not None and a.context.get_unreported_progress() is not None
        ]

    async def _write_progress(self, connection: Connection, attempts: list[Attempt]) -> None:
        # Of two attempts of one task, only the newer one can hold its lease.
        unreported = {
            a.claimed.id: (a.claimed.lease, a.context, report)
            for a in sorted(attempts, key=lambda a: a.claimed.attempt)
            if a.context is not None and (report := a.context.get_unreported_progress()) is not None
        }
        # The heartbeat call carries progress. It also renews these leases, which does no harm.
        response = await leases.heartbeat_tasks(
            connection,
            worker=self._worker,
            held=[a.claimed for a in attempts],
            progress={i: report for i, (_, _, report) in unreported.items()},
        )
        for lease, context, report in unreported.values():
            if lease not in response.lost:
                context.mark_reported(report)
