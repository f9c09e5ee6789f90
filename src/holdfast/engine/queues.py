"""List task queues, and pause one until a given time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from holdfast.definitions.validation import format_name_suggestion
from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, fetch_objects
from holdfast.errors import NotFoundError


async def list_task_queues(
    connection: Connection, queue: str | None = None, *, max_rows: int = 10_000
) -> list[JsonObject]:
    """List all task queues, or only `queue`. Counts are exact up to `max_rows` and estimates above."""
    return await fetch_objects(connection, "select holdfast.list_task_queues($1, $2)", queue, max_rows)


def sum_task_counts(
    queues: Sequence[JsonObject], state: Literal["ready", "running", "scheduled"]
) -> tuple[int, bool]:
    """Add up the tasks in a state over all queues. Return their number, and whether it is exact."""
    return sum(queue[state] for queue in queues), all(queue[f"{state}_exact"] for queue in queues)


async def require_queue_name(connection: Connection, name: str, *, fix: str | None = None) -> None:
    """Raise `NotFoundError` with the most similar name if no queue has this name."""
    check_queue_name(name, await list_queue_names(connection), fix=fix)


async def list_queue_names(connection: Connection) -> list[str]:
    """Return the names of all queues."""
    return [row[0] for row in await connection.fetch("select * from holdfast.list_queue_names()")]


def check_queue_name(name: str, known: Sequence[str], *, fix: str | None = None) -> None:
    """Raise `NotFoundError` with the most similar name if a name is not one of the known queues."""
    if name not in known:
        raise NotFoundError(f"Queue {name!r} does not exist{format_name_suggestion(name, known)}", fix=fix)


async def pause_queue_until(
    connection: Connection, queue: str, until: datetime | None, *, reason: str | None, by: str
) -> None:
    """Pause a task queue until a time, or until `resume_queue` if `until` is None."""
    await connection.execute("select holdfast.pause_queue_until($1, $2, $3, $4)", queue, until, reason, by)
