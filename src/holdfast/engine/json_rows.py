"""Decode the JSON text that SQL functions return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from holdfast.engine.connection import Connection
from holdfast.model import Json

JsonObject = dict[str, Json]

_decoder = msgspec.json.Decoder()


def encode_json(value: Mapping[str, Json]) -> str:
    """Return `value` as JSON text, the form in which a jsonb parameter is passed."""
    return msgspec.json.encode(value).decode()


def decode_object(text: str) -> JsonObject:
    """Decode a JSON object."""
    return cast("dict[str, Any]", _decoder.decode(text))


def decode_optional_object(text: str | None) -> JsonObject | None:
    """Decode a JSON object, or return None for SQL null."""
    return None if text is None else decode_object(text)


async def fetch_objects(connection: Connection, statement: str, *arguments: Any) -> list[JsonObject]:
    """Run a statement whose first column is a JSON object and return one object per row."""
    return [decode_object(row[0]) for row in await connection.fetch(statement, *arguments)]
