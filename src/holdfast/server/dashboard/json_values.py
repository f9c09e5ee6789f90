"""Read JSON values whose shape is already known, with types for type checkers."""

from __future__ import annotations

from typing import Any


def as_object(value: Any) -> dict[str, Any]:
    """Return a JSON object, or an empty one for null."""
    result: dict[str, Any] = value or {}
    return result


def as_list(value: Any) -> list[Any]:
    """Return a JSON array as a list, or an empty list for null."""
    result: list[Any] = value or []
    return result
