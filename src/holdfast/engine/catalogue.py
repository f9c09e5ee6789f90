"""The catalogue of what workers can run, and the check of arguments against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.engine.connection import Connection
from holdfast.model import Json

_json = msgspec.json.Decoder()


async def register_types(connection: Connection, worker: str, types: Sequence[Mapping[str, Json]]) -> int:
    """How many were new or different. The keys are those that catalogue.sql lists."""
    text = msgspec.json.encode(types).decode()
    return int(await connection.fetchval("select holdfast.register_types($1, $2)", worker, text))


async def list_types(connection: Connection, *, limit: int = 1000) -> list[dict[str, Json]]:
    rows = await connection.fetch("select holdfast.list_types(null, $1) as type", limit)
    return [cast("dict[str, Any]", _json.decode(row["type"])) for row in rows]


async def check_args(connection: Connection, type_name: str, args: Mapping[str, Json]) -> None:
    """InvalidError whose field is the path of what does not fit; a type nobody described takes anything."""
    text = msgspec.json.encode(args).decode()
    await connection.execute("select holdfast.check_args($1, $2)", type_name, text)
