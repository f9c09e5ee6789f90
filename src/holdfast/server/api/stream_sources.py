"""Read the subject of an event stream from the database: a job with its files, or a batch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from uuid import UUID

from holdfast.engine import artifacts, jobs
from holdfast.engine.connection import Connection
from holdfast.model import Json

JobOrBatchReader: TypeAlias = Callable[[Connection, UUID], Awaitable["dict[str, Any] | None"]]
"""A function that reads a job or batch with `id`, `event_seq`, `status` and `files`. None: does not exist."""


async def list_job_files_for_stream(connection: Connection, job_id: UUID) -> list[Json]:
    """List the files of a job in the format of event streams. Clients request a link with the file's `id`."""
    files = await artifacts.list_artifacts(connection, {"job": str(job_id)})
    return [
        {
            "id": file.id,
            "name": file.name,
            "kind": file.kind,
            "type": file.content_type,
            "size": file.size,
            "expires_at": file.expires_at,
        }
        for file in files
    ]


async def read_job_with_files(connection: Connection, job_id: UUID) -> dict[str, Any] | None:
    """Read a job and its files. Return None if the job does not exist."""
    job = await jobs.get_job(connection, job_id)
    return None if job is None else {**job, "files": await list_job_files_for_stream(connection, job_id)}


async def read_batch_without_files(connection: Connection, batch_id: UUID) -> dict[str, Any] | None:
    """Read a batch with an empty file list, because a batch can have thousands of files."""
    batch = await jobs.get_batch(connection, batch_id)
    return None if batch is None else {**batch, "files": []}
