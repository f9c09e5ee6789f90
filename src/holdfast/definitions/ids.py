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


SHARD_BYTE = 9  # of the 16 bytes of an id


def shard_of(id: UUID | str) -> int:  # noqa: A002
    """Return the number of the shard that created a job, a task or a batch. It is 0 without shards.

    >>> from holdfast import shard_of
    >>> shard_of("0199c3d5-7a3c-7000-8003-4d2f6f1b7c55")
    3
    """
    return parse_id(id, "job").bytes[SHARD_BYTE]
