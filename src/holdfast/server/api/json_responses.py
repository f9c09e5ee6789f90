"""Build JSON responses."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.responses import Response

from holdfast.errors import NotFoundError

T = TypeVar("T")
_encoder = msgspec.json.Encoder()


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response. `value` is anything that msgspec encodes: structs, dicts, UUIDs, datetimes.

    >>> from uuid import uuid4
    >>> from holdfast.server import json_response
    >>> response = json_response({"id": uuid4()}, 201, {"Location": "/notes/1"})
    """
    return Response(_encoder.encode(value), status, headers, media_type="application/json")


def ensure_exists(value: T | None, name: str) -> T:
    """Return `value`, or raise `NotFoundError` (404) if it is None.

    The message is the same for an object that does not exist and for one that the caller may not see.

    >>> from holdfast.server import ensure_exists
    >>> row = ensure_exists({"id": 1}, "Note 1")  # None raises: Note 1 does not exist.
    """
    if value is None:
        raise NotFoundError(f"{name} does not exist.")
    return value
