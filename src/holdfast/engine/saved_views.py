"""Store, list and delete saved views: named searches on a page of the dashboard."""

from __future__ import annotations

from typing import cast
from uuid import UUID

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, fetch_objects


async def put_saved_view(
    connection: Connection, name: str, page: str, search: str, *, by: str, shared: bool = True
) -> UUID:
    """Create or replace a saved view of the user `by` and return its id."""
    call = "select holdfast.put_saved_view($1, $2, $3, $4, $5)"
    return cast("UUID", await connection.fetchval(call, name, page, search, by, shared))


async def list_saved_views(connection: Connection, by: str, page: str = "jobs") -> list[JsonObject]:
    """List the saved views of the user `by` and the shared views of other users."""
    return await fetch_objects(connection, "select holdfast.list_saved_views($1, $2)", by, page)


async def delete_saved_view(connection: Connection, view_id: UUID, by: str) -> bool:
    """Delete a saved view of the user `by`. Return False if it does not exist."""
    return bool(await connection.fetchval("select holdfast.delete_saved_view($1, $2)", view_id, by))
