"""SQL queries of the media system: shares, their progress, and what a user has used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.systems.change_feed import MAX_CHANGED_ROWS
from holdfast.systems.media.share_urls import ShareUrl
from holdfast.systems.tables import qualify_tables

Row: TypeAlias = dict[str, Any]
WorkStatus = Literal["waiting", "processing", "completed", "failed", "skipped"]
FINAL_DOWNLOAD_STATUSES: Final = frozenset({"completed", "failed"})
FINAL_WORK_STATUSES: Final = frozenset({"completed", "failed", "skipped"})

_SELECT_SHARES: Final = (
    "select s.id, s.user_id, s.url, s.media_url, s.media_type, s.platform_data::text as platform_data,"
    " s.download_status, s.download_attempts, s.download_error, s.download_started_at,"
    " s.download_completed_at, s.created_at, s.premium, s.options::text as options, s.run_after, s.job_id,"
    " s.download_task_id, s.file_id, s.processing_status, s.processing_error, s.transcript_status,"
    " s.transcript_error, s.media_info::text as media_info, s.poster_id, s.uses_ytdlp,"
    " greatest(s.updated_at, p.updated_at) as updated_at, p.phase, p.bytes, p.total, p.speed,"
    " p.percent from {}.shares s left join {}.share_progress p on p.share_id = s.id"
)
_JSON_COLUMNS: Final = ("platform_data", "options", "media_info")


@dataclass(frozen=True)
class UserUsage:
    """What a user has used: bytes of stored media, and shares that were added in this hour."""

    bytes: int
    added: int


@dataclass(frozen=True, kw_only=True)
class ProgressNumbers:
    """How far a download is in bytes and bytes per second, and any work in percent."""

    done: int
    total: int | None
    speed: float | None
    percent: float | None


async def find_share(connection: Any, schema: str, share_id: UUID, owner: str | None = None) -> Row | None:
    """Return a share, or None if it does not exist or the owner does not own it."""
    query = _SELECT_SHARES + " where s.id = $1 and ($2::uuid is null or s.user_id = $2)"
    row = await connection.fetchrow(qualify_tables(query, schema), share_id, UUID(owner) if owner else None)
    return _decode_row(row) if row else None


async def list_shares(
    connection: Any, schema: str, owner: str, *, status: str | None, before: UUID | None, limit: int
) -> list[Row]:
    """List the shares of a user, newest first. `before` is the last share of the previous page."""
    conditions = (
        " where s.user_id = $1 and ($2::text is null or s.download_status = $2)"
        " and ($3::uuid is null or (s.created_at, s.id) < (select b.created_at, b.id from {}.shares b"
        " where b.id = $3 and b.user_id = $1)) order by s.created_at desc, s.id desc limit $4"
    )
    query = qualify_tables(_SELECT_SHARES + conditions, schema)
    rows = await connection.fetch(query, UUID(owner), status, before, limit)
    return [_decode_row(row) for row in rows]


async def list_shares_by_id(connection: Any, schema: str, share_ids: Iterable[UUID]) -> list[Row]:
    """Return the shares with these ids."""
    query = _SELECT_SHARES + " where s.id = any ($1::uuid[])"
    return [
        _decode_row(row) for row in await connection.fetch(qualify_tables(query, schema), list(share_ids))
    ]


async def list_changed_shares(
    connection: Any, schema: str, owners: Iterable[str], since: datetime
) -> list[Row]:
    """List the shares of these users that changed since a time, or whose progress did, oldest first."""
    conditions = (
        " where s.id in (select c.id from {}.shares c where c.user_id = any ($1) and c.updated_at > $2"
        " union select g.share_id from {}.share_progress g where g.user_id = any ($1) and g.updated_at > $2)"
        " order by greatest(s.updated_at, p.updated_at) limit $3"
    )
    query = qualify_tables(_SELECT_SHARES + conditions, schema)
    rows = await connection.fetch(query, [UUID(owner) for owner in owners], since, MAX_CHANGED_ROWS)
    return [_decode_row(row) | {"version": row["updated_at"]} for row in rows]


def _decode_row(row: Mapping[str, Any]) -> Row:
    values = dict(row)
    for name in _JSON_COLUMNS:
        values[name] = msgspec.json.decode(values[name]) if values[name] is not None else None
    return values


async def lock_user(connection: Any, owner: str) -> None:
    """Make other transactions that add shares of this user wait until this one ends."""
    await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 7263482))", owner)


async def find_share_by_url(connection: Any, schema: str, owner: str, url: ShareUrl) -> UUID | None:
    """Return the newest share of the same URL that has not failed."""
    query = (
        "select s.id from {}.shares s where s.user_id = $1 and s.url_key = $2"
        " and s.download_status <> 'failed' order by s.created_at desc limit 1"
    )
    share_id: UUID | None = await connection.fetchval(qualify_tables(query, schema), UUID(owner), url.key)
    return share_id


async def add_share(
    connection: Any, schema: str, owner: str, url: ShareUrl, *, premium: bool, options: Mapping[str, Any]
) -> UUID:
    """Insert a share that waits for its download, and return its id."""
    query = (
        "insert into {}.shares (user_id, url, url_key, premium, options, platform_data)"
        " values ($1, $2, $3, $4, $5::jsonb, jsonb_build_object('originalMediaUrl', $2::text)) returning id"
    )
    share_id: UUID = await connection.fetchval(
        qualify_tables(query, schema),
        UUID(owner),
        url.text,
        url.key,
        premium,
        msgspec.json.encode(options).decode(),
    )
    return share_id


async def get_user_usage(connection: Any, schema: str, owner: str) -> UserUsage:
    """Return how many bytes of media a user stores, and how many shares the user added in this hour."""
    query = (
        "select coalesce((select u.added from {}.share_usage u where u.user_id = $1"
        " and u.hour = date_trunc('hour', holdfast.now())), 0) as added,"
        " coalesce((select sum((s.platform_data #>> '{downloadMetadata,size}')::numeric)::bigint"
        " from {}.shares s where s.user_id = $1 and s.file_id is not null), 0) as bytes"
    )
    row = await connection.fetchrow(qualify_tables(query, schema), UUID(owner))
    return UserUsage(bytes=row["bytes"], added=row["added"])


async def count_added_share(connection: Any, schema: str, owner: str) -> None:
    """Count one more share of a user in this hour, and forget the hours of the past."""
    query = (
        "insert into {}.share_usage as u (user_id, hour, added)"
        " values ($1, date_trunc('hour', holdfast.now()), 1)"
        " on conflict (user_id, hour) do update set added = u.added + 1"
    )
    await connection.execute(qualify_tables(query, schema), UUID(owner))
    old = "delete from {}.share_usage where user_id = $1 and hour < holdfast.now() - interval '1 day'"
    await connection.execute(qualify_tables(old, schema), UUID(owner))


async def start_downloads(connection: Any, schema: str) -> int:
    """Start as many waiting downloads as there is room for. Return their number."""
    started: int = await connection.fetchval(qualify_tables("select {}.start_share_downloads()", schema))
    return started


async def take_ytdlp_slot(connection: Any, schema: str, share_id: UUID, job_id: UUID) -> bool:
    """Mark a share as one that needs yt-dlp. Return False if it has to wait, because too many run."""
    query = qualify_tables("select {}.take_ytdlp_slot($1, $2)", schema)
    return bool(await connection.fetchval(query, share_id, job_id))


async def delete_share(connection: Any, schema: str, share_id: UUID, owner: str) -> bool:
    """Delete a share, cancel its job and delete its files. Return False if the user has no such share."""
    query = "delete from {}.shares where id = $1 and user_id = $2 returning id"
    deleted = await connection.fetchval(qualify_tables(query, schema), share_id, UUID(owner))
    return deleted is not None


async def restart_download(connection: Any, schema: str, share_id: UUID) -> None:
    """Download a failed share again, with all its attempts."""
    query = "update {}.shares set download_status = 'pending' where id = $1 and download_status = 'failed'"
    await connection.execute(qualify_tables(query, schema), share_id)


async def restart_work(connection: Any, schema: str, share_id: UUID, job_id: UUID, task_name: str) -> None:
    """Run the processing or the transcription of a downloaded share again."""
    columns = {"process": "processing", "transcribe": "transcript"}
    names = ["processing", "transcript"] if task_name == "process" else [columns[task_name]]
    changes = ", ".join(f"{name}_status = 'waiting', {name}_error = null" for name in names)
    await connection.execute(
        qualify_tables(f"update {{}}.shares set {changes} where id = $1", schema),  # noqa: S608  (our columns)
        share_id,
    )
    await connection.execute("select holdfast.retry_job($1, array[$2])", job_id, task_name)


async def begin_download(connection: Any, schema: str, share_id: UUID, job_id: UUID) -> Row | None:
    """Mark the share of a running task as being downloaded. Return None if the share is gone or replaced.

    A share that has failed stays as it is: the worker died before it could end the task.
    """
    query = (
        "update {}.shares set download_status = case when download_status = 'failed' then 'failed'"
        " else 'processing' end, download_started_at = holdfast.now(),"
        " run_after = null, slot_taken_at = case when download_status <> 'failed'"
        " then coalesce(slot_taken_at, holdfast.now()) end where id = $1 and job_id = $2 returning id"
    )
    if await connection.fetchval(qualify_tables(query, schema), share_id, job_id) is None:
        return None
    return await find_share(connection, schema, share_id)


async def complete_download(
    connection: Any, schema: str, share_id: UUID, job_id: UUID, *, values: Mapping[str, Any]
) -> bool:
    """Store the file of a share and mark its download as complete. Return False if the share is gone.

    `values` has media_url, media_type, file_id and platform_data; the latter is merged.
    """
    query = (
        "update {}.shares set download_status = 'completed', download_error = null, run_after = null,"
        " slot_taken_at = null, download_completed_at = holdfast.now(), media_url = $3, media_type = $4,"
        " file_id = $5, platform_data = platform_data || $6::jsonb"
        " where id = $1 and job_id = $2 returning id"
    )
    updated = await connection.fetchval(
        qualify_tables(query, schema),
        share_id,
        job_id,
        values["media_url"],
        values["media_type"],
        values["file_id"],
        msgspec.json.encode(values["platform_data"]).decode(),
    )
    return updated is not None


async def record_download_failure(
    connection: Any, schema: str, share_id: UUID, job_id: UUID, error: str, retry_in: timedelta | None
) -> int | None:
    """Count a failed attempt. With `retry_in` the share waits for its next attempt, else it has failed.

    Return the number of failed attempts, or None if the share is gone.
    """
    query = (
        "update {}.shares set download_attempts = download_attempts + 1, download_error = $3,"
        " download_status = case when $4::interval is null then 'failed' else 'retry' end,"
        " run_after = holdfast.now() + $4::interval, slot_taken_at = null,"
        " processing_status = case when $4::interval is null then 'skipped' else processing_status end,"
        " transcript_status = case when $4::interval is null then 'skipped' else transcript_status end"
        " where id = $1 and job_id = $2 returning download_attempts"
    )
    attempts: int | None = await connection.fetchval(
        qualify_tables(query, schema), share_id, job_id, error, retry_in
    )
    return attempts


async def set_work_status(
    connection: Any,
    schema: str,
    share_id: UUID,
    job_id: UUID,
    work: Literal["processing", "transcript"],
    status: WorkStatus,
    *,
    error: str | None = None,
) -> bool:
    """Set the status of the processing or of the transcription. Return False if the share is gone."""
    query = (
        f"update {{}}.shares set {work}_status = $3, {work}_error = $4"  # noqa: S608  (one of two names)
        " where id = $1 and job_id = $2 returning id"
    )
    updated = await connection.fetchval(qualify_tables(query, schema), share_id, job_id, status, error)
    return updated is not None


async def set_media_info(
    connection: Any, schema: str, share_id: UUID, job_id: UUID, info: Any, *, duration_s: float | None
) -> None:
    """Store what the file of a share contains, and its duration in `platform_data.downloadMetadata`."""
    query = (
        "update {}.shares set media_info = $3::jsonb, platform_data = case when $4::double precision is null"
        " or platform_data -> 'downloadMetadata' is null then platform_data"
        " else jsonb_set(platform_data, '{downloadMetadata,duration}', to_jsonb($4::double precision)) end"
        " where id = $1 and job_id = $2"
    )
    await connection.execute(
        qualify_tables(query, schema), share_id, job_id, msgspec.json.encode(info).decode(), duration_s
    )


async def set_poster(connection: Any, schema: str, share_id: UUID, job_id: UUID, poster_id: UUID) -> None:
    """Store which file lists show as the picture of a share."""
    query = "update {}.shares set poster_id = $3 where id = $1 and job_id = $2"
    await connection.execute(qualify_tables(query, schema), share_id, job_id, poster_id)


async def put_progress(
    connection: Any,
    schema: str,
    share_id: UUID,
    phase: str,
    numbers: ProgressNumbers,
) -> None:
    """Store how far the work on a share is. The newest value replaces the one before."""
    query = (
        "insert into {}.share_progress (share_id, user_id, phase, bytes, total, speed, percent, updated_at)"
        " select s.id, s.user_id, $2, $3, $4, $5, $6, clock_timestamp() from {}.shares s where s.id = $1"
        " on conflict (share_id) do update set phase = excluded.phase, bytes = excluded.bytes,"
        " total = excluded.total, speed = excluded.speed, percent = excluded.percent,"
        " updated_at = excluded.updated_at"
    )
    await connection.execute(
        qualify_tables(query, schema),
        share_id,
        phase,
        numbers.done,
        numbers.total,
        numbers.speed,
        numbers.percent,
    )


async def count_shares_by_status(connection: Any, schema: str) -> dict[str, int]:
    """Return the number of shares that are not complete, by status (the view `download_queue_depth`)."""
    rows = await connection.fetch(qualify_tables("select * from {}.download_queue_depth", schema))
    return {row["download_status"]: row["count"] for row in rows}


def is_share_finished(row: Row) -> bool:
    """Return whether nothing will change any more: the download failed, or all work has ended."""
    if row["download_status"] not in FINAL_DOWNLOAD_STATUSES:
        return False
    return row["download_status"] == "failed" or (
        row["processing_status"] in FINAL_WORK_STATUSES and row["transcript_status"] in FINAL_WORK_STATUSES
    )
