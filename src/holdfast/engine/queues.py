"""List task queues, and pause one until a given time."""

from __future__ import annotations

from datetime import datetime

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, fetch_objects


async def list_task_queues(
    connection: Connection, queue: str | None = None, *, max_rows: int = 10_000
) -> list[JsonObject]:
    """List all task queues, or only `queue`. Counts stop at `max_rows` for each lane."""
    return await fetch_objects(connection, "select holdfast.list_task_queues($1, $2)", queue, max_rows)


async def pause_queue_until(
    connection: Connection, queue: str, until: datetime | None, *, reason: str | None, by: str
) -> None:
    """Pause a task queue until a time, or until `resume_queue` if `until` is None."""
    await connection.execute("select holdfast.pause_queue_until($1, $2, $3, $4)", queue, until, reason, by)
