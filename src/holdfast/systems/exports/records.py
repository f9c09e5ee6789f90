"""The rows: documents, what was asked for, what was made. Every query of the system is here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from holdfast import Client
from holdfast.model import Artifact
from holdfast.systems.exports.documents import title_of
from holdfast.systems.exports.options import ExportOptions
from holdfast.systems.tables import sql

SWEEP = 500


class Document(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    title: str
    version: int
    data: Any


@dataclass(frozen=True)
class Made:
    document: Document
    template: str
    file: Artifact
    pages: int
    kept: timedelta


@dataclass(frozen=True)
class Usage:
    """What a user has used: bytes of files that still exist, exports of today, exports under way."""

    bytes: int
    operations: int
    day: date


async def find_document(connection: Any, schema: str, document_id: UUID, owner: str) -> Document | None:
    row = await connection.fetchrow(
        sql(
            "select id, title, version, data::text as data from {}.documents where id = $1 and user_id = $2",
            schema,
        ),
        document_id,
        UUID(owner),
    )
    if row is None:
        return None
    data: Any = msgspec.json.decode(row["data"])
    shown = title_of(row["title"], data)
    return Document(id=row["id"], title=shown, version=row["version"], data=data)


async def list_documents(connection: Any, schema: str, owner: str) -> list[dict[str, Any]]:
    rows = await connection.fetch(
        sql(
            'select id, title, version, updated_at as "updatedAt" from {}.documents'
            " where user_id = $1 order by updated_at desc, id limit 500",
            schema,
        ),
        UUID(owner),
    )
    return [dict(row) for row in rows]


async def add_document(connection: Any, schema: str, owner: str, title: str, data: object) -> UUID:
    query = "insert into {}.documents (user_id, title, data) values ($1, $2, $3::jsonb) returning id"
    made: UUID = await connection.fetchval(
        sql(query, schema), UUID(owner), title, msgspec.json.encode(data).decode()
    )
    return made


async def write_history(connection: Any, schema: str, job_id: UUID, owner: str, made: Made) -> None:
    """Once per job: an attempt that was repeated finds the line there and adds none."""
    await connection.execute(
        sql(
            "insert into {}.export_history (id, user_id, document_id, document_version, format,"
            " template_slug, file_name, file_path, file_size, artifact_id, expires_at, created_at)"
            " select $1, $2, (select d.id from {}.documents d where d.id = $3), $4, 'pdf', $5, $6, $7, $8,"
            " $9, n.at + $10, n.at from (select holdfast.now() as at offset 0) as n"
            " on conflict (id) do nothing",
            schema,
        ),
        job_id,
        UUID(owner),
        made.document.id,
        made.document.version,
        made.template,
        f"{made.document.title}.pdf",
        # As clients of the source know it. The object's own key is never used twice and nobody's to see.
        f"exports/{owner}/{made.file.name}",
        made.file.size,
        made.file.id,
        made.kept,
    )
    await connection.execute(
        sql("update {}.export_requests set file_size = $2, page_count = $3 where id = $1", schema),
        job_id,
        made.file.size,
        made.pages,
    )


async def write_request(
    connection: Any, schema: str, job_id: UUID, owner: str, wanted: tuple[UUID, str, ExportOptions]
) -> None:
    document_id, template, options = wanted
    await connection.execute(
        sql(
            "insert into {}.export_requests (id, user_id, document_id, template_slug, options)"
            " values ($1, $2, $3, $4, $5::jsonb) on conflict (id) do nothing",
            schema,
        ),
        job_id,
        UUID(owner),
        document_id,
        template,
        msgspec.json.encode(options).decode(),
    )


async def usage(connection: Any, schema: str, owner: str) -> Usage:
    """Locks the user's line of today, so that two requests at once are counted one after the other."""
    row = await connection.fetchrow(
        sql(
            "insert into {}.export_usage as u (user_id, day, operations)"
            " values ($1, (holdfast.now() at time zone 'UTC')::date, 0)"
            " on conflict (user_id, day) do update set operations = u.operations returning day, operations",
            schema,
        ),
        UUID(owner),
    )
    used = await connection.fetchval(
        sql(
            "select coalesce(sum(file_size), 0)::bigint from {}.export_history"
            " where user_id = $1 and expires_at > holdfast.now()",
            schema,
        ),
        UUID(owner),
    )
    return Usage(int(used), int(row["operations"]), row["day"])


async def count_operations(connection: Any, schema: str, owner: str, day: date, count: int) -> None:
    await connection.execute(
        sql(
            "update {}.export_usage set operations = operations + $3 where user_id = $1 and day = $2", schema
        ),
        UUID(owner),
        day,
        count,
    )


async def unfinished(connection: Any, schema: str, owner: str) -> int:
    """Exports of a user that wait or run."""
    query = (
        "select count(*) from {}.export_requests r left join {}.export_history h on h.id = r.id"
        " where r.user_id = $1 and h.id is null and r.created_at > holdfast.now() - interval '2 days'"
        " and holdfast.get_job(r.id) ->> 'status' in ('queued', 'running')"
    )
    return int(await connection.fetchval(sql(query, schema), UUID(owner)))


async def get_export(connection: Any, schema: str, job_id: UUID, owner: str) -> dict[str, Any] | None:
    """A row of the view export_jobs, if it is this user's."""
    row = await connection.fetchrow(
        sql("select * from {}.export_jobs where id = $1 and user_id = $2", schema), job_id, UUID(owner)
    )
    return None if row is None else dict(row)


async def open_batch(
    connection: Any, schema: str, owner: str, items: Sequence[tuple[UUID, UUID, str]]
) -> UUID:
    """Items are (job, document, title), in the order they were asked for."""
    batch: UUID = await connection.fetchval(
        sql("insert into {}.export_batches (user_id) values ($1) returning id", schema), UUID(owner)
    )
    await connection.executemany(
        sql(
            "insert into {}.export_batch_items (batch_id, position, job_id, document_id, title, user_id)"
            " values ($1, $2, $3, $4, $5, $6)",
            schema,
        ),
        [
            (batch, place, job, document, title, UUID(owner))
            for place, (job, document, title) in enumerate(items)
        ],
    )
    return batch


async def get_batch(connection: Any, schema: str, batch_id: UUID, owner: str) -> list[dict[str, Any]]:
    """The exports of a batch in order; none when there is no such batch of this user."""
    query = (
        "select i.job_id, i.document_id, i.title, e.status, e.progress, e.error_message, e.result_url,"
        " h.artifact_id, h.file_name,"
        " coalesce((holdfast.get_job(i.job_id) ->> 'event_seq')::bigint, 0) as event_seq"
        " from {}.export_batch_items i"
        " join {}.export_batches b on b.id = i.batch_id and b.user_id = $2"
        " left join {}.export_jobs e on e.id = i.job_id left join {}.export_history h on h.id = i.job_id"
        " where i.batch_id = $1 order by i.position"
    )
    return [dict(row) for row in await connection.fetch(sql(query, schema), batch_id, UUID(owner))]


async def list_history(connection: Any, schema: str, owner: str) -> list[dict[str, Any]]:
    query = (
        'select id, document_id as "documentId", document_version as "documentVersion", format,'
        ' template_slug as "templateSlug", file_name as "fileName", file_path as "filePath",'
        ' file_size as "fileSize",'
        ' download_count as "downloadCount", expires_at as "expiresAt", created_at as "createdAt"'
        " from {}.export_history where user_id = $1 and expires_at > holdfast.now()"
        " order by created_at desc, id limit 200"
    )
    return [dict(row) for row in await connection.fetch(sql(query, schema), UUID(owner))]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    artifact_id: UUID | None
    file_name: str
    expires_at: datetime
    expired: bool


async def get_history(connection: Any, schema: str, history_id: UUID, owner: str) -> Entry | None:
    query = (
        "select artifact_id, file_name, expires_at, expires_at <= holdfast.now() as expired"
        " from {}.export_history where id = $1 and user_id = $2"
    )
    row = await connection.fetchrow(sql(query, schema), history_id, UUID(owner))
    return None if row is None else Entry(**dict(row))


async def count_download(connection: Any, schema: str, history_id: UUID) -> None:
    query = "update {}.export_history set download_count = download_count + 1 where id = $1"
    await connection.execute(sql(query, schema), history_id)


async def delete_history(connection: Any, schema: str, history_id: UUID, owner: str) -> UUID | None:
    """The file that the line spoke of; its bytes go with the next sweep."""
    query = "delete from {}.export_history where id = $1 and user_id = $2 returning artifact_id"
    row = await connection.fetchrow(sql(query, schema), history_id, UUID(owner))
    if row is not None and row["artifact_id"] is not None:
        await connection.fetchval("select holdfast.delete_artifact($1)", row["artifact_id"])
    return None if row is None else row["artifact_id"] or history_id


async def clean_up(client: Client, schema: str) -> int:
    """Delete what has expired: first the files, then the lines that speak of them. Answers how many lines."""
    database = await client.open()
    deleted = 0
    while True:
        async with database.transaction() as connection:
            rows = await connection.fetch(
                sql(
                    "delete from {}.export_history where id in (select id from {}.export_history"
                    " where expires_at <= holdfast.now() order by expires_at limit $1 for update skip locked)"
                    # Users may write lines of their own: a file goes only with its owner's.
                    " returning id, case when holdfast.get_artifact(artifact_id) ->> 'owner' = user_id::text"
                    " then holdfast.delete_artifact(artifact_id) end",
                    schema,
                ),
                SWEEP,
            )
        deleted += len(rows)
        if len(rows) < SWEEP:
            break
    await client.files.sweep()
    async with database.transaction() as connection:
        for query in (
            "delete from {}.export_usage where day < (holdfast.now() at time zone 'UTC')::date - 7",
            "delete from {}.export_batches where created_at < holdfast.now() - interval '30 days'",
            "delete from {}.export_requests r where r.created_at < holdfast.now() - interval '30 days'"
            " and not exists (select from {}.export_history h where h.id = r.id)",
        ):
            await connection.execute(sql(query, schema))
    return deleted
