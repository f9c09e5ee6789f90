"""What a stream is about, as it is read from the database: a job with its files, or a batch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from uuid import UUID

from holdfast.engine import artifacts, jobs
from holdfast.engine.connection import Connection
from holdfast.model import Json

Read: TypeAlias = Callable[[Connection, UUID], Awaitable["dict[str, Any] | None"]]
"""What is watched, with `id`, `event_seq`, `status` and `files`; None when there is no such thing."""


async def artifacts_of(connection: Connection, job_id: UUID) -> list[Json]:
    """The files of a job, as a page shows them; `id` is what a link is asked for with."""
    found = await artifacts.list_artifacts(connection, {"job": str(job_id)})
    return [
        {
            "id": each.id,
            "name": each.name,
            "kind": each.kind,
            "type": each.content_type,
            "size": each.size,
            "expires_at": each.expires_at,
        }
        for each in found
    ]


async def read_job(connection: Connection, job_id: UUID) -> dict[str, Any] | None:
    job = await jobs.get_job(connection, job_id)
    return None if job is None else {**job, "files": await artifacts_of(connection, job_id)}


async def read_batch(connection: Connection, batch_id: UUID) -> dict[str, Any] | None:
    """Without its files: there may be thousands, and they have a list and a ZIP of their own."""
    batch = await jobs.get_batch(connection, batch_id)
    return None if batch is None else {**batch, "files": []}
