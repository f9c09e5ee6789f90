"""List, read and ignore error groups: failed attempts with the same cause."""

from __future__ import annotations

from datetime import datetime

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, decode_optional_object, fetch_objects


async def list_error_groups(
    connection: Connection,
    *,
    since: datetime | None = None,
    owner: str | None = None,
    ignored: bool = False,
    limit: int = 100,
) -> list[JsonObject]:
    """List error groups since a time (default: 24 hours ago), the most recent first.

    With `ignored`, the list includes groups that somebody marked as ignored.
    """
    call = "select holdfast.list_error_groups($1, $2, $3, $4)"
    return await fetch_objects(connection, call, since, owner, ignored, limit)


async def get_error_group(
    connection: Connection,
    cause: str,
    *,
    since: datetime | None = None,
    owner: str | None = None,
    limit: int = 20,
) -> JsonObject | None:
    """Return an error group with its newest attempts, or None if it has no attempts since `since`."""
    call = "select holdfast.get_error_group($1, $2, $3, $4)"
    return decode_optional_object(await connection.fetchval(call, cause, since, owner, limit))


async def ignore_error_group(
    connection: Connection,
    cause: str,
    *,
    until: datetime | None,
    by: str,
    reason: str | None = None,
    link: str | None = None,
) -> None:
    """Ignore an error group until a time. None stops ignoring it."""
    call = "select holdfast.ignore_error_group($1, $2, $3, $4, $5)"
    await connection.execute(call, cause, until, by, reason, link)
