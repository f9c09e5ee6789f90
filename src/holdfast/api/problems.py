"""Exceptions as HTTP answers (RFC 9457, application/problem+json): the only such mapping.

What a stranger reads here names the field and the fix, never SQL, a path or a stack.
"""

from __future__ import annotations

import logging

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast import errors

_STATUS: dict[type[errors.HoldfastError], tuple[int, str]] = {
    errors.InvalidError: (422, "The request is not valid"),
    errors.NotFoundError: (404, "Not found"),
    errors.ConflictError: (409, "Conflict"),
    errors.RefusedError: (403, "Refused"),
    errors.LeaseLostError: (409, "The lease is lost"),
    errors.DatabaseError: (503, "The database is away"),
    errors.SchemaError: (503, "The schema does not fit"),
}
_log = logging.getLogger("holdfast.api")


def problem(status: int, title: str, detail: str | None = None, *, field: str | None = None) -> Response:
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, "field": field}
    text = msgspec.json.encode({name: value for name, value in body.items() if value is not None})
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return Response(text, status, headers, media_type="application/problem+json")


async def on_holdfast_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, errors.HoldfastError)  # noqa: S101  (registered for this type only)
    for kind in type(error).__mro__:
        if kind in _STATUS:
            status, title = _STATUS[kind]
            if status >= 500:
                _log.error("%s: %s", type(error).__name__, error)
                return problem(status, title)
            return problem(status, title, str(error), field=error.field)
    _log.error("%s: %s", type(error).__name__, error)
    return problem(500, "Something went wrong on our side")


async def on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    return problem(error.status_code, error.detail)


async def on_surprise(_: Request, error: Exception) -> Response:
    _log.error("unexpected %s", type(error).__name__, exc_info=error)
    return problem(500, "Something went wrong on our side")
