"""The files of a job as event streams tell of them."""

from __future__ import annotations

from uuid import UUID

from holdfast.engine import artifacts
from holdfast.engine.connection import Connection
from holdfast.model import Json


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
