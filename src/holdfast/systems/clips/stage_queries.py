"""SQL queries of the workers: begin a stage, keep what providers answered, finish or fail a clip.

A status changes in the transaction of the message that it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.systems.clips.messages import ENRICH_QUEUE, SCRAPE_QUEUE, ClipQueue
from holdfast.systems.tables import qualify_tables

STAGE_STATUSES: Final[Mapping[ClipQueue, str]] = {SCRAPE_QUEUE: "scraping", ENRICH_QUEUE: "enriching"}
STAGE_LEASES: Final[Mapping[ClipQueue, timedelta]] = {
    SCRAPE_QUEUE: timedelta(seconds=120),
    ENRICH_QUEUE: timedelta(seconds=300),
}
# Columns that a stage may set. Their names become part of a statement, so nothing else may.
STAGE_COLUMNS: Final = frozenset(
    {
        *("title", "author", "description", "thumbnail", "thumbnail_file", "transcript", "summary", "tags"),
        *("embedding", "embedding_model", "embedding_dimension", "duration_s", "language", "notice"),
        *("transcript_segments", "transcript_by", "enriched_by"),
    }
)
Segments = Sequence[tuple[float, float, str]]


@dataclass(frozen=True, kw_only=True)
class ClipState:
    """What a stage needs to know about its clip."""

    id: str
    user_id: UUID
    video_url: str
    title: str | None
    author: str | None
    description: str | None
    language: str | None
    transcript: str | None
    segments: Segments
    uncounted_reads: int
    last_error: str | None

    @property
    def owner(self) -> str:
        return str(self.user_id)


async def begin_stage(
    connection: Any, schema: str, queue: ClipQueue, clip_id: str, message_id: int
) -> ClipState | None:
    """Show that a stage of a clip runs. Return None if the message is not, or no longer, needed.

    A clip has one message. A second one, by a webhook or by hand, is not processed; one for a clip whose
    message is gone takes its place.
    """
    row = await connection.fetchrow(
        qualify_tables(
            "select c.id::text as id, user_id, video_url, title, author, description, language, transcript,"
            " transcript_segments::text as segments, uncounted_reads, processing_error as last_error,"
            " processing_status as status, message_queue, message_id, {}.has_clip_message(c) as has_message"
            " from {}.clipnest_videos c where c.id = {}.parse_clip_id($1) for update",
            schema,
        ),
        clip_id,
    )
    if row is None or row["status"] in ("done", "failed"):
        return None
    is_own = (row["message_queue"], row["message_id"]) == (queue, message_id)
    if not is_own and (row["has_message"] or (queue == SCRAPE_QUEUE and row["status"] == "enriching")):
        return None
    await connection.execute(
        qualify_tables(
            "update {}.clipnest_videos set processing_status = $2, message_queue = $3, message_id = $4"
            " where id = {}.parse_clip_id($1)",
            schema,
        ),
        clip_id,
        STAGE_STATUSES[queue],
        queue,
        message_id,
    )
    values: dict[str, Any] = {name: row[name] for name in ClipState.__dataclass_fields__}
    segments = msgspec.json.decode(row["segments"] or "[]", type=list[tuple[float, float, str]])
    return replace(ClipState(**values), segments=segments)


async def store_values(connection: Any, schema: str, clip_id: str, values: Mapping[str, Any]) -> bool:
    """Set columns of a clip. Columns of other types (`tags`, `embedding`) are converted from JSON.

    Return False if the clip was deleted.
    """
    names = sorted(STAGE_COLUMNS & values.keys())
    assignments = ", ".join(["version = c.version", *(f"{name} = v.{name}" for name in names)])
    updated = await connection.fetchval(
        qualify_tables(
            f"update {{}}.clipnest_videos c set {assignments}"  # noqa: S608  (names from STAGE_COLUMNS)
            " from jsonb_populate_record(null::{}.clipnest_videos, $2::text::jsonb) v"
            " where c.id = {}.parse_clip_id($1) returning true",
            schema,
        ),
        clip_id,
        msgspec.json.encode({name: values[name] for name in names}).decode(),
    )
    return bool(updated)


async def set_progress(connection: Any, schema: str, clip_id: str, percent: int, phase: str) -> None:
    """Show how far the work on a clip is. The percentage never falls while its status stays the same."""
    await connection.execute(
        qualify_tables(
            "update {}.clipnest_videos set percent = greatest(percent, $2), phase = $3"
            " where id = {}.parse_clip_id($1) and processing_status in ('scraping', 'enriching')",
            schema,
        ),
        clip_id,
        percent,
        phase,
    )


async def send_to_enrichment(connection: Any, schema: str, clip_id: str) -> None:
    """Send a scraped clip to the next queue, and remember that it was scraped."""
    await connection.execute(
        qualify_tables(
            "update {}.clipnest_videos c set processing_status = 'enriching', processing_error = null,"
            " uncounted_reads = 0, percent = 50, phase = 'Waiting for the summary', message_queue = $2,"
            " message_id = (select s from pgmq.send($2::text,"
            " {}.build_clip_message($1, c.user_id, c.video_url)) as s) where c.id = {}.parse_clip_id($1)",
            schema,
        ),
        clip_id,
        ENRICH_QUEUE,
    )
    await save_step(connection, schema, clip_id, "scraped", True)
    await connection.execute(qualify_tables("select {}.release_waiting_clips()", schema))


async def set_done(connection: Any, schema: str, clip_id: str) -> None:
    """Show that a clip is done, and forget the answers of its providers."""
    await connection.execute(
        qualify_tables(
            "update {}.clipnest_videos set processing_status = 'done', processing_error = null,"
            " percent = 100, phase = null, uncounted_reads = 0 where id = {}.parse_clip_id($1)",
            schema,
        ),
        clip_id,
    )
    await connection.execute(
        qualify_tables("delete from {}.clip_steps where clip_id = {}.parse_clip_id($1)", schema), clip_id
    )


async def set_failed(connection: Any, schema: str, clip_id: str, error: str) -> None:
    """Show that a clip failed, with the reason."""
    await connection.execute(
        qualify_tables(
            "update {}.clipnest_videos set processing_status = 'failed', processing_error = $2, phase = null,"
            " uncounted_reads = 0 where id = {}.parse_clip_id($1)",
            schema,
        ),
        clip_id,
        error,
    )
    await connection.execute(qualify_tables("select {}.release_waiting_clips()", schema))


async def set_last_error(connection: Any, schema: str, clip_id: str, error: str) -> None:
    """Show why the last attempt failed, while the clip waits for the next one."""
    await connection.execute(
        qualify_tables(
            "update {}.clipnest_videos set processing_error = $2 where id = {}.parse_clip_id($1)", schema
        ),
        clip_id,
        error,
    )


async def add_uncounted_read(connection: Any, schema: str, clip_id: str, message_id: int) -> None:
    """Remember that this read of a message does not count against its limit."""
    await connection.execute(
        qualify_tables(
            "update {}.clipnest_videos set uncounted_reads = uncounted_reads + 1"
            " where id = {}.parse_clip_id($1) and message_id = $2",
            schema,
        ),
        clip_id,
        message_id,
    )


async def find_step(connection: Any, schema: str, clip_id: str, step: str) -> Any:
    """Return what a step answered, or None if it has not succeeded."""
    text = await connection.fetchval(
        qualify_tables(
            "select result::text from {}.clip_steps where clip_id = {}.parse_clip_id($1) and step = $2",
            schema,
        ),
        clip_id,
        step,
    )
    return None if text is None else msgspec.json.decode(text)


async def save_step(connection: Any, schema: str, clip_id: str, step: str, result: Any) -> None:
    """Keep what a step answered. A clip that was deleted in the meantime keeps nothing."""
    await connection.execute(
        qualify_tables(
            "insert into {}.clip_steps (clip_id, step, result)"
            " select c.id, $2, $3::text::jsonb from {}.clipnest_videos c where c.id = {}.parse_clip_id($1)"
            " on conflict (clip_id, step) do update set result = excluded.result",
            schema,
        ),
        clip_id,
        step,
        msgspec.json.encode(result).decode(),
    )


async def add_usage(connection: Any, schema: str, clip_id: str, usage: Mapping[str, Any]) -> None:
    """Add what a call of a provider used and cost to the row of the clip."""
    await connection.execute(
        qualify_tables(
            "update {}.clipnest_videos set tokens_in = tokens_in + $2, tokens_out = tokens_out + $3,"
            " cost = cost + $4 where id = {}.parse_clip_id($1)",
            schema,
        ),
        clip_id,
        usage["tokens_in"],
        usage["tokens_out"],
        usage["cost"],
    )
