"""JSON values under a name that type checkers know, where the shape is known already."""

from __future__ import annotations

from typing import Any


def mapped(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = value or {}
    return found


def listed(value: Any) -> list[Any]:
    found: list[Any] = value or []
    return found
