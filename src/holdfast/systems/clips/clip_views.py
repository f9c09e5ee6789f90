"""Build the responses of the clip API: rows with a link to their thumbnail."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast import Client
from holdfast.systems.clips import clip_queries as queries
from holdfast.systems.owned_files import create_owned_link, find_visible_files


class Clip(msgspec.Struct, kw_only=True):
    """A clip. `thumbnail` is a link that works for an hour.

    `processing_status` is pending, scraping, enriching, done or failed. While a clip waits for another
    attempt, `processing_error` says why the last one failed. `version` grows with each change.
    """

    id: str
    user_id: UUID
    video_url: str
    title: str | None
    author: str | None
    description: str | None
    thumbnail: str | None
    summary: str | None
    tags: list[str]
    duration_s: float | None
    language: str | None
    transcript_by: str | None
    enriched_by: str | None
    notice: str | None
    embedding_model: str | None
    embedding_dimension: int | None
    tokens_in: int
    tokens_out: int
    cost: float
    processing_status: str
    processing_error: str | None
    percent: int
    phase: str | None
    has_transcript: bool
    created_at: datetime
    updated_at: datetime
    version: int


class TranscriptLine(msgspec.Struct, frozen=True):
    """A part of a transcript, with its beginning and its end in seconds."""

    start: float
    end: float
    text: str


class ClipDetails(Clip, kw_only=True):
    """A clip with its transcript, which lists and events leave out."""

    transcript: str | None
    segments: list[TranscriptLine]


async def build_clips(client: Client, rows: Sequence[queries.Row]) -> list[Clip]:
    """Build clips from rows, with signed links to those thumbnails that the owner of the row owns."""
    files = await find_visible_files(client, [row["thumbnail_file"] for row in rows])
    clips: list[Clip] = []
    for row in rows:
        values: dict[str, Any] = dict(row)
        file = files.get(values.pop("thumbnail_file"))
        values["thumbnail"] = await create_owned_link(client, file, row["user_id"])
        clips.append(Clip(**values))
    return clips


def build_clip_details(
    clip: Clip, transcript: str | None, segments: Sequence[tuple[float, float, str]]
) -> ClipDetails:
    """Add the transcript to a clip."""
    lines = [TranscriptLine(*segment) for segment in segments]
    return ClipDetails(**msgspec.structs.asdict(clip), transcript=transcript, segments=lines)
