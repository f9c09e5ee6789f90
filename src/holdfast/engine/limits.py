"""Flow control of tasks: limits, pauses, retention. One coroutine per SQL function."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from holdfast.engine.connection import Connection


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """How many leases at once and starts a second, for what fits queue and type, or for each key of it."""

    name: str
    queue: str | None = None
    type: str | None = None
    per_key: bool = False
    max_running: int | None = None
    rate: float | None = None
    burst: float | None = None


async def put_limit(connection: Connection, limit: Limit) -> None:
    """Make or change a limit. What runs now is counted; work waits for a moment while it is."""
    await connection.execute(
        "select holdfast.put_limit($1, $2, $3, $4, $5, $6, $7)", *msgspec.structs.astuple(limit)
    )


async def remove_limit(connection: Connection, name: str) -> bool:
    return bool(await connection.fetchval("select holdfast.remove_limit($1)", name))


async def pause_queue(
    connection: Connection, queue: str, *, why: str | None = None, by: str | None = None
) -> None:
    """Nothing of the queue is claimed until it is resumed; what runs goes on."""
    await connection.execute("select holdfast.pause_queue($1, $2, $3)", queue, why, by)


async def resume_queue(connection: Connection, queue: str) -> bool:
    """False when it was not paused."""
    return bool(await connection.fetchval("select holdfast.resume_queue($1)", queue))


async def fair_queue(connection: Connection, queue: str, *, owners: bool = True) -> None:
    """Let the owners of what is submitted to the queue from now on take turns, or no longer."""
    await connection.execute("select holdfast.fair_queue($1, $2)", queue, owners)


async def put_queue(
    connection: Connection,
    queue: str,
    *,
    keep: timedelta | None = None,
    keep_failed: timedelta | None = None,
    ageing: timedelta | None = None,
) -> None:
    """How long the queue keeps what has ended, and how long a wait is worth one priority."""
    await connection.execute(
        "select holdfast.put_queue($1, $2, $3, $4)",
        queue,
        None if keep is None else int(keep.total_seconds()),
        None if keep_failed is None else int(keep_failed.total_seconds()),
        None if ageing is None else ageing.total_seconds(),
    )
