"""Check in with Sentry for the runs of schedules, so that Sentry alerts you when a run fails or is missing.

A run is a job. An attempt of one of its tasks reports `in_progress`, the end of the job `ok` or `error`. The
id of the job is the id of the check-in, so any worker may report any part of a run, more than once.

Schedules of end users (with an owner) do not check in: each would be a monitor of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal
from uuid import UUID

from holdfast import telemetry
from holdfast.engine import schedules
from holdfast.engine.connection import Database
from holdfast.engine.schedules import ScheduledRun
from holdfast.errors import HoldfastError
from holdfast.model import ENDED_STATUSES
from holdfast.settings import Settings
from holdfast.worker.background import ServiceFailureReporter

CHECK_IN_EVENTS: Final = ("schedule.attempt_started", "task.finished")
MAX_SLUG_LENGTH: Final = 50  # Sentry's
# A job of many tasks reports that it still runs at most this often.
PROGRESS_INTERVAL_S: Final = 60.0
RETRY_PAUSE_S: Final = 1.0
STOP_TIMEOUT_S: Final = 5.0
MAX_REMEMBERED_RUNS: Final = 1000
SECONDS_PER_MINUTE: Final = 60

CheckInStatus = Literal["in_progress", "ok", "error"]
_log = logging.getLogger("holdfast.worker")


@asynccontextmanager
async def check_in_with_sentry(database: Database, settings: Settings) -> AsyncGenerator[None]:
    """Report the runs of schedules to Sentry while the block runs. Does nothing without `sentry_dsn`."""
    if settings.sentry_dsn is None or settings.sentry_check_ins == "off":
        yield
        return
    check_ins = ScheduleCheckIns(database)
    sender = asyncio.create_task(check_ins.send_until_closed(), name="ScheduleCheckIns")
    unsubscribe = telemetry.subscribe(check_ins.handle_event, only=CHECK_IN_EVENTS)
    try:
        yield
    finally:
        unsubscribe()
        check_ins.close()
        await asyncio.wait({sender}, timeout=STOP_TIMEOUT_S)
        sender.cancel()


@dataclass
class _UnreportedRun:
    """What happened to a run since its last report."""

    schedule: str
    started: bool = False
    task_finished: bool = False


class ScheduleCheckIns:
    """Collects what happens to runs of schedules, and sends it from one loop, so that tasks never wait."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()
        self._unreported: dict[UUID, _UnreportedRun] = {}
        self._progress_sent_at: dict[UUID, float] = {}
        self._refused_schedules: set[str] = set()
        self._has_news = asyncio.Event()
        self._closing = False
        self._failures = ServiceFailureReporter("ScheduleCheckIns")

    def handle_event(self, name: str, fields: dict[str, Any]) -> None:
        """Take note of an event of a task. Safe to call from any thread."""
        if fields.get("schedule") is not None:
            self._loop.call_soon_threadsafe(self._note, name, fields["job"], fields["schedule"])

    def _note(self, event: str, job_id: UUID, schedule: str) -> None:
        run = self._unreported.setdefault(job_id, _UnreportedRun(schedule))
        if event == "task.finished":
            run.task_finished = True
        else:
            run.started = True
        self._has_news.set()

    def close(self) -> None:
        """End `send_until_closed` after it has sent what is known."""
        self._loop.call_soon(self._request_close)  # after the events that are noted already

    def _request_close(self) -> None:
        self._closing = True
        self._has_news.set()

    async def send_until_closed(self) -> None:
        while not self._closing or self._unreported:
            if not self._unreported:
                self._has_news.clear()
                await self._has_news.wait()
                continue
            job_id = next(iter(self._unreported))
            run = self._unreported.pop(job_id)
            try:
                await self._report_run(job_id, run)
            except HoldfastError as error:
                self._failures.report_failure(error)
                if self._closing:
                    return
                self._put_back(job_id, run)
                await asyncio.sleep(RETRY_PAUSE_S)
            else:
                self._failures.report_success()

    def _put_back(self, job_id: UUID, run: _UnreportedRun) -> None:
        newer = self._unreported.setdefault(job_id, run)
        newer.started |= run.started
        newer.task_finished |= run.task_finished

    async def _report_run(self, job_id: UUID, run: _UnreportedRun) -> None:
        async with self._database.connection() as connection:
            stored = await schedules.get_scheduled_run(connection, run.schedule, job_id)
        if stored is None:  # deleted meanwhile, of an end user, or of another shard
            return
        config = build_monitor_config(stored)
        if config is None:
            self._refuse_schedule(run.schedule)
            return
        if run.started and self._is_progress_due(job_id):
            _send_check_in(run.schedule, job_id, "in_progress", config)
        if run.task_finished and stored.status in ENDED_STATUSES:
            self._progress_sent_at.pop(job_id, None)
            _send_check_in(run.schedule, job_id, "ok" if stored.status == "succeeded" else "error", config)

    def _is_progress_due(self, job_id: UUID) -> bool:
        now = time.monotonic()
        if now < self._progress_sent_at.get(job_id, float("-inf")) + PROGRESS_INTERVAL_S:
            return False
        if len(self._progress_sent_at) >= MAX_REMEMBERED_RUNS:  # runs that ended in other workers
            del self._progress_sent_at[next(iter(self._progress_sent_at))]
        self._progress_sent_at[job_id] = now
        return True

    def _refuse_schedule(self, name: str) -> None:
        if name not in self._refused_schedules:
            self._refused_schedules.add(name)
            _log.warning(
                "Schedule %r does not check in with Sentry, whose shortest unit is a minute: its interval "
                "is not a number of whole minutes.",
                name,
            )


def build_monitor_config(run: ScheduledRun) -> dict[str, Any] | None:
    """Return when Sentry expects runs, or None if Sentry cannot express it.

    Margins and the maximum run time are left out, so that those set in Sentry stay.
    """
    if run.cron is not None:
        expected: dict[str, Any] = {"type": "crontab", "value": run.cron}
    elif run.every_s and run.every_s % SECONDS_PER_MINUTE == 0:
        expected = {"type": "interval", "value": int(run.every_s) // SECONDS_PER_MINUTE, "unit": "minute"}
    else:
        return None
    return {"schedule": expected, "timezone": run.timezone}


def build_monitor_slug(schedule: str) -> str:
    """Return the name of a schedule in the characters that Sentry allows for a monitor.

    >>> from holdfast.worker.sentry_check_ins import build_monitor_slug
    >>> build_monitor_slug("Nightly report (EU)")
    'nightly-report-eu'
    """
    return re.sub(r"[^a-z0-9_-]+", "-", schedule.lower()).strip("-")[:MAX_SLUG_LENGTH]


def _send_check_in(schedule: str, job_id: UUID, status: CheckInStatus, config: dict[str, Any]) -> None:
    """Hand a check-in to the SDK, which sends it in a thread of its own."""
    importlib.import_module("sentry_sdk.crons").capture_checkin(
        monitor_slug=build_monitor_slug(schedule),
        check_in_id=job_id.hex,
        status=status,
        monitor_config=config,
    )
