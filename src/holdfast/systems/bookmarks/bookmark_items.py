"""The bookmarks of users as the page "My jobs and files" shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from holdfast.systems.tables import qualify_tables
from holdfast.systems.user_items import ItemStatus, UserItem, build_user_items

ITEM_STATUS_BY_STATUS: Final[dict[str, ItemStatus]] = {
    "pending": "queued",
    "processing": "running",
    "retrying": "queued",
    "complete": "succeeded",
    "failed": "failed",
}
_LIST_NEWEST: Final = (
    "select b.id, b.user_id, coalesce(b.title, b.url) as title, b.status, b.created_at,"
    " null::float8 as percent, coalesce(b.screenshot_error, b.remaining_error) as error"
    " from unnest($1::uuid[]) as o (id) cross join lateral (select * from {}.bookmarks b"
    " where b.user_id = o.id order by b.id desc limit $2) as b"
)


async def list_bookmark_items(
    connection: Any, schema: str, owners: Sequence[str], limit: int
) -> list[UserItem]:
    """List the newest bookmarks of users."""
    rows = await connection.fetch(
        qualify_tables(_LIST_NEWEST, schema), [UUID(owner) for owner in owners], limit
    )
    return build_user_items(rows, ITEM_STATUS_BY_STATUS, "/api/v1/bookmarks")
