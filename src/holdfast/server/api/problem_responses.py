"""Convert exceptions to error responses (RFC 9457, application/problem+json).

A response names the invalid field and the fix. It never contains SQL, file paths or tracebacks.
"""

from __future__ import annotations

import logging
import math

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast import errors

_INTERNAL_ERROR_TITLE = "Internal server error"
_STATUS_AND_TITLE_BY_ERROR: dict[type[errors.HoldfastError], tuple[int, str]] = {
    errors.InvalidError: (422, "The request is not valid"),
    errors.NotFoundError: (404, "Not found"),
    errors.ConflictError: (409, "Conflict"),
    errors.RefusedError: (403, "Forbidden"),
    errors.LeaseLostError: (409, "The lease is lost"),
    errors.TooManyRequestsError: (429, "Too many requests"),
    errors.QuotaExceededError: (507, "Quota exceeded"),
    errors.TooLargeError: (413, "Too large"),
    errors.GoneError: (410, "Gone"),
    errors.DatabasePermissionError: (403, "The database login of the API lacks a privilege"),
    errors.DatabaseRefusedError: (500, _INTERNAL_ERROR_TITLE),
    errors.DatabaseError: (503, "The database is unavailable"),
    errors.StorageError: (503, "The object store is unavailable"),
    errors.SchemaError: (503, "The database schema has the wrong version"),
}
_log = logging.getLogger("holdfast.server.api")


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of every error response (RFC 9457).

    `title` is the same for every error of a status. `detail` says what is wrong and what to do. `field` is
    the invalid field.

    >>> from holdfast.server import ProblemDetails
    >>> problem = ProblemDetails(title="Conflict", status=409, detail="The note was changed meanwhile.")
    """

    title: str
    status: int
    type: str = ""
    detail: str | None = None
    field: str | None = None


def problem_response(
    status: int,
    title: str,
    detail: str | None = None,
    *,
    field: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """Build an error response (RFC 9457, application/problem+json).

    An endpoint can also raise an error of `holdfast.errors` or Starlette's `HTTPException`. The application
    converts the exception to an error response.

    >>> from holdfast.server import problem_response
    >>> response = problem_response(409, "Conflict", "The note was changed meanwhile.", field="version")
    """
    body = ProblemDetails(type="about:blank", title=title, status=status, detail=detail, field=field or None)
    headers = dict(headers or {})
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(msgspec.json.encode(body), status, headers, media_type="application/problem+json")


async def handle_holdfast_error(_: Request, error: Exception) -> Response:
    """Convert an error of `holdfast.errors` to a response. Log server errors and hide their message."""
    assert isinstance(error, errors.HoldfastError)  # noqa: S101  (registered for this type only)
    for error_type in type(error).__mro__:
        if error_type in _STATUS_AND_TITLE_BY_ERROR:
            status, title = _STATUS_AND_TITLE_BY_ERROR[error_type]
            if isinstance(error, errors.DatabaseError) or (
                status >= 500 and not isinstance(error, errors.QuotaExceededError)
            ):
                _log.error("%s: %s", type(error).__name__, error)
                return problem_response(status, title)
            return problem_response(
                status, title, str(error), field=error.field, headers=_build_retry_after_header(error)
            )
    _log.error("%s: %s", type(error).__name__, error)
    return problem_response(500, _INTERNAL_ERROR_TITLE)


def get_error_status(error: errors.HoldfastError) -> int:
    """Return the HTTP status for an error of `holdfast.errors`."""
    statuses = (
        _STATUS_AND_TITLE_BY_ERROR[kind][0]
        for kind in type(error).__mro__
        if kind in _STATUS_AND_TITLE_BY_ERROR
    )
    return next(statuses, 500)


def _build_retry_after_header(error: errors.HoldfastError) -> dict[str, str]:
    if isinstance(error, errors.TooManyRequestsError):
        return {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    return {}


async def handle_http_exception(_: Request, error: Exception) -> Response:
    """Convert Starlette's `HTTPException` to an error response."""
    assert isinstance(error, HTTPException)  # noqa: S101  (registered for this type only)
    return problem_response(error.status_code, error.detail, headers=dict(error.headers or {}))


async def handle_unexpected_error(error: Exception) -> Response:
    """Log an unexpected error with its traceback and return status 500 without details."""
    _log.error("unexpected %s", type(error).__name__, exc_info=error)
    return problem_response(500, _INTERNAL_ERROR_TITLE)
