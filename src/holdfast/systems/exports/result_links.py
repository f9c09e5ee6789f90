"""Create the links in `resultUrl`: signed, valid for an hour, and usable without a token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from starlette.requests import Request

from holdfast.server import get_client
from holdfast.systems.exports import queries
from holdfast.systems.owned_files import find_visible_files
from holdfast.systems.request_context import get_systems_schema, sanitize_file_name

RESULT_LINK_LIFETIME: Final = timedelta(hours=1)
# Whoever has such a link can read the file, so no cache may keep the response.
NO_STORE_HEADERS: Final = {"Cache-Control": "private, no-store"}


async def create_result_links(
    request: Request, owner: str, entries: Mapping[UUID, queries.HistoryEntry]
) -> dict[UUID, str]:
    """Create the links of entries of the export history, by id. Entries without a file have none."""
    client = get_client(request)
    kept = {entry_id: entry for entry_id, entry in entries.items() if not entry.expired}
    files = await find_visible_files(client, (entry.artifact_id for entry in kept.values()))
    links: dict[UUID, str] = {}
    for entry_id, entry in kept.items():
        file = files.get(entry.artifact_id) if entry.artifact_id else None
        # Users can insert rows that refer to any file, so the owner of the file itself is checked.
        if file is not None and file.owner == owner:
            named = msgspec.structs.replace(file, name=sanitize_file_name(entry.file_name))
            links[entry_id] = await client.files.create_download_link(named, RESULT_LINK_LIFETIME)
    return links


async def find_result_links(request: Request, owner: str, export_ids: Iterable[UUID]) -> dict[UUID, str]:
    """Create the links of completed exports of a user, by id."""
    async with get_client(request).connection() as connection:
        entries = await queries.list_history_entries(
            connection, get_systems_schema(request), list(export_ids), owner
        )
    return await create_result_links(request, owner, entries)


async def find_result_link(request: Request, owner: str, export: Mapping[str, Any]) -> str | None:
    """Return the link of an export (with `id` and `status`), or None if it has no file."""
    if export["status"] != "completed":
        return None
    export_id = UUID(str(export["id"]))
    return (await find_result_links(request, owner, [export_id])).get(export_id)
