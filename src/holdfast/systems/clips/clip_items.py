"""The clips of users as the page "My jobs and files" shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from holdfast.systems.tables import qualify_tables
from holdfast.systems.user_items import ItemStatus, UserItem, build_user_items

ITEM_STATUS_BY_STATUS: Final[dict[str, ItemStatus]] = {
    "pending": "queued",
    "scraping": "running",
    "enriching": "running",
    "done": "succeeded",
    "failed": "failed",
}
_LIST_NEWEST: Final = (
    "select c.id, c.user_id, coalesce(c.title, c.video_url) as title, c.processing_status as status,"
    " c.processing_error as error, c.percent, c.created_at"
    " from unnest($1::uuid[]) as o (id) cross join lateral (select * from {}.clipnest_videos c"
    " where c.user_id = o.id order by c.created_at desc, c.id desc limit $2) as c"
)


async def list_clip_items(connection: Any, schema: str, owners: Sequence[str], limit: int) -> list[UserItem]:
    """List the newest clips of users."""
    rows = await connection.fetch(
        qualify_tables(_LIST_NEWEST, schema), [UUID(owner) for owner in owners], limit
    )
    return build_user_items(rows, ITEM_STATUS_BY_STATUS, "/api/v1/clips")
