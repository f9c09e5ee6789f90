"""Set limits of tasks, and pause and configure task queues. One coroutine per SQL function."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, fetch_objects
from holdfast.engine.queues import check_queue_name, list_queue_names
from holdfast.engine.task_types import check_task_type_name, list_task_type_names


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


class LimitedNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names that a limit may apply to: those of queues and task types, and of the limit as it is now."""

    queues: frozenset[str]
    types: frozenset[str]


async def list_limited_names(connection: Connection, limit: LimitRule) -> LimitedNames:
    """Return the names that a limit may apply to. A limit that is changed keeps its queue and task."""
    before = [row for row in await list_limits(connection) if row["name"] == limit.name]
    return LimitedNames(
        queues=frozenset([*await list_queue_names(connection), *(row["queue"] or "" for row in before)]),
        types=frozenset([*await list_task_type_names(connection), *(row["type"] or "" for row in before)]),
    )


def check_names_of_limit(limit: LimitRule, known: Sequence[LimitedNames], *, fix: str) -> None:
    """Raise `NotFoundError` with the most similar name if no database knows the queue or task of a limit."""
    if limit.queue is not None:
        check_queue_name(limit.queue, sorted({name for names in known for name in names.queues}), fix=fix)
    if limit.type is not None:
        check_task_type_name(limit.type, sorted({name for names in known for name in names.types}), fix=fix)


async def require_names_of_limit(connection: Connection, limit: LimitRule, *, fix: str) -> None:
    """Raise `NotFoundError` with the most similar name if the queue or task of a limit does not exist."""
    check_names_of_limit(limit, [await list_limited_names(connection, limit)], fix=fix)


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
