"""SQL queries of the bookmark system. Each takes a connection and the name of the schema."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from holdfast.systems.bookmarks.bookmark_urls import BookmarkUrl
from holdfast.systems.bookmarks.messages import BOOKMARK_QUEUE
from holdfast.systems.bookmarks.processing_queries import (
    MAX_VISIBLE_MESSAGES_PER_USER,
    release_waiting_messages,
)
from holdfast.systems.change_feed import MAX_CHANGED_ROWS
from holdfast.systems.tables import qualify_tables

USER_LOCK_KEY: Final = 7263482  # the first key of the advisory locks that serialise the additions of one user
# Workers make hidden messages visible. If none does, the messages appear by themselves, one after the other.
HIDDEN_MESSAGE_INTERVAL: Final = timedelta(minutes=1)
MAX_SEARCH_WORDS: Final = 12
BOOKMARK_COLUMNS: Final = (
    "id, user_id, url, category_id, title, description, screenshot, og_image, favicon, blurhash, width,"
    " height, ocr, caption, is_image, status, screenshot_status, screenshot_error, remaining_status,"
    " remaining_error,"
    " attempts, import_id, created_at, updated_at, version, screenshot_file, og_image_file, favicon_file"
)
Row = dict[str, Any]


def _prepare_query(query: str, schema: str) -> str:
    return qualify_tables(query.replace("<columns>", BOOKMARK_COLUMNS), schema)


async def lock_user(connection: Any, owner: str) -> None:
    """Wait until no other transaction adds bookmarks for the user, so that the limits are exact."""
    await connection.execute(
        "select pg_catalog.pg_advisory_xact_lock($1, pg_catalog.hashtext($2))", USER_LOCK_KEY, owner
    )


async def insert_bookmark(
    connection: Any,
    schema: str,
    owner: str,
    url: BookmarkUrl,
    category_id: int | None = None,
    import_id: UUID | None = None,
) -> int | None:
    """Insert the minimal row of a bookmark. Return its id, or None if the user has saved the URL before."""
    query = (
        "insert into {}.bookmarks (user_id, url, url_key, category_id, is_image, screenshot_status,"
        " import_id) values ($1, $2, $3, $4, $5, $6, $7)"
        " on conflict (user_id, url_key) do nothing returning id"
    )
    screenshot_status = "skipped" if url.is_image else "pending"
    arguments = (UUID(owner), url.text, url.key, category_id, url.is_image, screenshot_status, import_id)
    bookmark_id: int | None = await connection.fetchval(qualify_tables(query, schema), *arguments)
    return bookmark_id


async def insert_bookmarks(
    connection: Any, schema: str, owner: str, urls: Sequence[BookmarkUrl], import_id: UUID
) -> list[Row]:
    """Insert the rows of an import, without the URLs that the user has saved before. Return the new rows."""
    rows = await connection.fetch(
        qualify_tables(
            "insert into {}.bookmarks (user_id, url, url_key, is_image, screenshot_status, import_id)"
            " select $1, u.url, u.key, u.is_image, case when u.is_image then 'skipped' else 'pending' end, $5"
            " from unnest($2::text[], $3::bytea[], $4::boolean[]) with ordinality"
            " as u (url, key, is_image, n) order by u.n"
            " on conflict (user_id, url_key) do nothing returning id, url, is_image",
            schema,
        ),
        UUID(owner),
        [url.text for url in urls],
        [url.key for url in urls],
        [url.is_image for url in urls],
        import_id,
    )
    return [dict(row) for row in rows]


async def set_message_id(connection: Any, schema: str, bookmark_id: int, message_id: int) -> Row:
    """Store the id of the message of a bookmark, and return its row."""
    row = await connection.fetchrow(
        _prepare_query("update {}.bookmarks set message_id = $2 where id = $1 returning <columns>", schema),
        bookmark_id,
        message_id,
    )
    return dict(row)


async def set_message_ids(connection: Any, schema: str, message_ids: dict[int, int]) -> None:
    """Store the id of the message of each bookmark."""
    await connection.execute(
        qualify_tables(
            "update {}.bookmarks b set message_id = m.message_id"
            " from unnest($1::bigint[], $2::bigint[]) as m (id, message_id) where b.id = m.id",
            schema,
        ),
        list(message_ids),
        list(message_ids.values()),
    )


async def count_bookmarks(connection: Any, schema: str, owner: str) -> tuple[int, int]:
    """Return how many bookmarks a user has, and how many of them are not finished."""
    row = await connection.fetchrow(
        qualify_tables(
            "select (select count(*) from {}.bookmarks where user_id = $1),"
            " (select count(*) from {}.bookmarks where user_id = $1"
            " and status in ('pending', 'processing', 'retrying'))",
            schema,
        ),
        UUID(owner),
    )
    return int(row[0]), int(row[1])


async def find_bookmark(connection: Any, schema: str, bookmark_id: int, owner: str) -> Row | None:
    """Return the row of a bookmark, or None if the user has no bookmark with this id."""
    row = await connection.fetchrow(
        _prepare_query("select <columns> from {}.bookmarks where id = $1 and user_id = $2", schema),
        bookmark_id,
        UUID(owner),
    )
    return dict(row) if row is not None else None


async def find_page_text(connection: Any, schema: str, bookmark_id: int, owner: str) -> str | None:
    """Return the readable text of the page of a bookmark, or None if it has none."""
    query = "select page_text from {}.bookmarks where id = $1 and user_id = $2"
    text: str | None = await connection.fetchval(qualify_tables(query, schema), bookmark_id, UUID(owner))
    return text


async def find_bookmark_by_url(connection: Any, schema: str, owner: str, url: BookmarkUrl) -> Row | None:
    """Return the row of the bookmark that a user has for a URL, or None."""
    row = await connection.fetchrow(
        _prepare_query("select <columns> from {}.bookmarks where user_id = $1 and url_key = $2", schema),
        UUID(owner),
        url.key,
    )
    return dict(row) if row is not None else None


@dataclass(frozen=True, kw_only=True)
class BookmarkFilter:
    """Which bookmarks of a user to list. `before` is the id of the last one on the previous page."""

    text: str = ""
    category_id: int | None = None
    before: int | None = None
    limit: int = 60


async def list_bookmarks(connection: Any, schema: str, owner: str, filters: BookmarkFilter) -> list[Row]:
    """List the bookmarks of a user, newest first. Every word of the text must occur, or begin a word."""
    rows = await connection.fetch(
        _prepare_query(
            "select <columns> from {}.bookmarks where user_id = $1"
            " and ($2::text = '' or search @@ to_tsquery('simple', $2))"
            " and ($3::bigint is null or category_id = $3) and ($4::bigint is null or id < $4)"
            " order by id desc limit $5",
            schema,
        ),
        UUID(owner),
        build_search_query(filters.text),
        filters.category_id,
        filters.before,
        filters.limit,
    )
    return [dict(row) for row in rows]


def build_search_query(text: str) -> str:
    """Convert what a user typed to a text search query. Each word also finds longer words."""
    words: list[str] = re.findall(r"[^\W_]+", text.lower())
    return " & ".join(f"{word}:*" for word in words[:MAX_SEARCH_WORDS])


async def list_changed_bookmarks(
    connection: Any, schema: str, owners: Iterable[str], since: datetime
) -> list[Row]:
    """List the bookmarks of these users that changed since a time, oldest change first."""
    rows = await connection.fetch(
        _prepare_query(
            "select <columns> from {}.bookmarks where user_id = any ($1) and updated_at > $2"
            " order by updated_at limit $3",
            schema,
        ),
        [UUID(owner) for owner in owners],
        since,
        MAX_CHANGED_ROWS,
    )
    return [dict(row) for row in rows]


async def list_categories(connection: Any, schema: str, owner: str) -> list[int]:
    """List the category ids of a user's bookmarks."""
    rows = await connection.fetch(
        qualify_tables(
            "select distinct category_id from {}.bookmarks where user_id = $1 and category_id is not null"
            " order by 1 limit 200",
            schema,
        ),
        UUID(owner),
    )
    return [row[0] for row in rows]


async def delete_bookmark(connection: Any, schema: str, bookmark_id: int, owner: str) -> bool:
    """Delete a bookmark with its files, and archive its message. Return False if it does not exist."""
    row = await connection.fetchrow(
        qualify_tables(
            "delete from {}.bookmarks where id = $1 and user_id = $2 returning message_id", schema
        ),
        bookmark_id,
        UUID(owner),
    )
    if row is None:
        return False
    if row["message_id"] is not None:
        await archive_message(connection, row["message_id"])
        await release_waiting_messages(connection, schema)
    return True


async def count_messages_ahead(connection: Any, schema: str, owner: str) -> int:
    """Count the bookmarks of a user whose message waits or is being processed for the first time."""
    count: int = await connection.fetchval(
        qualify_tables(
            "select count(*) from {}.bookmarks where user_id = $1 and status in ('pending', 'processing')",
            schema,
        ),
        UUID(owner),
    )
    return count


async def delay_messages(connection: Any, message_ids: Sequence[int], ahead: int) -> None:
    """Hide messages that would exceed the user's turn. `ahead` counts the user's messages before them."""
    await connection.execute(
        'update pgmq."q_add-bookmark-url-queue" q set vt = clock_timestamp()'
        " + (m.number + $2 - $3) * $4::interval from unnest($1::bigint[]) with ordinality as m (id, number)"
        " where q.msg_id = m.id and m.number + $2 > $3",
        list(message_ids),
        ahead,
        MAX_VISIBLE_MESSAGES_PER_USER,
        HIDDEN_MESSAGE_INTERVAL,
    )


async def archive_message(connection: Any, message_id: int) -> None:
    """Archive a message by its id, whoever reads it. A message that is gone stays gone."""
    await connection.execute("select pgmq.archive($1::text, $2::bigint)", BOOKMARK_QUEUE, message_id)


async def lock_bookmark_for_retry(connection: Any, schema: str, bookmark_id: int, owner: str) -> Row | None:
    """Lock the row of a bookmark, and return what a retry needs, or None if it does not exist."""
    row = await connection.fetchrow(
        qualify_tables(
            "select id, url, is_image, status, message_id from {}.bookmarks"
            " where id = $1 and user_id = $2 for update",
            schema,
        ),
        bookmark_id,
        UUID(owner),
    )
    return dict(row) if row is not None else None


async def prepare_retry(connection: Any, schema: str, bookmark_id: int, message_id: int) -> None:
    """Set the steps that failed back to pending. Steps that succeeded stay as they are."""
    await connection.execute(
        qualify_tables(
            "update {}.bookmarks set status = 'pending', message_id = $2, screenshot_error = null,"
            " remaining_error = null, screenshot_status = case when screenshot_status"
            " in ('succeeded', 'skipped') then screenshot_status else 'pending' end,"
            " remaining_status = case remaining_status"
            " when 'succeeded' then 'succeeded' else 'pending' end where id = $1",
            schema,
        ),
        bookmark_id,
        message_id,
    )


# Imports


async def add_import(connection: Any, schema: str, owner: str, *, total: int, refused: int) -> UUID:
    """Insert an import and return its id."""
    query = (
        "insert into {}.bookmark_imports (user_id, total, already_saved, refused) values ($1, $2, 0, $3)"
        " returning id"
    )
    import_id: UUID = await connection.fetchval(qualify_tables(query, schema), UUID(owner), total, refused)
    return import_id


async def set_already_saved(connection: Any, schema: str, import_id: UUID, already_saved: int) -> None:
    """Record how many URLs of an import the user had saved before."""
    await connection.execute(
        qualify_tables("update {}.bookmark_imports set already_saved = $2 where id = $1", schema),
        import_id,
        already_saved,
    )


async def find_import_progress(connection: Any, schema: str, import_id: UUID, owner: str) -> Row | None:
    """Return the counts of an import, or None if the user has no import with this id."""
    row = await connection.fetchrow(
        qualify_tables(
            "select i.id, i.total, i.already_saved, i.refused, i.created_at,"
            " count(b.id) filter (where b.status = 'complete') as complete,"
            " count(b.id) filter (where b.status = 'failed') as failed,"
            " count(b.id) filter (where b.status in ('pending', 'processing', 'retrying')) as unfinished"
            " from {}.bookmark_imports i left join {}.bookmarks b on b.import_id = i.id"
            " where i.id = $1 and i.user_id = $2 group by i.id",
            schema,
        ),
        import_id,
        UUID(owner),
    )
    return dict(row) if row is not None else None
