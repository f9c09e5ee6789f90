"""Read totals and trends for dashboards: queue lengths, throughput, problems and database health."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, decode_object, fetch_objects

SampledKind = Literal["queue", "type", "worker", "owner"]


async def get_engine_metrics(connection: Connection, *, max_rows: int = 10_000) -> JsonObject:
    """Return the numbers of ready, running and scheduled tasks, of workers, and the limits in use.

    Each count stops at `max_rows`, so a backlog of millions costs no more than one of `max_rows`.
    """
    return decode_object(await connection.fetchval("select holdfast.metrics($1)", max_rows))


async def get_throughput_chart(
    connection: Connection, hours: float = 1, *, queue: str | None = None, task_type: str | None = None
) -> JsonObject:
    """Return throughput over time: ended tasks, wait times, run times and queue lengths per interval."""
    call = "select holdfast.get_throughput_chart($1, $2, $3)"
    return decode_object(await connection.fetchval(call, hours, queue, task_type))


async def get_throughput_range(
    connection: Connection,
    start: datetime,
    end: datetime,
    *,
    queue: str | None = None,
    task_type: str | None = None,
) -> JsonObject:
    """Return throughput as `get_throughput_chart` does, for any period of the last 35 days."""
    call = "select holdfast.get_throughput_range($1, $2, $3, $4)"
    return decode_object(await connection.fetchval(call, start, end, queue, task_type))


async def get_throughput_histograms(
    connection: Connection, start: datetime, end: datetime
) -> list[JsonObject]:
    """Return the histograms of wait and run times in the steps of `get_throughput_range`, to add them up."""
    call = "select jsonb_array_elements(holdfast.get_throughput_histograms($1, $2))"
    return await fetch_objects(connection, call, start, end)


async def get_throughput_by_name(
    connection: Connection,
    kind: SampledKind,
    start: datetime,
    end: datetime,
    *,
    name: str | None = None,
    max_names: int = 8,
) -> JsonObject:
    """Return ended tasks over time by queue, task type, worker or owner, or of one `name` of that kind.

    `max_names` names have points of their own, the most active first; the rest has the empty name.
    """
    call = "select holdfast.get_throughput_by_name($1, $2, $3, $4, $5)"
    return decode_object(await connection.fetchval(call, kind, start, end, name, max_names))


async def get_task_type_stats(connection: Connection, hours: float = 24) -> list[JsonObject]:
    """Return outcomes, durations and a trend of twelve intervals for each queue and task type."""
    return await fetch_objects(connection, "select holdfast.get_task_type_stats($1)", hours)


async def count_problems(connection: Connection, since: datetime) -> JsonObject:
    """Count tasks that failed since `since`, and tasks that are now retrying, scheduled or waiting."""
    return decode_object(await connection.fetchval("select holdfast.count_problems($1)", since))


async def get_database_health(connection: Connection) -> JsonObject:
    """Return version, sizes, connections, the oldest transaction and vacuum state of the database."""
    return decode_object(await connection.fetchval("select holdfast.get_database_health()"))


async def list_maintenance_problems(connection: Connection, *, limit: int = 50) -> list[JsonObject]:
    """List rows that maintenance has set aside because they fail, the newest first."""
    statement = "select to_jsonb(p) from holdfast.list_maintenance_problems($1) as p"
    return await fetch_objects(connection, statement, limit)


async def get_database_change_token(connection: Connection) -> str:
    """Return a token that changes whenever a transaction writes anything on the database server."""
    return str(await connection.fetchval("select pg_catalog.pg_current_snapshot()::text"))
