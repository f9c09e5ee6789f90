"""Run maintenance: one coroutine per SQL function."""

from __future__ import annotations

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, decode_object


async def tick(connection: Connection, *, limit: int = 1000) -> JsonObject:
    """Run one bounded round of all maintenance. The result has `more` set if rows are left to process."""
    return decode_object(await connection.fetchval("select holdfast.tick($1)", limit))


async def run_urgent_maintenance(connection: Connection) -> float | None:
    """Resume queues whose pause has ended and advance bulk actions.

    Return the seconds until the next call is due, or None while nothing is pending.
    """
    seconds: float | None = await connection.fetchval("select holdfast.run_urgent_maintenance()")
    return seconds


async def tick_operations(connection: Connection) -> int:
    """Store throughput samples, advance bulk actions, and delete old dashboard data.

    `tick` does the same now and then. A dashboard calls this function while somebody watches it.
    """
    return int(await connection.fetchval("select holdfast.tick_operations()"))
