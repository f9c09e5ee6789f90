"""Store, read and delete the rows of artifacts (files). One coroutine per SQL function.

A file is recorded in two steps around its upload, so every object that a crash leaves in the store has a row
that leads to it. `sweep_artifacts` runs the other half of `tick_artifacts`: it deletes the objects of rows
that are marked for deletion, through the store of its caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, cast
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection, Database
from holdfast.engine.json_rows import JsonObject, decode_object, encode_json
from holdfast.engine.leases import Lease
from holdfast.errors import GoneError, NotFoundError
from holdfast.model import Artifact, Json

MAX_SWEEP_ROWS = 1000


class StagedArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a file before its upload. `max_bytes` is the rest of the owner's quota."""

    id: UUID
    key: str
    owner: str | None
    max_bytes: int | None = None


class _ArtifactWithStatus(Artifact, frozen=True, kw_only=True):
    status: Literal["visible", "gone"]
    deletion_reason: Literal["expired", "deleted", "replaced"] | None = None


class ArtifactSweepResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a sweep: numbers of files marked for deletion, by reason, and of deleted objects."""

    expired: int = 0
    lost: int = 0
    replaced: int = 0
    deleted: int = 0


class _ArtifactTickResult(msgspec.Struct):
    expired: int
    lost: int
    replaced: int
    deletions_pending: bool


_artifact_decoder = msgspec.json.Decoder(Artifact)
_stored_artifact_decoder = msgspec.json.Decoder(_ArtifactWithStatus)
_staged_artifact_decoder = msgspec.json.Decoder(StagedArtifact)
_tick_result_decoder = msgspec.json.Decoder(_ArtifactTickResult)


async def stage_artifact(connection: Connection, lease: Lease, file: Mapping[str, Json]) -> StagedArtifact:
    """Create the row of a file of a running task, before its upload.

    `file` has name, kind, content_type and ttl_s, and size where it is known.
    """
    call = "select holdfast.stage_artifact($1, $2, $3, $4)"
    text = await connection.fetchval(call, lease.id, lease.attempt, lease.nonce, encode_json(file))
    return _staged_artifact_decoder.decode(text)


async def stage_artifact_without_task(connection: Connection, file: Mapping[str, Json]) -> StagedArtifact:
    """Create the row of a file that a client uploads, before its upload. `file` names its job or owner."""
    call = "select holdfast.stage_artifact_without_task($1)"
    return _staged_artifact_decoder.decode(await connection.fetchval(call, encode_json(file)))


async def touch_artifact_upload(connection: Connection, file_id: UUID) -> bool:
    """Mark a client's upload as still in progress. Return False if the file is no longer uploading."""
    return bool(await connection.fetchval("select holdfast.touch_artifact_upload($1)", file_id))


async def record_artifact_upload(
    connection: Connection,
    file_id: UUID,
    lease: Lease | None,
    *,
    size: int,
    sha256: str,
    meta: Mapping[str, Json],
) -> Artifact:
    """Record a completed upload and charge the owner's quota. Idempotent."""
    text = await connection.fetchval(
        "select holdfast.record_artifact_upload($1, $2, $3, $4, $5, $6)",
        file_id,
        lease.attempt if lease else None,
        lease.nonce if lease else None,
        size,
        sha256,
        encode_json(meta),
    )
    return _artifact_decoder.decode(text)


async def get_artifact(connection: Connection, file_id: UUID) -> Artifact:
    """Return a visible file. Raise NotFoundError, or GoneError if the file expired or was deleted."""
    text = await connection.fetchval("select holdfast.get_artifact($1)", file_id)
    return _decode_visible_artifact(file_id, text)


async def increment_artifact_downloads(connection: Connection, file_id: UUID) -> Artifact:
    """Count a download and return the file, with the errors of `get_artifact`."""
    text = await connection.fetchval("select holdfast.increment_artifact_downloads($1)", file_id)
    return _decode_visible_artifact(file_id, text)


def _decode_visible_artifact(file_id: UUID, text: str | None) -> Artifact:
    if text is None:
        raise NotFoundError(f"File {file_id} does not exist.", field="id")
    artifact = _stored_artifact_decoder.decode(text)
    if artifact.status == "gone":
        reasons = {
            "expired": "has expired",
            "deleted": "was deleted",
            "replaced": "was replaced by a newer one",
        }
        raise GoneError(
            f"The file {reasons.get(artifact.deletion_reason or '', 'is gone')}.",
            fix=f"Regenerate it: retry the task of job {artifact.job_id} that created it.",
            field="id",
        )
    return artifact


async def list_artifacts(
    connection: Connection, where: Mapping[str, Json], *, after: UUID | None = None, limit: int = 100
) -> list[Artifact]:
    """List visible files, oldest first. `where` filters by job, batch, owner, kind or name.

    With `before` in `where`, the newest files come first: those older than the file with this id, or all if
    it is None.
    """
    call = "select holdfast.list_artifacts($1, $2, $3) as file"
    rows = await connection.fetch(call, encode_json(where), after, limit)
    return [_artifact_decoder.decode(row["file"]) for row in rows]


async def find_artifact_by_name(connection: Connection, lease: Lease, name: str) -> Artifact | None:
    """Find a file by name among the files of a running task's job. Return None if there is none."""
    call = "select holdfast.find_artifact_by_name($1, $2, $3, $4)"
    text = await connection.fetchval(call, lease.id, lease.attempt, lease.nonce, name)
    return None if text is None else _artifact_decoder.decode(text)


async def delete_artifact(connection: Connection, file_id: UUID) -> bool:
    """Delete a visible file. Return False if it does not exist."""
    return bool(await connection.fetchval("select holdfast.delete_artifact($1)", file_id))


async def regenerate_artifact(connection: Connection, file_id: UUID) -> JsonObject:
    """Retry the task that created a file and return {job_id, restarted, status}."""
    return decode_object(await connection.fetchval("select holdfast.regenerate_artifact($1)", file_id))


async def set_artifact_ttl(connection: Connection, file_id: UUID, ttl: timedelta | None) -> datetime | None:
    """Set a file to expire after `ttl` from now (None: never), and return its expiry.

    Raise NotFoundError if the file does not exist or has expired.
    """
    seconds = None if ttl is None else ttl.total_seconds()
    call = "select holdfast.set_artifact_ttl($1, $2)"
    return cast("datetime | None", await connection.fetchval(call, file_id, seconds))


async def put_artifact_retention_rule(
    connection: Connection,
    *,
    owner: str | None = None,
    job_type: str | None = None,
    ttl: timedelta | None = None,
) -> None:
    """Set how long files are kept, by owner, job type, both or for all. `ttl` None keeps them for ever."""
    seconds = None if ttl is None else ttl.total_seconds()
    call = "select holdfast.put_artifact_retention_rule($1, $2, $3)"
    await connection.execute(call, owner, job_type, seconds)


async def get_files_overview(connection: Connection, *, owner: str | None, before: UUID | None) -> JsonObject:
    """Return a page of files, newest first, with totals by owner."""
    call = "select holdfast.get_files_overview($1, $2)"
    return decode_object(await connection.fetchval(call, owner, before))


async def find_orphaned_object_keys(connection: Connection, keys: Sequence[str]) -> list[str]:
    """Return those object keys that no artifact row references."""
    rows = await connection.fetch("select holdfast.find_orphaned_object_keys($1) as key", list(keys))
    return [row["key"] for row in rows]


async def confirm_artifact_deletions(connection: Connection, file_ids: Sequence[UUID]) -> None:
    """Record that the objects of these files were deleted from the store."""
    await connection.fetchval("select holdfast.confirm_artifact_deletions($1)", list(file_ids))


async def sweep_artifacts(
    database: Database,
    delete_objects: Callable[[Sequence[str]], Awaitable[None]],
    *,
    limit: int = MAX_SWEEP_ROWS,
) -> ArtifactSweepResult:
    """Mark expired, abandoned and replaced files for deletion, and delete the objects of all marked files.

    Each round handles up to `limit` rows. After a crash the next sweep takes the same rows again, five
    minutes later.
    """
    total = ArtifactSweepResult()
    while True:
        async with database.connection() as connection:
            tick = _tick_result_decoder.decode(
                await connection.fetchval("select holdfast.tick_artifacts($1)", limit)
            )
            rows = await connection.fetch("select id, key from holdfast.claim_artifact_deletions($1)", limit)
        if rows:
            await delete_objects([row["key"] for row in rows])
            async with database.connection() as connection:
                await confirm_artifact_deletions(connection, [row["id"] for row in rows])
        total = ArtifactSweepResult(
            expired=total.expired + tick.expired,
            lost=total.lost + tick.lost,
            replaced=total.replaced + tick.replaced,
            deleted=total.deleted + len(rows),
        )
        if not rows and max(tick.expired, tick.lost, tick.replaced) < limit:
            return total
