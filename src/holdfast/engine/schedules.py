"""Create, list, pause, run and preview stored schedules. One coroutine per SQL function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.jobs import SubmitResult
from holdfast.model import Json, StoredSchedule

_schedule_decoder = msgspec.json.Decoder(StoredSchedule)
_SCHEDULE_PARAMETER_NAMES = ("name", "job", "cron", "every_s", "timezone", "missed", "max_catch_up", "owner")


class ScheduleRegistrationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Names of an application's schedules by result. `missing` schedules are stored but not in the code."""

    created: list[str]
    changed: list[str]
    unchanged: list[str]
    missing: list[str]


class ScheduledRun(msgspec.Struct, frozen=True, kw_only=True):
    """When a schedule runs, and the status of one of its jobs (None if the job does not exist)."""

    cron: str | None
    every_s: float | None
    timezone: str
    status: str | None


_run_decoder = msgspec.json.Decoder(ScheduledRun)


async def put_schedule(connection: Connection, schedule: Mapping[str, Json]) -> StoredSchedule:
    """Create or replace a schedule. Its next run time changes only if its cron or interval changes."""
    return _schedule_decoder.decode(await _call_schedule_function(connection, "put_schedule", schedule))


async def create_schedule(connection: Connection, schedule: Mapping[str, Json]) -> StoredSchedule:
    """Create a schedule. Raise ConflictError if the name exists."""
    return _schedule_decoder.decode(await _call_schedule_function(connection, "create_schedule", schedule))


async def _call_schedule_function(connection: Connection, function: str, schedule: Mapping[str, Json]) -> str:
    arguments = {name: schedule[name] for name in _SCHEDULE_PARAMETER_NAMES if schedule.get(name) is not None}
    arguments["job"] = msgspec.json.encode(schedule["job"]).decode()
    parameters = ", ".join(f"p_{name} => ${number}" for number, name in enumerate(arguments, 1))
    call = f"select holdfast.{function}({parameters})"
    return cast("str", await connection.fetchval(call, *arguments.values()))


async def register_schedules(
    connection: Connection, source: str, schedules: Sequence[Mapping[str, Json]]
) -> ScheduleRegistrationResult:
    """Store the schedules that an application declares in its code. `source` names the application."""
    text = msgspec.json.encode(schedules).decode()
    response = await connection.fetchval("select holdfast.register_schedules($1, $2)", source, text)
    return msgspec.json.decode(response, type=ScheduleRegistrationResult)


async def list_schedules(
    connection: Connection, *, owner: str | None = None, after: str | None = None, limit: int = 100
) -> list[StoredSchedule]:
    """List schedules in the order of their names, starting after the name `after`."""
    rows = await connection.fetch(
        "select holdfast.list_schedules($1, $2, $3) as schedule", owner, after, limit
    )
    return [_schedule_decoder.decode(row["schedule"]) for row in rows]


async def get_schedule(connection: Connection, name: str) -> StoredSchedule:
    """Return a schedule. Raise NotFoundError if it does not exist."""
    return _schedule_decoder.decode(await connection.fetchval("select holdfast.get_schedule($1)", name))


async def pause_schedule(connection: Connection, name: str, by: str | None = None) -> bool:
    """Pause a schedule. Return False if it was already paused."""
    return bool(await connection.fetchval("select holdfast.pause_schedule($1, $2)", name, by))


async def resume_schedule(connection: Connection, name: str) -> bool:
    """Resume a schedule. Return False if it was not paused."""
    return bool(await connection.fetchval("select holdfast.resume_schedule($1)", name))


async def delete_schedule(connection: Connection, name: str) -> bool:
    """Delete a schedule. Return False if it does not exist."""
    return bool(await connection.fetchval("select holdfast.delete_schedule($1)", name))


async def run_schedule(connection: Connection, name: str) -> SubmitResult:
    """Submit the job of a schedule now, in addition to its scheduled runs."""
    response = await connection.fetchval("select holdfast.run_schedule($1)", name)
    return msgspec.json.decode(response, type=SubmitResult)


async def get_scheduled_run(connection: Connection, name: str, job_id: UUID) -> ScheduledRun | None:
    """Return a run of a schedule, or None if the schedule does not exist or belongs to an end user."""
    text = await connection.fetchval("select holdfast.get_scheduled_run($1, $2)", name, job_id)
    return None if text is None else _run_decoder.decode(text)


async def preview_schedule(connection: Connection, name: str, count: int = 10) -> list[datetime]:
    """Return the next run times of a stored schedule."""
    rows = await connection.fetch("select t from holdfast.preview_schedule($1, $2) as t", name, count)
    return [row["t"] for row in rows]


async def list_next_run_times(
    connection: Connection,
    *,
    cron: str | None = None,
    every_s: float | None = None,
    timezone: str = "UTC",
    count: int = 10,
    after: datetime | None = None,
) -> list[datetime]:
    """Return the next run times of a cron expression or an interval that is not stored."""
    rows: list[Any] = await connection.fetch(
        "select t from holdfast.list_next_run_times($1, $2, $3, $4, $5) as t",
        cron,
        every_s,
        timezone,
        count,
        after,
    )
    return [row["t"] for row in rows]
