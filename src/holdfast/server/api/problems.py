"""Exceptions as HTTP answers (RFC 9457, application/problem+json): the only such mapping.

What a stranger reads here names the field and the fix, never SQL, a path or a stack.
"""

from __future__ import annotations

import logging
import math

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
    errors.TooManyError: (429, "Too many"),
    errors.QuotaError: (507, "No room left"),
    errors.TooLargeError: (413, "Too large"),
    errors.GoneError: (410, "Gone"),
    errors.DatabaseRightsError: (403, "The database does not let the API do this"),
    errors.DatabaseError: (503, "The database is away"),
    errors.StorageError: (503, "The store of files is away"),
    errors.SchemaError: (503, "The schema does not fit"),
}
_log = logging.getLogger("holdfast.server.api")


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every error answer looks like."""

    title: str
    status: int
    type: str = ""
    detail: str | None = None
    field: str | None = None


def problem(
    status: int,
    title: str,
    detail: str | None = None,
    *,
    field: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    body = Problem(type="about:blank", title=title, status=status, detail=detail, field=field or None)
    given = dict(headers or {})
    if status == 401:
        given["WWW-Authenticate"] = "Bearer"
    return Response(msgspec.json.encode(body), status, given, media_type="application/problem+json")


async def on_holdfast_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, errors.HoldfastError)  # noqa: S101  (registered for this type only)
    for kind in type(error).__mro__:
        if kind in _STATUS:
            status, title = _STATUS[kind]
            if isinstance(error, errors.DatabaseError) or (
                status >= 500 and not isinstance(error, errors.QuotaError)
            ):
                _log.error("%s: %s", type(error).__name__, error)
                return problem(status, title)
            return problem(status, title, str(error), field=error.field, headers=_headers(error))
    _log.error("%s: %s", type(error).__name__, error)
    return problem(500, "Something went wrong on our side")


def status_of(error: errors.HoldfastError) -> int:
    return next((_STATUS[kind][0] for kind in type(error).__mro__ if kind in _STATUS), 500)


def _headers(error: errors.HoldfastError) -> dict[str, str]:
    if isinstance(error, errors.TooManyError):
        return {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    return {}


async def on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    return problem(error.status_code, error.detail, headers=dict(error.headers or {}))


async def on_surprise(error: Exception) -> Response:
    _log.error("unexpected %s", type(error).__name__, exc_info=error)
    return problem(500, "Something went wrong on our side")
