"""Store and read the task types that workers register."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.definitions.validation import format_name_suggestion
from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, decode_optional_object, fetch_objects
from holdfast.errors import NotFoundError
from holdfast.model import Json


async def register_task_types(
    connection: Connection, worker: str, types: Sequence[Mapping[str, Json]]
) -> int:
    """Store the task types of a worker and return how many are new or changed.

    Each type has the fields that operations/task_types.sql lists.
    """
    text = msgspec.json.encode(types).decode()
    return int(await connection.fetchval("select holdfast.register_task_types($1, $2)", worker, text))


async def list_task_types(connection: Connection, *, limit: int = 1000) -> list[JsonObject]:
    """List registered task types by name."""
    return await fetch_objects(connection, "select holdfast.list_task_types(null, $1)", limit)


async def get_task_type(connection: Connection, name: str) -> JsonObject | None:
    """Return queue, schema, documentation and version of a registered task type, or None."""
    return decode_optional_object(await connection.fetchval("select holdfast.get_task_type($1)", name))


async def list_task_type_names(connection: Connection) -> list[str]:
    """Return the names of all task types that were registered or submitted."""
    return [row[0] for row in await connection.fetch("select * from holdfast.list_task_type_names()")]


def check_task_type_name(name: str, known: Sequence[str], *, fix: str | None = None) -> None:
    """Raise `NotFoundError` with the most similar name if a name is not one of the known task types."""
    if name not in known:
        raise NotFoundError(f"Task {name!r} does not exist{format_name_suggestion(name, known)}", fix=fix)
