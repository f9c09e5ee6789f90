"""Store the awaited progress reports of a worker's tasks together, one statement for many tasks.

A report is sent at once if no other is on its way. Reports that arrive meanwhile are sent together, one of
each task, so that every value is stored, and the values of a task in their order. While several tasks report,
a statement is sent at most every 10 ms.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Final

import msgspec

from holdfast.engine import leases
from holdfast.engine.connection import Database
from holdfast.engine.leases import Lease
from holdfast.errors import DatabaseUnavailableError
from holdfast.model import Progress

MIN_BATCH_INTERVAL_S: Final = 0.01
MAX_BATCH_SIZE: Final = 500


class _Report(msgspec.Struct, eq=False):
    lease: Lease
    progress: Progress
    stored: asyncio.Future[None]


class ProgressBatcher:
    """Stores progress reports. All calls must come from one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_Report] = []
        self._leases_stored_alone: set[Lease] = set()
        self._sender: asyncio.Task[None] | None = None
        self._single_stores: set[asyncio.Task[None]] = set()

    async def store(self, lease: Lease, progress: Progress) -> None:
        """Store a report and return when it is committed. Raise LeaseLostError if the lease is lost."""
        report = _Report(lease.lease, progress, asyncio.get_running_loop().create_future())
        self._waiting.append(report)
        self._start_sender()
        await report.stored

    def _start_sender(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send_batches())

    async def _send_batches(self) -> None:
        clock = asyncio.get_running_loop().time
        while batch := self._take_batch():
            sent_at = clock()
            await self._send(batch)
            if len(batch) > 1:  # the tasks of this batch will report again: collect their reports
                await asyncio.sleep(max(0.0, sent_at + MIN_BATCH_INTERVAL_S - clock()))

    def _take_batch(self) -> list[_Report]:
        """Take the first report of each task. Reports whose caller was cancelled are dropped."""
        batch: dict[Lease, _Report] = {}
        rest: list[_Report] = []
        for report in self._waiting:
            if report.stored.done():
                continue
            if (
                report.lease in batch
                or report.lease in self._leases_stored_alone
                or len(batch) >= MAX_BATCH_SIZE
            ):
                rest.append(report)
            else:
                batch[report.lease] = report
        self._waiting = rest
        return list(batch.values())

    async def _send(self, batch: list[_Report]) -> None:
        try:
            async with self._database.connection() as connection:
                answers = await leases.save_progress(connection, [(r.lease, r.progress) for r in batch])
        except DatabaseUnavailableError as error:
            for report in batch:
                _end_report(report, copy.copy(error))  # each task gets its own traceback
        except Exception:  # one of the reports is refused: find out which
            for report in batch:
                self._store_alone_soon(report)
        else:
            for report, answer in zip(batch, answers, strict=True):
                if answer == "ok":
                    _end_report(report)
                else:
                    self._store_alone_soon(report)

    def _store_alone_soon(self, report: _Report) -> None:
        """Store a report by a statement of its own, which waits for locks and has its own error."""
        self._leases_stored_alone.add(report.lease)
        task = asyncio.get_running_loop().create_task(self._store_alone(report))
        self._single_stores.add(task)
        task.add_done_callback(self._single_stores.discard)

    async def _store_alone(self, report: _Report) -> None:
        percent, phase, message = report.progress.percent, report.progress.phase, report.progress.message
        try:
            async with self._database.connection() as connection:
                await leases.report_progress(connection, report.lease, percent, phase, message)
        except Exception as error:  # the task that reported decides what to do
            _end_report(report, error)
        else:
            _end_report(report)
        finally:
            self._leases_stored_alone.discard(report.lease)
            self._start_sender()


def _end_report(report: _Report, error: Exception | None = None) -> None:
    if report.stored.done():  # the caller was cancelled
        return
    if error is None:
        report.stored.set_result(None)
    else:
        report.stored.set_exception(error)
