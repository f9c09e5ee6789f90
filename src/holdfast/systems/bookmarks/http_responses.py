"""Build the responses of the bookmark API: rows with links to their files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast import Artifact, Client
from holdfast.errors import NotFoundError
from holdfast.systems.bookmarks import queries
from holdfast.systems.bookmarks.messages import MAX_BOOKMARK_ID
from holdfast.systems.owned_files import create_owned_link, find_visible_files

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
    files = await find_visible_files(client, (row[f"{name}_file"] for row in rows for name in FILE_COLUMNS))
    return [await _build_bookmark(client, row, files) for row in rows]


async def _build_bookmark(client: Client, row: queries.Row, files: dict[UUID, Artifact]) -> Bookmark:
    values: dict[str, Any] = dict(row)
    for name in FILE_COLUMNS:
        file_id = values.pop(f"{name}_file")
        values[name] = await create_owned_link(client, files.get(file_id), row["user_id"])
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
