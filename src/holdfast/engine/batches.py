"""List batches for dashboards."""

from __future__ import annotations

from uuid import UUID

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, fetch_objects


async def list_batches(connection: Connection, *, owner: str | None, before: UUID | None) -> list[JsonObject]:
    """List batches, newest first. With `owner`, only the batches of that owner."""
    return await fetch_objects(connection, "select holdfast.list_batches($1, $2)", owner, before)
