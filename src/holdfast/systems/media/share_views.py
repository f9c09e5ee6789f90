"""Build the responses of the media API: shares with links to their files, and frames of progress."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast import Artifact, Client
from holdfast.errors import NotFoundError
from holdfast.systems.media import share_queries as queries
from holdfast.systems.owned_files import FILE_LINK_LIFETIME, create_owned_link, find_visible_files


class ShareFile(msgspec.Struct, kw_only=True):
    """A file of a share. `kind` is media, poster, strip, audio, web or transcript.

    `url` works for an hour.
    """

    id: UUID
    kind: str
    name: str
    content_type: str
    size: int
    url: str
    meta: dict[str, Any]


class ShareProgressView(msgspec.Struct, kw_only=True):
    """How far the work is: bytes of a download, bytes per second, and seconds that it will take."""

    phase: str
    bytes: int
    total: int | None
    speed: float | None
    eta: float | None
    percent: float | None


class Share(msgspec.Struct, kw_only=True):
    """A shared link. `download_status` is pending, processing, retry, completed or failed.

    `processing_status` and `transcript_status` are waiting, processing, completed, failed or skipped.
    `poster` is a link to a picture of the video that works for an hour. `updated_at` grows with each change.
    """

    id: UUID
    user_id: UUID
    url: str
    media_url: str | None
    media_type: str | None
    platform_data: dict[str, Any]
    download_status: str
    download_attempts: int
    download_error: str | None
    download_started_at: datetime | None
    download_completed_at: datetime | None
    created_at: datetime
    retry_at: datetime | None
    processing_status: str
    processing_error: str | None
    transcript_status: str
    transcript_error: str | None
    media_info: dict[str, Any] | None
    updated_at: datetime
    finished: bool
    progress: ShareProgressView
    poster: str | None = None
    files: list[ShareFile] | None = None


class ShareList(msgspec.Struct, kw_only=True):
    """A page of shares, newest first. `next` is the parameter `before` of the next page."""

    shares: list[Share]
    next: UUID | None
    used_bytes: int
    max_bytes: int


def build_share(
    row: queries.Row, *, poster: str | None = None, files: Sequence[ShareFile] | None = None
) -> Share:
    """Build a share from its row."""
    names = set(Share.__struct_fields__) - {"retry_at", "finished", "progress", "poster", "files"}
    return Share(
        **{name: row[name] for name in names},
        retry_at=row["run_after"] if row["download_status"] == "retry" else None,
        finished=queries.is_share_finished(row),
        progress=build_progress(row),
        poster=poster,
        files=None if files is None else list(files),
    )


def build_progress(row: queries.Row) -> ShareProgressView:
    """Build the progress of a share from its status and the newest numbers of its worker."""
    phase, status = row["phase"] or "download", row["download_status"]
    if status in ("pending", "retry", "failed"):
        phase = {"pending": "queued", "retry": "waiting"}.get(status, status)
    elif queries.is_share_finished(row):
        phase = "completed"
    elif status == "completed" and phase == "download":  # the next task has not reported yet
        phase = "process" if row["processing_status"] in ("waiting", "processing") else "transcribe"
    total, done, speed = row["total"], row["bytes"] or 0, row["speed"]
    if status == "completed":
        done = total = row["platform_data"].get("downloadMetadata", {}).get("size", done)
        speed = None
    running = status == "processing"
    eta = (total - done) / speed if running and total and speed else None
    return ShareProgressView(
        phase=phase,
        bytes=done,
        total=total,
        speed=speed if running else None,
        eta=eta,
        percent=_compute_percent(row, phase),
    )


def _compute_percent(row: queries.Row, phase: str) -> float | None:
    if phase == "completed":
        return 100.0
    reported: float | None = row["percent"] if row["phase"] == phase else None
    return reported


async def build_shares(client: Client, rows: Sequence[queries.Row]) -> list[Share]:
    """Build shares with links to their posters."""
    files = await find_visible_files(client, (row["poster_id"] for row in rows))
    return [
        build_share(row, poster=await create_owned_link(client, files.get(row["poster_id"]), row["user_id"]))
        for row in rows
    ]


async def build_share_with_files(client: Client, row: queries.Row) -> Share:
    """Build a share with links to its files."""
    files = await list_share_files(client, row)
    poster = next((file.url for file in files if file.id == row["poster_id"]), None)
    return build_share(row, poster=poster, files=files)


async def list_share_files(client: Client, row: queries.Row) -> list[ShareFile]:
    """List the files of a share that its owner owns, with links that work for an hour."""
    if row["job_id"] is None:
        return []
    files = await client.files.list(job=row["job_id"], owner=str(row["user_id"]))
    return [await _build_file(client, file) for file in files]


async def _build_file(client: Client, file: Artifact) -> ShareFile:
    return ShareFile(
        id=file.id,
        kind=file.kind,
        name=file.name,
        content_type=file.content_type,
        size=file.size,
        url=await client.files.create_download_link(file, FILE_LINK_LIFETIME, inline=True),
        meta=file.meta,
    )


def parse_share_id(text: str) -> UUID:
    """Return the id of a share in a path. Raise `NotFoundError` (404) for other text."""
    try:
        return UUID(text)
    except ValueError:
        raise NotFoundError(f"Share {text!r} does not exist.") from None
