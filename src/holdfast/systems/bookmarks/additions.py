"""Add bookmarks: the row and its message in one transaction, within the limits of the user.

The queue is read in the order of its messages. So that a user with a thousand new bookmarks does not delay
the others, only the first few new messages of one user are visible. The rest are in the queue too, invisible
until their turn: when no message is ready, the next few become visible, one of each user at first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from holdfast import Client
from holdfast.errors import ConflictError, NotFoundError, QuotaExceededError, TooManyRequestsError
from holdfast.systems.bookmarks import queries
from holdfast.systems.bookmarks.bookmark_urls import BookmarkUrl
from holdfast.systems.bookmarks.messages import BOOKMARK_QUEUE, build_message_body
from holdfast.systems.bookmarks.processing_queries import MAX_VISIBLE_MESSAGES_PER_USER

_client = Client()  # opens no connection: every message is sent on the connection of the request
TOO_MANY_WAITING_RETRY_AFTER_S: Final = 60
MAX_IMPORTED_URLS: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class BookmarkLimits:
    """Limits of each user: saved bookmarks, and bookmarks that wait for their screenshot and data.

    The size of the files is limited by the quota of the user: `holdfast limit quota`.
    """

    max_bookmarks: int = 10_000
    max_unfinished: int = 2_000


async def add_bookmark(
    connection: Any,
    schema: str,
    owner: str,
    url: BookmarkUrl,
    category_id: int | None,
    limits: BookmarkLimits,
) -> queries.Row:
    """Add a bookmark and send its message. Return its row, or the row that the user already has.

    The connection must be in a transaction and act as a service.
    """
    await queries.lock_user(connection, owner)
    bookmark_id = await queries.insert_bookmark(connection, schema, owner, url, category_id)
    if bookmark_id is None:
        row = await queries.find_bookmark_by_url(connection, schema, owner, url)
        assert row is not None  # noqa: S101  (the reason for the conflict)
        return row
    unfinished = await _check_limits(connection, schema, owner, limits)
    body = build_message_body(bookmark_id, url.text, owner, is_image=url.is_image)
    message_id = await _client.queues.send(BOOKMARK_QUEUE, body, on=connection)
    if unfinished > MAX_VISIBLE_MESSAGES_PER_USER:
        await _take_turns(connection, schema, owner, [message_id])
    return await queries.set_message_id(connection, schema, bookmark_id, message_id)


async def add_import(
    connection: Any,
    schema: str,
    owner: str,
    urls: Sequence[BookmarkUrl],
    refused: int,
    limits: BookmarkLimits,
) -> UUID:
    """Add the bookmarks of an import, and return its id. URLs that the user has saved are left alone."""
    await queries.lock_user(connection, owner)
    import_id = await queries.add_import(connection, schema, owner, total=len(urls), refused=refused)
    rows = await queries.insert_bookmarks(connection, schema, owner, urls, import_id)
    if rows:
        await _check_limits(connection, schema, owner, limits)
        bodies = [build_message_body(row["id"], row["url"], owner, is_image=row["is_image"]) for row in rows]
        message_ids = await _client.queues.send_batch(BOOKMARK_QUEUE, bodies, on=connection)
        pairs = zip([row["id"] for row in rows], message_ids, strict=True)
        await queries.set_message_ids(connection, schema, dict(pairs))
        await _take_turns(connection, schema, owner, message_ids)
    await queries.set_already_saved(connection, schema, import_id, len(urls) - len(rows))
    return import_id


async def retry_bookmark(connection: Any, schema: str, owner: str, bookmark_id: int) -> None:
    """Run the steps of a bookmark that have not succeeded once more.

    The old message is archived, and a new one starts with no reads.
    """
    bookmark = await queries.lock_bookmark_for_retry(connection, schema, bookmark_id, owner)
    if bookmark is None:
        raise NotFoundError(f"Bookmark {bookmark_id} does not exist.")
    if bookmark["status"] not in ("failed", "retrying"):
        raise ConflictError(
            f"Bookmark {bookmark_id} has not failed; it is {bookmark['status']}.",
            fix="Retry a bookmark whose status is failed or retrying.",
        )
    if bookmark["message_id"] is not None:
        await queries.archive_message(connection, bookmark["message_id"])
    body = build_message_body(bookmark_id, bookmark["url"], owner, is_image=bookmark["is_image"])
    message_id = await _client.queues.send(BOOKMARK_QUEUE, body, on=connection)
    await queries.prepare_retry(connection, schema, bookmark_id, message_id)


async def _take_turns(connection: Any, schema: str, owner: str, message_ids: Sequence[int]) -> None:
    """Hide new messages of a user until those that came before are processed."""
    count = await queries.count_messages_ahead(connection, schema, owner)
    if count > MAX_VISIBLE_MESSAGES_PER_USER:
        await queries.delay_messages(connection, message_ids, count - len(message_ids))


async def _check_limits(connection: Any, schema: str, owner: str, limits: BookmarkLimits) -> int:
    """Return how many bookmarks of the user are not finished. Raise an error if there are now too many.

    The transaction then rolls back.
    """
    count, unfinished = await queries.count_bookmarks(connection, schema, owner)
    if count > limits.max_bookmarks:
        raise QuotaExceededError(
            f"You may save {limits.max_bookmarks} bookmarks.", fix="Delete bookmarks that you do not need."
        )
    if unfinished > limits.max_unfinished:
        raise TooManyRequestsError(
            f"More than {limits.max_unfinished} of your bookmarks are waiting to be captured.",
            fix="Wait until some of them are complete.",
            retry_after=TOO_MANY_WAITING_RETRY_AFTER_S,
        )
    return unfinished
