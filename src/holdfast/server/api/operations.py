"""Declare endpoints: their callers, request types and response types.

    @api_operation("Cancel a job", tag="jobs", scope="jobs", response=JobCancellation)
    async def cancel_job(request: Request) -> Response: ...

The decorator checks the caller and the rate limit before the endpoint runs. The OpenAPI document is
generated from the declarations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal, TypeAlias, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.server.api.identity import Caller, identify_caller
from holdfast.server.api.services import get_services
from holdfast.server.api.token_verification import UnauthenticatedError

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
"""A coroutine function that takes a Starlette request and returns a response."""
AccessLevel: TypeAlias = Literal["public", "anyone", "user", "service"]
_RATE_LIMIT_ASGI_SCOPE_KEY = "holdfast.rate_limit_counted"


@dataclass(frozen=True)
class ApiOperation:
    """Declaration of an endpoint: its access, scope, request types and response types."""

    summary: str
    tag: str
    access: AccessLevel = "user"
    scope: str | None = None
    body: Any = None
    query: Any = None
    response: Any = None
    status: int = 200
    media_type: str = "application/json"
    other_responses: Mapping[int, str] = field(default_factory=dict[int, str])
    example: Any = None
    request_media_type: str = "application/json"
    request_headers: tuple[str, ...] = ()


def api_operation(summary: str, *, tag: str, **fields: Any) -> Callable[[Endpoint], Endpoint]:
    """Declare an endpoint: check its caller and describe it in the OpenAPI document.

    `summary` and `tag` are shown in the OpenAPI document. The other keyword arguments are optional:

    - `access`: "user" (the default: a user or a service), "service", "anyone" (a credential is optional, but
      an invalid one gets 401) or "public" (credentials are ignored).
    - `scope`: the scope that a service key needs.
    - `body`, `query`, `response`: the types of the request body, the query parameters and the response body.
    - `status`, `media_type`: the status and the media type of a successful response (200, JSON).
    - `other_responses`: descriptions of other responses, by status.
    - `request_media_type`, `request_headers`, `example`: the media type, headers and an example of the
      request.

    A caller without access gets 401 or 403, and a caller above the rate limit gets 429. The endpoint does not
    run in these cases.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from starlette.routing import Route
    >>> from holdfast.server import api_operation, identify_caller, json_response
    >>> @api_operation("Show the caller", tag="account", response=dict[str, str])
    ... async def show_caller(request: Request) -> Response:
    ...     caller = await identify_caller(request)
    ...     return json_response({"kind": caller.kind})
    >>> routes = [Route("/account", show_caller)]  # create_app(routes=routes)
    """
    operation = ApiOperation(summary, tag, **fields)

    def declare_endpoint(endpoint: Endpoint) -> Endpoint:
        @wraps(endpoint)
        async def call_if_admitted(request: Request) -> Response:
            if operation.access != "public":
                await admit_caller(request, operation.access, operation.scope)
            return await endpoint(request)

        call_if_admitted.operation = operation  # type: ignore[attr-defined]
        return call_if_admitted

    return declare_endpoint


def find_declared_operation(endpoint: object) -> ApiOperation | None:
    """Return the declaration of an endpoint, or None if `api_operation` did not declare it."""
    return cast("ApiOperation | None", getattr(endpoint, "operation", None))


async def admit_caller(request: Request, access: AccessLevel = "user", scope: str | None = None) -> Caller:
    """Return the caller of a request. Raise 401, 403 or 429 if the caller may not use the endpoint."""
    try:
        caller = await identify_caller(request)
        if caller.kind == "anonymous" and access != "anyone":
            raise UnauthenticatedError("The request has no valid credential. Send a bearer token.")
    except UnauthenticatedError:
        count_unauthenticated_request(request)
        raise
    if caller.kind != "anonymous" and _RATE_LIMIT_ASGI_SCOPE_KEY not in request.scope:
        # One endpoint may pass the request on to another one. The request still counts once.
        request.scope[_RATE_LIMIT_ASGI_SCOPE_KEY] = True
        get_services(request).rate_limiter.count_request(caller.name)
    if access == "service" and caller.kind != "service":
        raise HTTPException(403, "Only services may call this endpoint")
    if scope is not None and caller.kind == "service" and not caller.has_scope(scope):
        raise HTTPException(403, f"This endpoint needs a service key with the scope {scope}")
    return caller


def count_unauthenticated_request(request: Request) -> None:
    """Count a request without a valid credential against the rate limit of its network address."""
    address = request.client.host if request.client else "-"
    get_services(request).rate_limiter.count_request(f"unauthenticated:{address}")
