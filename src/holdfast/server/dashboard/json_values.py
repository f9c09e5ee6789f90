"""Read JSON values whose shape is already known, with types for type checkers."""

from __future__ import annotations

from typing import Any


def object_or_empty(value: Any) -> dict[str, Any]:
    """Return a JSON object as a dictionary, or an empty dictionary for null."""
    result: dict[str, Any] = value or {}
    return result


def list_or_empty(value: Any) -> list[Any]:
    """Return a JSON array as a list, or an empty list for null."""
    result: list[Any] = value or []
    return result
