"""Build the responses of the bookmark API: rows with links to their files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast import Artifact, Client
from holdfast.errors import NotFoundError
from holdfast.systems.bookmarks import queries
from holdfast.systems.bookmarks.messages import MAX_BOOKMARK_ID

FILE_LINK_LIFETIME: Final = timedelta(hours=1)
FILE_COLUMNS: Final = ("screenshot", "og_image", "favicon")


class Bookmark(msgspec.Struct, kw_only=True):
    """A bookmark. `screenshot`, `og_image` and `favicon` are links that work for an hour.

    `status` is pending, processing, retrying, complete or failed. The status of a step is pending, running,
    succeeded, failed, or skipped (the screenshot of an image). `version` grows with each change.
    """

    id: int
    user_id: UUID
    url: str
    category_id: int | None
    title: str | None
    description: str | None
    screenshot: str | None
    og_image: str | None
    favicon: str | None
    blurhash: str | None
    width: int | None
    height: int | None
    ocr: str | None
    caption: str | None
    is_image: bool
    status: str
    screenshot_status: str
    screenshot_error: str | None
    remaining_status: str
    remaining_error: str | None
    attempts: int
    import_id: UUID | None
    created_at: datetime
    updated_at: datetime
    version: int


class BookmarkDetails(Bookmark, kw_only=True):
    """A bookmark with the readable text of its page, which lists and events leave out."""

    page_text: str | None


class ImportProgress(msgspec.Struct, kw_only=True, rename="camel"):
    """The progress of an import. `percent` counts the bookmarks that are complete or have failed."""

    id: UUID
    total: int
    already_saved: int
    refused: int
    complete: int
    failed: int
    unfinished: int
    percent: int
    created_at: datetime


async def build_bookmarks(client: Client, rows: Sequence[queries.Row]) -> list[Bookmark]:
    """Build bookmarks from rows, with signed links to those files that the owner of the row owns."""
    file_ids = [row[f"{name}_file"] for row in rows for name in FILE_COLUMNS if row[f"{name}_file"]]
    files: dict[UUID, Artifact] = {}
    if file_ids:
        async with client.connection() as connection:
            files = await queries.find_files(connection, file_ids)
    return [await _build_bookmark(client, row, files) for row in rows]


async def _build_bookmark(client: Client, row: queries.Row, files: dict[UUID, Artifact]) -> Bookmark:
    values: dict[str, Any] = dict(row)
    for name in FILE_COLUMNS:
        file = files.get(values.pop(f"{name}_file") or UUID(int=0))
        owned = file is not None and file.owner == str(row["user_id"])
        values[name] = (
            await client.files.create_download_link(file, FILE_LINK_LIFETIME, inline=True)
            if file is not None and owned
            else None
        )
    return Bookmark(**values)


def build_import_progress(row: queries.Row) -> ImportProgress:
    """Build the progress of an import from its counts."""
    added = row["total"] - row["already_saved"]
    ended = added - row["unfinished"]
    return ImportProgress(**row, percent=100 if added <= 0 else 100 * ended // added)


def parse_bookmark_id(text: str) -> int:
    """Return the id of a bookmark in a path. Raise `NotFoundError` (404) for other text."""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not 0 < int(text) <= MAX_BOOKMARK_ID:
        raise NotFoundError(f"Bookmark {text!r} does not exist.")
    return int(text)
