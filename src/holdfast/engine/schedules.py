"""Schedules as data: make, look at, pause, run, preview. One coroutine per SQL function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.jobs import Submitted
from holdfast.model import Json, StoredSchedule

_stored = msgspec.json.Decoder(StoredSchedule)
_NAMED = ("name", "job", "cron", "every_s", "timezone", "missed", "most", "owner")


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the schedules of an application; `missing` are those its code no longer has."""

    created: list[str]
    changed: list[str]
    unchanged: list[str]
    missing: list[str]


async def put_schedule(connection: Connection, schedule: Mapping[str, Json]) -> StoredSchedule:
    """Make or change the schedule of that name. Its next time stays unless its times change."""
    return _stored.decode(await _call(connection, "put_schedule", schedule))


async def create_schedule(connection: Connection, schedule: Mapping[str, Json]) -> StoredSchedule:
    """ConflictError when there is one of that name."""
    return _stored.decode(await _call(connection, "create_schedule", schedule))


async def _call(connection: Connection, function: str, schedule: Mapping[str, Json]) -> str:
    given = {name: schedule[name] for name in _NAMED if schedule.get(name) is not None}
    given["job"] = msgspec.json.encode(schedule["job"]).decode()
    names = ", ".join(f"p_{name} => ${number}" for number, name in enumerate(given, 1))
    return cast("str", await connection.fetchval(f"select holdfast.{function}({names})", *given.values()))


async def register_schedules(
    connection: Connection, source: str, schedules: Sequence[Mapping[str, Json]]
) -> Registered:
    text = msgspec.json.encode(schedules).decode()
    answer = await connection.fetchval("select holdfast.register_schedules($1, $2)", source, text)
    return msgspec.json.decode(answer, type=Registered)


async def list_schedules(
    connection: Connection, *, owner: str | None = None, after: str | None = None, limit: int = 100
) -> list[StoredSchedule]:
    rows = await connection.fetch(
        "select holdfast.list_schedules($1, $2, $3) as schedule", owner, after, limit
    )
    return [_stored.decode(row["schedule"]) for row in rows]


async def get_schedule(connection: Connection, name: str) -> StoredSchedule:
    return _stored.decode(await connection.fetchval("select holdfast.get_schedule($1)", name))


async def pause_schedule(connection: Connection, name: str, by: str | None = None) -> bool:
    """False when it was paused already."""
    return bool(await connection.fetchval("select holdfast.pause_schedule($1, $2)", name, by))


async def resume_schedule(connection: Connection, name: str) -> bool:
    return bool(await connection.fetchval("select holdfast.resume_schedule($1)", name))


async def delete_schedule(connection: Connection, name: str) -> bool:
    return bool(await connection.fetchval("select holdfast.delete_schedule($1)", name))


async def run_schedule(connection: Connection, name: str) -> Submitted:
    answer = await connection.fetchval("select holdfast.run_schedule($1)", name)
    return msgspec.json.decode(answer, type=Submitted)


async def preview_schedule(connection: Connection, name: str, count: int = 10) -> list[datetime]:
    rows = await connection.fetch("select t from holdfast.preview_schedule($1, $2) as t", name, count)
    return [row["t"] for row in rows]


async def next_times(
    connection: Connection,
    *,
    cron: str | None = None,
    every_s: float | None = None,
    timezone: str = "UTC",
    count: int = 10,
    after: datetime | None = None,
) -> list[datetime]:
    """What an expression or an interval means, without a schedule."""
    rows: list[Any] = await connection.fetch(
        "select t from holdfast.next_times($1, $2, $3, $4, $5) as t", cron, every_s, timezone, count, after
    )
    return [row["t"] for row in rows]
