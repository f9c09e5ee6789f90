"""Files as rows: staged, recorded, seen, counted, swept. One coroutine per SQL function; bytes are elsewhere.

A file is recorded in two steps around its upload, so that whatever a crash leaves in the store has a row that
leads to it. `sweep` is the other half of `tick_artifacts`: it deletes the objects of doomed rows through the
store that it is given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, cast
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection, Database
from holdfast.engine.leases import Lease
from holdfast.errors import GoneError, NotFoundError
from holdfast.model import Artifact, Json

SWEEP_ROWS = 1000
_json = msgspec.json.Decoder()


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """A file about to be uploaded. Beyond `most_bytes` the owner's quota does not reach."""

    id: UUID
    key: str
    owner: str | None
    most_bytes: int | None = None


class _Found(Artifact, frozen=True, kw_only=True):
    status: Literal["visible", "gone"]
    why: Literal["expired", "deleted", "replaced"] | None = None


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep did: how many rows were doomed and why, and how many objects were deleted."""

    expired: int = 0
    lost: int = 0
    replaced: int = 0
    deleted: int = 0


class _Ticked(msgspec.Struct):
    expired: int
    lost: int
    replaced: int
    doomed: bool


_artifact = msgspec.json.Decoder(Artifact)
_found = msgspec.json.Decoder(_Found)
_staged = msgspec.json.Decoder(Staged)
_ticked = msgspec.json.Decoder(_Ticked)


async def stage(connection: Connection, lease: Lease, file: Mapping[str, Json]) -> Staged:
    """Before the upload: name, kind, content_type, ttl_s, and size where it is known."""
    call = "select holdfast.stage_artifact($1, $2, $3, $4)"
    return _staged.decode(await connection.fetchval(call, lease.id, lease.attempt, lease.nonce, _text(file)))


async def stage_file(connection: Connection, file: Mapping[str, Json]) -> Staged:
    """The same for a file that no task makes; with job, or with owner."""
    return _staged.decode(await connection.fetchval("select holdfast.stage_file($1)", _text(file)))


async def touch_file(connection: Connection, file_id: UUID) -> bool:
    """Say that an upload without a lease still goes on."""
    return bool(await connection.fetchval("select holdfast.touch_file($1)", file_id))


async def record(
    connection: Connection,
    file_id: UUID,
    lease: Lease | None,
    *,
    size: int,
    sha256: str,
    meta: Mapping[str, Json],
) -> Artifact:
    """After the upload. Here the quota decides. Safe to say twice."""
    text = await connection.fetchval(
        "select holdfast.record_artifact($1, $2, $3, $4, $5, $6)",
        file_id,
        lease.attempt if lease else None,
        lease.nonce if lease else None,
        size,
        sha256,
        _text(meta),
    )
    return _artifact.decode(text)


async def get_artifact(connection: Connection, file_id: UUID) -> Artifact:
    """Raises NotFoundError, or GoneError when it was there and is not any more."""
    return _seen(await connection.fetchval("select holdfast.get_artifact($1)", file_id))


async def count_download(connection: Connection, file_id: UUID) -> Artifact:
    """The same for somebody who is about to fetch it."""
    return _seen(await connection.fetchval("select holdfast.count_download($1)", file_id))


def _seen(text: str | None) -> Artifact:
    if text is None:
        raise NotFoundError("There is no such file.", field="id")
    found = _found.decode(text)
    if found.status == "gone":
        told = {"expired": "has expired", "deleted": "was deleted", "replaced": "was replaced by a newer one"}
        raise GoneError(
            f"The file {told.get(found.why or '', 'is gone')}.",
            fix=f"Make it again: run the task anew that made it (remake), job {found.job_id}.",
            field="id",
        )
    return found


async def list_artifacts(
    connection: Connection, where: Mapping[str, Json], *, after: UUID | None = None, limit: int = 100
) -> list[Artifact]:
    """Visible files, oldest first: of a job, a batch, an owner, a kind or a name."""
    rows = await connection.fetch(
        "select holdfast.list_artifacts($1, $2, $3) as file", _text(where), after, limit
    )
    return [_artifact.decode(row["file"]) for row in rows]


async def find_artifact(connection: Connection, lease: Lease, name: str) -> Artifact | None:
    """By its name, for a running task: of its job, or saved by this attempt."""
    call = "select holdfast.find_artifact($1, $2, $3, $4)"
    text = await connection.fetchval(call, lease.id, lease.attempt, lease.nonce, name)
    return None if text is None else _artifact.decode(text)


async def delete_artifact(connection: Connection, file_id: UUID) -> bool:
    return bool(await connection.fetchval("select holdfast.delete_artifact($1)", file_id))


async def remake_artifact(connection: Connection, file_id: UUID) -> dict[str, Json]:
    """{job_id, restarted, status}."""
    return _object(await connection.fetchval("select holdfast.remake_artifact($1)", file_id))


async def keep_artifact(connection: Connection, file_id: UUID, ttl: timedelta | None) -> datetime | None:
    """Keep a visible file so long from now on, or for ever. Answers until when; NotFoundError for none."""
    seconds = None if ttl is None else ttl.total_seconds()
    return cast(
        "datetime | None",
        await connection.fetchval("select holdfast.keep_artifact($1, $2)", file_id, seconds),
    )


async def put_rule(
    connection: Connection,
    *,
    owner: str | None = None,
    type: str | None = None,  # noqa: A002
    ttl: timedelta | None = None,
) -> None:
    """How long files are kept of an owner, a type of job, both, or all; without `ttl` for ever."""
    seconds = None if ttl is None else ttl.total_seconds()
    await connection.execute("select holdfast.put_artifact_rule($1, $2, $3)", owner, type, seconds)


async def put_quota(
    connection: Connection,
    owner: str | None = None,
    *,
    size: int | None = None,
    files: int | None = None,
    operations: int | None = None,
) -> None:
    """What an owner may have, or everybody without a quota of their own; None is as much as they like."""
    await connection.execute("select holdfast.put_quota($1, $2, $3, $4)", owner, size, files, operations)


async def get_usage(connection: Connection, owner: str | None = None) -> dict[str, Json]:
    """{owner, bytes: {used, limit}, files: {used, limit}, operations: {used, limit}}."""
    return _object(await connection.fetchval("select holdfast.get_usage($1)", owner))


async def unknown_keys(connection: Connection, keys: Sequence[str]) -> list[str]:
    """Those that no row speaks of."""
    rows = await connection.fetch("select holdfast.unknown_keys($1) as key", list(keys))
    return [row["key"] for row in rows]


async def sweep(
    database: Database,
    delete: Callable[[Sequence[str]], Awaitable[None]],
    *,
    limit: int = SWEEP_ROWS,
) -> Swept:
    """Doom what is to go and delete the objects of what is doomed, in bounded steps until nothing is left.

    A crash anywhere leaves rows that the next sweep takes again after five minutes.
    """
    total = Swept()
    while True:
        async with database.connection() as connection:
            ticked = _ticked.decode(await connection.fetchval("select holdfast.tick_artifacts($1)", limit))
            rows = await connection.fetch("select id, key from holdfast.claim_doomed($1)", limit)
        if rows:
            await delete([row["key"] for row in rows])
            async with database.connection() as connection:
                await connection.fetchval("select holdfast.forget_doomed($1)", [row["id"] for row in rows])
        total = Swept(
            expired=total.expired + ticked.expired,
            lost=total.lost + ticked.lost,
            replaced=total.replaced + ticked.replaced,
            deleted=total.deleted + len(rows),
        )
        if not rows and max(ticked.expired, ticked.lost, ticked.replaced) < limit:
            return total


def _text(value: Mapping[str, Json]) -> str:
    return msgspec.json.encode(value).decode()


def _object(text: str) -> dict[str, Json]:
    return cast("dict[str, Any]", _json.decode(text))
