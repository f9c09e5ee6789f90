"""Subscribe to the events of jobs and read the events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, decode_object


class EventPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The number of the last event and the status of a watched job."""

    id: UUID
    seq: int
    status: str


async def watch_jobs(connection: Connection, watcher: str, jobs: Sequence[UUID]) -> None:
    """Subscribe `watcher` to the events of these jobs, and no others, for the next two minutes."""
    await connection.execute("select holdfast.watch_jobs($1, $2)", watcher, list(jobs))


async def get_last_event_numbers(connection: Connection, jobs: Sequence[UUID]) -> list[EventPosition]:
    """Return status and last event number of each of these jobs."""
    rows = await connection.fetch("select * from holdfast.get_last_event_numbers($1)", list(jobs))
    return [EventPosition(**dict(row)) for row in rows]


async def list_watched_events(
    connection: Connection, jobs: Sequence[UUID], after: Sequence[int], limit: int
) -> list[tuple[UUID, int, datetime, str, JsonObject]]:
    """Return (job, number, time, kind, body) of the events of many jobs, in order within each job.

    `after` holds, for each job, the number of the last event that the caller has.
    """
    rows = await connection.fetch(
        "select * from holdfast.list_watched_events($1, $2, $3)", list(jobs), list(after), limit
    )
    return [
        (row["job_id"], row["seq"], row["at"], row["kind"], decode_object(row["body"]) if row["body"] else {})
        for row in rows
    ]
