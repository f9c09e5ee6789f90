"""SQL queries of the clip API. Each takes a connection and the name of the schema. Ids are texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.systems.change_feed import MAX_CHANGED_ROWS
from holdfast.systems.tables import qualify_tables

CLIP_COLUMNS: Final = (
    "id::text as id, user_id, video_url, title, author, description, thumbnail_file, summary,"
    " to_jsonb(tags)::text as tags, duration_s, language, transcript_by, enriched_by, notice,"
    " embedding_model, embedding_dimension, tokens_in, tokens_out, cost::double precision as cost,"
    " processing_status, processing_error, percent, phase, transcript is not null as has_transcript,"
    " created_at, updated_at, version"
)
Row = dict[str, Any]


def _prepare_query(query: str, schema: str) -> str:
    return qualify_tables(query.replace("<columns>", CLIP_COLUMNS), schema)


def _build_row(record: Any) -> Row:
    row = dict(record)
    row["tags"] = msgspec.json.decode(row["tags"]) if row["tags"] else []
    return row


async def is_installed(connection: Any, schema: str) -> bool:
    """Return whether the tables of the clip system exist in the schema."""
    table = qualify_tables("{}.clip_passages", schema)
    return bool(await connection.fetchval("select pg_catalog.to_regclass($1) is not null", table))


async def insert_clip(connection: Any, schema: str, owner: str, url: str, url_key: bytes) -> str | None:
    """Insert a clip; a trigger sends its message. Return its id, or None if the user has this URL.

    Raise `TooManyRequestsError` or `QuotaExceededError` if the user now has too many clips. The connection
    must be in a transaction and act as a service.
    """
    clip_id: str | None = await connection.fetchval(
        qualify_tables(
            "insert into {}.clipnest_videos (user_id, video_url, url_key) values ($1, $2, $3)"
            " on conflict (user_id, url_key) do nothing returning id::text",
            schema,
        ),
        UUID(owner),
        url,
        url_key,
    )
    if clip_id is not None:
        await connection.execute(qualify_tables("select {}.check_clip_limits($1)", schema), UUID(owner))
    return clip_id


async def find_clip(connection: Any, schema: str, clip_id: str, owner: str) -> Row | None:
    """Return the row of a clip without its transcript, or None if the user has no clip with this id."""
    record = await connection.fetchrow(
        _prepare_query(
            "select <columns> from {}.clipnest_videos where id = {}.parse_clip_id($1) and user_id = $2",
            schema,
        ),
        clip_id,
        UUID(owner),
    )
    return _build_row(record) if record is not None else None


async def find_clip_by_url(connection: Any, schema: str, owner: str, url_key: bytes) -> Row | None:
    """Return the row of the clip that a user has for a URL, or None."""
    record = await connection.fetchrow(
        _prepare_query(
            "select <columns> from {}.clipnest_videos where user_id = $1 and url_key = $2", schema
        ),
        UUID(owner),
        url_key,
    )
    return _build_row(record) if record is not None else None


async def find_transcript(
    connection: Any, schema: str, clip_id: str, owner: str
) -> tuple[str | None, list[tuple[float, float, str]]]:
    """Return the transcript of a clip, and its parts with their times in seconds."""
    record = await connection.fetchrow(
        qualify_tables(
            "select transcript, transcript_segments::text from {}.clipnest_videos"
            " where id = {}.parse_clip_id($1) and user_id = $2",
            schema,
        ),
        clip_id,
        UUID(owner),
    )
    if record is None:
        return None, []
    segments = msgspec.json.decode(record[1], type=list[tuple[float, float, str]]) if record[1] else []
    return record[0], segments


@dataclass(frozen=True, kw_only=True)
class ClipFilter:
    """Which clips of a user to list. `before` is the time and the id of the last one of the previous page."""

    status: str | None = None
    tag: str | None = None
    before: tuple[datetime, str] | None = None
    limit: int = 60


async def list_clips(connection: Any, schema: str, owner: str, filters: ClipFilter) -> list[Row]:
    """List the clips of a user, newest first."""
    created_at, clip_id = filters.before or (None, None)
    records = await connection.fetch(
        _prepare_query(
            "select <columns> from {}.clipnest_videos where user_id = $1"
            " and ($2::text is null or processing_status = $2)"
            " and ($3::text is null or to_jsonb(tags) ? $3)"
            " and ($4::timestamptz is null or (created_at, id) < ($4, {}.parse_clip_id($5)))"
            " order by created_at desc, id desc limit $6",
            schema,
        ),
        UUID(owner),
        filters.status,
        filters.tag,
        created_at,
        clip_id,
        filters.limit,
    )
    return [_build_row(record) for record in records]


async def list_clips_by_id(connection: Any, schema: str, owner: str, clip_ids: Sequence[str]) -> list[Row]:
    """List clips of a user by their ids."""
    records = await connection.fetch(
        _prepare_query(
            "select <columns> from {}.clipnest_videos where user_id = $1"
            " and id in (select {}.parse_clip_id(i) from unnest($2::text[]) as i)",
            schema,
        ),
        UUID(owner),
        list(clip_ids),
    )
    return [_build_row(record) for record in records]


async def list_changed_clips(
    connection: Any, schema: str, owners: Iterable[str], since: datetime
) -> list[Row]:
    """List the clips of these users that changed since a time, oldest change first."""
    records = await connection.fetch(
        _prepare_query(
            "select <columns> from {}.clipnest_videos where user_id = any ($1) and updated_at > $2"
            " order by updated_at limit $3",
            schema,
        ),
        [UUID(owner) for owner in owners],
        since,
        MAX_CHANGED_ROWS,
    )
    return [_build_row(record) for record in records]


async def count_clips(connection: Any, schema: str, owner: str) -> int:
    """Return how many clips a user has."""
    count: int = await connection.fetchval(
        qualify_tables("select count(*) from {}.clipnest_videos where user_id = $1", schema), UUID(owner)
    )
    return count


async def delete_clip(connection: Any, schema: str, clip_id: str, owner: str) -> bool:
    """Delete a clip. Triggers delete its files and archive its message. Return False if there is none."""
    deleted = await connection.fetchval(
        qualify_tables(
            "delete from {}.clipnest_videos where id = {}.parse_clip_id($1) and user_id = $2 returning true",
            schema,
        ),
        clip_id,
        UUID(owner),
    )
    if deleted:
        await connection.execute(qualify_tables("select {}.release_waiting_clips()", schema))
    return bool(deleted)


async def enqueue_clip(connection: Any, schema: str, clip_id: str, *, restart: bool = False) -> bool:
    """Send the message of a clip that has none. With `restart`, also of one that failed or is done."""
    sent: bool = await connection.fetchval(
        qualify_tables("select {}.enqueue_clip($1, $2)", schema), clip_id, restart
    )
    return sent
