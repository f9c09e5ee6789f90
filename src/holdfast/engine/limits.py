"""Set limits of tasks, and pause and configure task queues. One coroutine per SQL function."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, fetch_objects
from holdfast.engine.queues import require_queue_name
from holdfast.engine.task_types import require_task_type_name


class LimitRule(msgspec.Struct, frozen=True, kw_only=True):
    """A limit rule: how many tasks may run at once and start per second, in all or per limit key."""

    name: str
    queue: str | None = None
    type: str | None = None
    per_key: bool = False
    max_running: int | None = None
    rate: float | None = None
    burst: float | None = None


async def put_limit(connection: Connection, limit: LimitRule) -> None:
    """Create or change a limit. Claims wait while the running tasks are counted."""
    await connection.execute(
        "select holdfast.put_limit($1, $2, $3, $4, $5, $6, $7)", *msgspec.structs.astuple(limit)
    )


async def require_names_of_limit(connection: Connection, limit: LimitRule, *, fix: str) -> None:
    """Raise `NotFoundError` with the most similar name if the queue or task of a limit does not exist.

    A limit that is changed keeps its queue and task, whether they exist or not.
    """
    known = await list_limits(connection)
    before = next((row for row in known if row["name"] == limit.name), {"queue": None, "type": None})
    if limit.queue not in (None, before["queue"]):
        await require_queue_name(connection, limit.queue, fix=fix)
    if limit.type not in (None, before["type"]):
        await require_task_type_name(connection, limit.type, fix=fix)


async def delete_limit(connection: Connection, name: str) -> bool:
    """Delete a limit. Return False if it does not exist."""
    return bool(await connection.fetchval("select holdfast.delete_limit($1)", name))


async def pause_queue(
    connection: Connection, queue: str, *, reason: str | None = None, by: str | None = None
) -> None:
    """Pause a task queue: workers claim none of its tasks until it is resumed. Running tasks continue."""
    await connection.execute("select holdfast.pause_queue($1, $2, $3)", queue, reason, by)


async def resume_queue(connection: Connection, queue: str) -> bool:
    """Resume a paused task queue. Return False if the queue was not paused."""
    return bool(await connection.fetchval("select holdfast.resume_queue($1)", queue))


async def set_fair_queue(connection: Connection, queue: str, *, owners: bool = True) -> None:
    """Turn fair scheduling between job owners on or off for a queue. Applies to jobs submitted later."""
    await connection.execute("select holdfast.set_fair_queue($1, $2)", queue, owners)


async def put_queue_settings(
    connection: Connection,
    queue: str,
    *,
    keep: timedelta | None = None,
    keep_failed: timedelta | None = None,
    ageing: timedelta | None = None,
) -> None:
    """Set the retention of ended jobs in a queue, and the wait time that raises a task's priority by one."""
    await connection.execute(
        "select holdfast.put_queue_settings($1, $2, $3, $4)",
        queue,
        None if keep is None else int(keep.total_seconds()),
        None if keep_failed is None else int(keep_failed.total_seconds()),
        None if ageing is None else ageing.total_seconds(),
    )


async def list_limits(connection: Connection) -> list[JsonObject]:
    """List limits with their keys, running tasks and free tokens."""
    return await fetch_objects(connection, "select holdfast.list_limits()")
