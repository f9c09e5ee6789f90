"""`client.schedules`: work that is submitted at set times. You can change schedules at any time."""

from __future__ import annotations

import builtins
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from holdfast.client.connections import ClientConnections
from holdfast.client.handles import JobHandle
from holdfast.client.jobs import JobOperations
from holdfast.definitions.graphs import Graph
from holdfast.definitions.schedules import MissedRunPolicy, Schedule, schedule
from holdfast.definitions.tasks import Call
from holdfast.definitions.validation import check_option_names, parse_duration
from holdfast.engine import schedules
from holdfast.engine.connection import Connection
from holdfast.errors import InvalidError
from holdfast.model import StoredSchedule

SCHEDULE_PAGE_ROWS = 500


class ScheduleOptions(TypedDict, total=False):
    """Keyword arguments of `client.schedules.create` and `put`: the name and times of a schedule.

    name: the name of the schedule. The default is the name of the task or of the graph.
    cron: a cron expression, such as `0 3 * * *` or `@daily`.
    every: the time between two runs, instead of `cron`.
    timezone: the time zone of the cron expression. The default is UTC.
    missed: what to do about runs that were missed: `skip`, `coalesce` (run once) or `catch_up` (run all).
    max_catch_up: the maximum number of missed runs that `catch_up` makes up for. The default is 100.
    owner: the owner of the jobs.
    unique: do not start a run while a job of the previous run is unfinished.

    >>> from holdfast import ScheduleOptions
    >>> nightly: ScheduleOptions = {"cron": "0 3 * * *", "timezone": "Europe/Madrid"}
    """

    name: str | None
    cron: str | None
    every: timedelta | float | None
    timezone: str
    missed: MissedRunPolicy
    max_catch_up: int
    owner: str | None
    unique: bool


class Schedules:
    """`client.schedules`: create, change, pause and delete schedules."""

    def __init__(self, connections: ClientConnections, jobs: JobOperations) -> None:
        self._connections = connections
        self._jobs = jobs

    async def create(
        self, work: Call[Any] | Graph | Schedule, **options: Unpack[ScheduleOptions]
    ) -> StoredSchedule:
        """Create a schedule. Raise ConflictError if a schedule with this name exists."""
        request = _build_schedule(work, options).build_request()
        async with (await self._connections.for_name(request["name"])).connection() as connection:
            return await schedules.create_schedule(connection, request)

    async def put(
        self, work: Call[Any] | Graph | Schedule, **options: Unpack[ScheduleOptions]
    ) -> StoredSchedule:
        """Create a schedule, or change the schedule with this name.

        `change` in the result says which of both happened.
        """
        request = _build_schedule(work, options).build_request()
        async with (await self._connections.for_name(request["name"])).connection() as connection:
            return await schedules.put_schedule(connection, request)

    async def list(self, *, owner: str | None = None) -> builtins.list[StoredSchedule]:
        """Return all schedules, or those of one owner, ordered by name.

        A client with shards asks all of them and raises an error if one does not answer.
        """

        async def list_all(connection: Connection) -> builtins.list[StoredSchedule]:
            return await _list_all_schedules(connection, owner)

        if self._connections.shards is not None:
            answers, failures = await self._connections.shards.ask_all(list_all)
            for error in failures.values():
                raise error
            return sorted((row for rows in answers.values() for row in rows), key=lambda row: row.name)
        async with self._connections.connection() as connection:
            return await list_all(connection)

    async def get(self, name: str) -> StoredSchedule:
        """Return one schedule. Raise NotFoundError if the schedule does not exist."""
        async with (await self._connections.for_name(name)).connection() as connection:
            return await schedules.get_schedule(connection, name)

    async def pause(self, name: str, *, by: str | None = None) -> bool:
        """Pause a schedule. Return False if the schedule was paused already.

        Runs that fall due while a schedule is paused are not made up for.
        """
        async with (await self._connections.for_name(name)).connection() as connection:
            return await schedules.pause_schedule(connection, name, by)

    async def resume(self, name: str) -> bool:
        """Resume a paused schedule. Return False if the schedule was not paused."""
        async with (await self._connections.for_name(name)).connection() as connection:
            return await schedules.resume_schedule(connection, name)

    async def delete(self, name: str) -> bool:
        """Delete a schedule. Return False if the schedule does not exist."""
        async with (await self._connections.for_name(name)).connection() as connection:
            return await schedules.delete_schedule(connection, name)

    async def run_now(self, name: str) -> JobHandle[Any]:
        """Submit the work of a schedule now, even if the schedule is paused."""
        async with (await self._connections.for_name(name)).connection() as connection:
            submitted = await schedules.run_schedule(connection, name)
        return JobHandle(self._jobs, submitted.id, Any, created=submitted.created)

    async def preview(self, name: str, count: int = 10) -> builtins.list[datetime]:
        """Return the next run times of a schedule, as if the schedule were not paused."""
        async with (await self._connections.for_name(name)).connection() as connection:
            return await schedules.preview_schedule(connection, name, count)

    async def next_times(
        self,
        cron: str | None = None,
        *,
        every: timedelta | float | None = None,
        timezone: str = "UTC",
        count: int = 10,
        after: datetime | None = None,
    ) -> builtins.list[datetime]:
        """Return the next run times of a cron expression or an interval, without storing a schedule."""
        every_s = None if every is None else parse_duration(every, "every").total_seconds()
        async with self._connections.connection() as connection:
            return await schedules.list_next_run_times(
                connection, cron=cron, every_s=every_s, timezone=timezone, count=count, after=after
            )


async def _list_all_schedules(connection: Connection, owner: str | None) -> builtins.list[StoredSchedule]:
    rows: builtins.list[StoredSchedule] = []
    while True:
        after = rows[-1].name if rows else None
        page = await schedules.list_schedules(connection, owner=owner, after=after, limit=SCHEDULE_PAGE_ROWS)
        rows += page
        if len(page) < SCHEDULE_PAGE_ROWS:
            return rows


def _build_schedule(work: Call[Any] | Graph | Schedule, options: ScheduleOptions) -> Schedule:
    check_option_names(options, ScheduleOptions.__annotations__, "schedules")
    if not isinstance(work, Schedule):
        return schedule(work, **options)
    if options:
        raise InvalidError(
            f"The schedule {work.name!r} was declared with options, so no options can be passed here.",
            fix="Pass the options to schedule(), or pass a call instead of a schedule.",
            field=next(iter(options)),
        )
    return work
