"""Create links to the files that rows of a system refer to, for many rows with one query."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast import Artifact, Client

FILE_LINK_LIFETIME: Final = timedelta(hours=1)


async def find_visible_files(client: Client, file_ids: Iterable[UUID | None]) -> dict[UUID, Artifact]:
    """Return the files that are still visible, by id. None is left out.

    >>> from uuid import UUID
    >>> from holdfast import Client
    >>> from holdfast.systems import create_owned_link, find_visible_files
    >>> async def list_links(client: Client, owner: UUID, file_ids: list[UUID]) -> list[str | None]:
    ...     files = await find_visible_files(client, file_ids)
    ...     return [await create_owned_link(client, file, owner) for file in files.values()]
    """
    ids = [file_id for file_id in file_ids if file_id is not None]
    if not ids:
        return {}
    async with client.connection() as connection:
        rows = await connection.fetch(
            "select holdfast.get_artifact(f)::text as file from unnest($1::uuid[]) as f", ids
        )
    files: dict[UUID, Artifact] = {}
    for row in rows:
        value: Any = msgspec.json.decode(row["file"]) if row["file"] is not None else None
        if value is not None and value["status"] == "visible":
            file = msgspec.convert(value, Artifact)
            files[file.id] = file
    return files


async def create_owned_link(client: Client, file: Artifact | None, owner: UUID) -> str | None:
    """Return a link to a file that works for an hour, or None if another user owns the file.

    Users can insert rows that refer to any file, so the owner of the file itself is checked.
    """
    if file is None or file.owner != str(owner):
        return None
    return await client.files.create_download_link(file, FILE_LINK_LIFETIME, inline=True)
