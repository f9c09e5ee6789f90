"""List workers and their tasks, and compute how many workers a queue needs."""

from __future__ import annotations

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, fetch_objects


async def list_workers(connection: Connection, *, within_s: float = 3600) -> list[JsonObject]:
    """List the workers that were seen within the last `within_s` seconds."""
    return await fetch_objects(connection, "select holdfast.list_workers($1)", within_s)


async def list_running_tasks_of_worker(
    connection: Connection, worker: str, *, limit: int = 100
) -> list[JsonObject]:
    """List the tasks that a worker is running, longest-running first."""
    return await fetch_objects(
        connection, "select holdfast.list_running_tasks_of_worker($1, $2)", worker, limit
    )


async def count_desired_workers(connection: Connection, queue: str, *, per_worker: int = 10) -> int:
    """Return the number of workers that the queue can use now, if each has `per_worker` slots."""
    call = "select holdfast.count_desired_workers($1, $2)"
    return int(await connection.fetchval(call, queue, per_worker))
