"""What people at a terminal ask: queues of tasks, workers, limits, and how a job was submitted."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.model import Json

_json = msgspec.json.Decoder()
Row = dict[str, Json]


async def task_queues(connection: Connection, queue: str | None = None, *, most: int = 10_000) -> list[Row]:
    """Every queue of tasks, or the one named. Counts stop at `most` per lane."""
    return await _rows(connection, "select holdfast.task_queues($1, $2)", queue, most)


async def desired_workers(connection: Connection, queue: str, *, per_worker: int = 8) -> int:
    """How many workers of so many slots the queue could use now."""
    return int(await connection.fetchval("select holdfast.desired_workers($1, $2)", queue, per_worker))


async def list_workers(connection: Connection, *, within_s: float = 3600) -> list[Row]:
    return await _rows(connection, "select holdfast.list_workers($1)", within_s)


async def worker_tasks(connection: Connection, worker: str, *, limit: int = 100) -> list[Row]:
    """What a worker runs now, the longest first."""
    return await _rows(connection, "select holdfast.worker_tasks($1, $2)", worker, limit)


async def list_limits(connection: Connection) -> list[Row]:
    return await _rows(connection, "select holdfast.list_limits()")


async def jobs_like(connection: Connection, start: str, *, limit: int = 10) -> list[UUID]:
    """Jobs whose id begins like this."""
    rows = await connection.fetch("select holdfast.jobs_like($1, $2) as id", start, limit)
    return [row["id"] for row in rows]


async def submission(connection: Connection, job_id: UUID) -> Row:
    """A job as `submit` takes it, without its keys and times: to run it again as a new one."""
    return cast("Row", _json.decode(await connection.fetchval("select holdfast.submission($1)", job_id)))


async def _rows(connection: Connection, call: str, *arguments: Any) -> list[Row]:
    return [cast("Row", _json.decode(row[0])) for row in await connection.fetch(call, *arguments)]
