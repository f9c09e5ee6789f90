"""Erase everything of an owner, in bounded steps that can be repeated."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection

MAX_ROWS_PER_STEP = 1000
MAX_OBJECTS_PER_STEP = 1000


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """A request to erase everything of an owner. `deleted` counts rows by kind or table.

    `finished_at` is None while something is left: call `client.erase_owner` again, or let a worker finish it.
    `wait_s` is how long work that was interrupted may still write.

    >>> from holdfast import Client, Erasure
    >>> client = Client()
    >>> async def main() -> None:
    ...     erasure: Erasure = await client.erase_owner("3f2504e0-4f89-41d3-9a0c-0305e82c3301")
    ...     print(erasure.finished_at, erasure.deleted)
    """

    id: UUID
    owner: str
    requested_by: str
    requested_at: datetime
    finished_at: datetime | None
    deleted: dict[str, int]
    wait_s: float = 0
    more: bool = False


_erasure_decoder = msgspec.json.Decoder(Erasure)


async def start_erasure(connection: Connection, owner: str, by: str | None = None) -> Erasure:
    """Request the erasure of an owner. Return the erasure that is not finished, if there is one."""
    return _erasure_decoder.decode(
        await connection.fetchval("select holdfast.start_erasure($1, $2)", owner, by)
    )


async def find_erasure(connection: Connection, owner: str) -> Erasure | None:
    """Return the newest erasure of an owner, or None."""
    text = await connection.fetchval("select holdfast.get_erasure($1)", owner)
    return None if text is None else _erasure_decoder.decode(text)


async def advance_erasure(connection: Connection, owner: str) -> Erasure:
    """Delete the next rows of an owner whose erasure was requested."""
    return _erasure_decoder.decode(
        await connection.fetchval("select holdfast.advance_erasure($1, $2)", owner, MAX_ROWS_PER_STEP)
    )


async def list_erasure_objects(connection: Connection, owner: str) -> list[tuple[UUID, str]]:
    """List the id and the key of objects of an owner that are to be deleted from the store."""
    rows = await connection.fetch(
        "select id, key from holdfast.list_erasure_objects($1, $2)", owner, MAX_OBJECTS_PER_STEP
    )
    return [(row["id"], row["key"]) for row in rows]
