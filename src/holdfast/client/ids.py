"""Ids as callers give them: as text or as a UUID."""

from __future__ import annotations

from uuid import UUID

from holdfast.errors import InvalidError


def uuid_of(given: UUID | str, what: str) -> UUID:
    try:
        return given if isinstance(given, UUID) else UUID(given)
    except ValueError:
        raise InvalidError(f"{given!r} is not the id of a {what}.", field="id") from None
