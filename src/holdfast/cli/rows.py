"""Read members of JSON rows that may be null."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def get_object_or_empty(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the object under the key `name`, or an empty dictionary if it is missing or null."""
    return row.get(name) or {}


def get_list_or_empty(row: Mapping[str, Any], name: str) -> list[Any]:
    """Return the list under the key `name`, or an empty list if it is missing or null."""
    return row.get(name) or []
