"""Read stored JSON values. A value of another shape counts as empty, so that it cannot break a page."""

from __future__ import annotations

from typing import Any, cast


def object_or_empty(value: Any) -> dict[str, Any]:
    """Return a JSON object as a dictionary, or an empty dictionary for null and other values."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def list_or_empty(value: Any) -> list[Any]:
    """Return a JSON array as a list, or an empty list for null and other values."""
    return cast("list[Any]", value) if isinstance(value, list) else []  # type: ignore[redundant-cast]
