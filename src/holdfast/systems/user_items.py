"""Work of users that systems keep as rows of their own and not as jobs: bookmarks and clips are messages.

A system passes a function that lists such rows to `create_page_routes(..., list_items=...)`. The page of a
user's jobs and files then shows them beside the jobs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

ItemStatus = Literal["queued", "running", "succeeded", "failed"]


class UserItem(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Something that a system does for a user, as the user reads it.

    `owner` is the id of the user. `retry_path` answers to POST and `delete_path` to DELETE; leave them out
    if that is not possible. `page` is filled in with the path of the system's page.

    >>> from datetime import UTC, datetime
    >>> from holdfast.systems import UserItem
    >>> item = UserItem(owner="b7e2...", id="17", title="Note", status="queued", created_at=datetime.now(UTC))
    """

    owner: str
    id: str
    title: str
    status: ItemStatus
    created_at: datetime
    percent: float | None = None
    error: str | None = None
    retry_path: str | None = None
    delete_path: str | None = None
    page: str | None = None


ItemLister: TypeAlias = Callable[[Any, str, Sequence[str], int], Awaitable[Sequence[UserItem]]]
"""A function `(connection, schema, owners, limit)` that lists the newest items of each owner."""


def build_user_items(
    rows: Iterable[Mapping[str, Any]], status_by_name: Mapping[str, ItemStatus], api_path: str
) -> list[UserItem]:
    """Build items from rows with `id`, `user_id`, `title`, `status`, `error`, `percent` and `created_at`.

    `status_by_name` translates the statuses of the system; rows with another status wait. A row is deleted at
    `api_path/{id}`, and a failed one is retried at `api_path/{id}/retry`.
    """
    items: list[UserItem] = []
    for row in rows:
        status, path = status_by_name.get(row["status"], "queued"), f"{api_path}/{row['id']}"
        item = UserItem(
            owner=str(row["user_id"]),
            id=str(row["id"]),
            title=row["title"],
            status=status,
            created_at=row["created_at"],
            percent=row["percent"],
            error=None if status == "succeeded" else row["error"],
            retry_path=f"{path}/retry" if status == "failed" else None,
            delete_path=path,
        )
        items.append(item)
    return items
