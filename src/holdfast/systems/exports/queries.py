"""SQL queries of the export system: documents, export requests, usage, batches and history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from holdfast import Artifact, Client
from holdfast.systems.exports.export_requests import ExportOptions
from holdfast.systems.exports.resumes import choose_document_title
from holdfast.systems.tables import qualify_tables

MAX_CLEANUP_BATCH_ROWS = 500


class StoredDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table `documents`."""

    id: UUID
    title: str
    version: int
    data: Any


@dataclass(frozen=True)
class ExportedFile:
    """An exported file with its document and template, to store in the export history."""

    document: StoredDocument
    template: str
    file: Artifact
    page_count: int
    retention: timedelta
    attempt: int
    started_at: datetime


@dataclass(frozen=True)
class UserExportUsage:
    """Usage of a user: bytes of the stored exports, and number of exports on the day."""

    bytes: int
    operations: int
    day: date


async def find_document(connection: Any, schema: str, document_id: UUID, owner: str) -> StoredDocument | None:
    """Return a document, or None if the user owns no document with this id."""
    row = await connection.fetchrow(
        qualify_tables(
            "select id, title, version, data::text as data from {}.documents where id = $1 and user_id = $2",
            schema,
        ),
        document_id,
        UUID(owner),
    )
    if row is None:
        return None
    data: Any = msgspec.json.decode(row["data"])
    title = choose_document_title(row["title"], data)
    return StoredDocument(id=row["id"], title=title, version=row["version"], data=data)


async def list_documents(connection: Any, schema: str, owner: str) -> list[dict[str, Any]]:
    """List the documents of a user, most recently changed first."""
    rows = await connection.fetch(
        qualify_tables(
            'select id, title, version, updated_at as "updatedAt" from {}.documents'
            " where user_id = $1 order by updated_at desc, id limit 500",
            schema,
        ),
        UUID(owner),
    )
    return [dict(row) for row in rows]


async def add_document(connection: Any, schema: str, owner: str, title: str, data: object) -> UUID:
    """Insert a document and return its id."""
    query = "insert into {}.documents (user_id, title, data) values ($1, $2, $3::jsonb) returning id"
    document_id: UUID = await connection.fetchval(
        qualify_tables(query, schema), UUID(owner), title, msgspec.json.encode(data).decode()
    )
    return document_id


async def add_history_entry(
    connection: Any, schema: str, job_id: UUID, owner: str, exported: ExportedFile
) -> None:
    """Add an exported file to the history. A second call for the same job has no effect."""
    await connection.execute(
        qualify_tables(
            "insert into {}.export_history (id, user_id, document_id, document_version, format,"
            " template_slug, file_name, file_path, file_size, artifact_id, expires_at, created_at)"
            " select $1, $2, (select d.id from {}.documents d where d.id = $3), $4, 'pdf', $5, $6, $7, $8,"
            " $9, n.at + $10, n.at from (select holdfast.now() as at offset 0) as n"
            " on conflict (id) do nothing",
            schema,
        ),
        job_id,
        UUID(owner),
        exported.document.id,
        exported.document.version,
        exported.template,
        f"{exported.document.title}.pdf",
        # The path in the contract. The key in the object store is different: it is unique per attempt.
        f"exports/{owner}/{exported.file.name}",
        exported.file.size,
        exported.file.id,
        exported.retention,
    )
    await connection.execute(
        qualify_tables(
            "update {}.export_requests set file_size = $2, page_count = $3, final_status = 'completed',"
            " final_progress = 100, final_error = null, attempts = $4, started_at = $5,"
            " completed_at = holdfast.now() where id = $1",
            schema,
        ),
        job_id,
        exported.file.size,
        exported.page_count,
        exported.attempt,
        exported.started_at,
    )


async def add_export_request(
    connection: Any,
    schema: str,
    job_id: UUID,
    owner: str,
    document_id: UUID,
    template: str,
    options: ExportOptions,
) -> None:
    """Record which document a job exports, with which template and options."""
    await connection.execute(
        qualify_tables(
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


async def lock_export_usage(connection: Any, schema: str, owner: str) -> UserExportUsage:
    """Return the export usage of a user, and lock its row until the transaction ends."""
    row = await connection.fetchrow(
        qualify_tables(
            "insert into {}.export_usage as u (user_id, day, operations)"
            " values ($1, (holdfast.now() at time zone 'UTC')::date, 0)"
            " on conflict (user_id, day) do update set operations = u.operations returning day, operations",
            schema,
        ),
        UUID(owner),
    )
    stored_bytes = await connection.fetchval(
        qualify_tables(
            "select coalesce(sum(file_size), 0)::bigint from {}.export_history"
            " where user_id = $1 and expires_at > holdfast.now()",
            schema,
        ),
        UUID(owner),
    )
    return UserExportUsage(int(stored_bytes), int(row["operations"]), row["day"])


async def add_to_daily_exports(connection: Any, schema: str, owner: str, day: date, count: int) -> None:
    await connection.execute(
        qualify_tables(
            "update {}.export_usage set operations = operations + $3 where user_id = $1 and day = $2", schema
        ),
        UUID(owner),
        day,
        count,
    )


async def count_unfinished_exports(connection: Any, schema: str, owner: str) -> int:
    """Count the exports of a user that are waiting or running."""
    query = (
        "select count(*) from {}.export_requests r left join {}.export_history h on h.id = r.id"
        " where r.user_id = $1 and h.id is null and r.created_at > holdfast.now() - interval '2 days'"
        " and holdfast.get_job(r.id) ->> 'status' in ('queued', 'running')"
    )
    return int(await connection.fetchval(qualify_tables(query, schema), UUID(owner)))


async def find_export(connection: Any, schema: str, job_id: UUID, owner: str) -> dict[str, Any] | None:
    """Return a row of the view `export_jobs`, or None if the user owns no export with this job id."""
    row = await connection.fetchrow(
        qualify_tables("select * from {}.export_jobs where id = $1 and user_id = $2", schema),
        job_id,
        UUID(owner),
    )
    return None if row is None else dict(row)


async def create_export_batch(
    connection: Any, schema: str, owner: str, items: Sequence[tuple[UUID, UUID, str]]
) -> UUID:
    """Create an export batch and return its id. Each item is a job id, a document id and a title."""
    batch_id: UUID = await connection.fetchval(
        qualify_tables("insert into {}.export_batches (user_id) values ($1) returning id", schema),
        UUID(owner),
    )
    await connection.executemany(
        qualify_tables(
            "insert into {}.export_batch_items (batch_id, position, job_id, document_id, title, user_id)"
            " values ($1, $2, $3, $4, $5, $6)",
            schema,
        ),
        [
            (batch_id, position, job_id, document_id, title, UUID(owner))
            for position, (job_id, document_id, title) in enumerate(items)
        ],
    )
    return batch_id


async def list_batch_exports(
    connection: Any, schema: str, batch_id: UUID, owner: str
) -> list[dict[str, Any]]:
    """List the exports of a batch in order. Return an empty list if the user has no such batch."""
    query = (
        "select i.job_id, i.document_id, i.title, e.status, e.progress, e.error_message,"
        " h.artifact_id, h.file_name,"
        " coalesce((holdfast.get_job(i.job_id) ->> 'event_seq')::bigint, 0) as event_seq"
        " from {}.export_batch_items i"
        " join {}.export_batches b on b.id = i.batch_id and b.user_id = $2"
        " left join {}.export_jobs e on e.id = i.job_id and e.user_id = b.user_id"
        " left join {}.export_history h on h.id = i.job_id and h.user_id = b.user_id"
        " where i.batch_id = $1 order by i.position"
    )
    return [dict(row) for row in await connection.fetch(qualify_tables(query, schema), batch_id, UUID(owner))]


async def list_history(connection: Any, schema: str, owner: str) -> list[dict[str, Any]]:
    """List the exported files of a user that have not expired, newest first."""
    query = (
        'select id, document_id as "documentId", document_version as "documentVersion", format,'
        ' template_slug as "templateSlug", file_name as "fileName", file_path as "filePath",'
        ' file_size as "fileSize",'
        ' download_count as "downloadCount", expires_at as "expiresAt", created_at as "createdAt"'
        " from {}.export_history where user_id = $1 and expires_at > holdfast.now()"
        " order by created_at desc, id limit 200"
    )
    return [dict(row) for row in await connection.fetch(qualify_tables(query, schema), UUID(owner))]


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the export history: an exported file and its expiry."""

    artifact_id: UUID | None
    file_name: str
    expires_at: datetime
    expired: bool


async def list_history_entries(
    connection: Any, schema: str, history_ids: Sequence[UUID], owner: str
) -> dict[UUID, HistoryEntry]:
    """Return entries of the export history by id. Entries of other users are left out."""
    query = (
        "select id, artifact_id, file_name, expires_at, expires_at <= holdfast.now() as expired"
        " from {}.export_history where id = any($1::uuid[]) and user_id = $2"
    )
    rows = await connection.fetch(qualify_tables(query, schema), history_ids, UUID(owner))
    fields = HistoryEntry.__struct_fields__
    return {row["id"]: HistoryEntry(**{name: row[name] for name in fields}) for row in rows}


async def find_history_entry(
    connection: Any, schema: str, history_id: UUID, owner: str
) -> HistoryEntry | None:
    """Return an entry of the export history, or None if the user owns no entry with this id."""
    return (await list_history_entries(connection, schema, [history_id], owner)).get(history_id)


async def increment_download_count(connection: Any, schema: str, history_id: UUID) -> None:
    """Increment the download count of an entry of the export history."""
    query = "update {}.export_history set download_count = download_count + 1 where id = $1"
    await connection.execute(qualify_tables(query, schema), history_id)


async def delete_history_entry(connection: Any, schema: str, history_id: UUID, owner: str) -> bool:
    """Delete an entry of the export history and its file. Return whether the entry existed.

    A trigger deletes the file. The next file cleanup deletes the object in the store.
    """
    query = "delete from {}.export_history where id = $1 and user_id = $2 returning id"
    row = await connection.fetchrow(qualify_tables(query, schema), history_id, UUID(owner))
    return row is not None


async def delete_expired_exports(client: Client, schema: str) -> int:
    """Delete expired exports and old export requests. Return the number of deleted history entries."""
    deleted = 0
    while True:
        async with client.transaction() as connection:
            rows = await connection.fetch(
                qualify_tables(
                    "delete from {}.export_history where id in (select id from {}.export_history"
                    " where expires_at <= holdfast.now() order by expires_at limit $1 for update skip locked)"
                    " returning id",
                    schema,
                ),
                MAX_CLEANUP_BATCH_ROWS,
            )
        deleted += len(rows)
        if len(rows) < MAX_CLEANUP_BATCH_ROWS:
            break
    await client.files.sweep()
    async with client.transaction() as connection:
        for query in (
            "delete from {}.export_usage where day < (holdfast.now() at time zone 'UTC')::date - 7",
            "delete from {}.export_batches where created_at < holdfast.now() - interval '30 days'",
            "delete from {}.export_requests r where r.created_at < holdfast.now() - interval '30 days'"
            " and not exists (select from {}.export_history h where h.id = r.id)",
        ):
            await connection.execute(qualify_tables(query, schema))
    return deleted
