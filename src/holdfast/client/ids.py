"""Parse ids that callers pass as text or as a UUID."""

from __future__ import annotations

from uuid import UUID

from holdfast.errors import InvalidError


def parse_id(value: UUID | str, noun: str) -> UUID:
    """Convert an id to a UUID. The error for an invalid id names the object type `noun`."""
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise InvalidError(f"{value!r} is not the id of a {noun}.", fix="Pass a UUID.", field="id") from None
