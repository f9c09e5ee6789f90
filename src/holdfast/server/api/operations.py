"""What an endpoint says about itself: who may call it, what it takes and answers. OpenAPI is made from this.

    @operation("Cancel a job", tag="jobs", scope="jobs", answer=Cancelled)
    async def cancel(request: Request) -> Response: ...

Nothing can be routed and not guarded: the decorator checks the caller and the rate before the endpoint runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.server.api.identity import Caller, identify
from holdfast.server.api.services import services_of
from holdfast.server.api.tokens import UnauthenticatedError

Endpoint = Callable[[Request], Awaitable[Response]]
Access = Literal["anyone", "user", "service"]


@dataclass(frozen=True)
class Operation:
    summary: str
    tag: str
    access: Access = "user"
    scope: str | None = None
    body: Any = None
    query: Any = None
    answer: Any = None
    status: int = 200
    media: str = "application/json"
    others: Mapping[int, str] = field(default_factory=dict[int, str])
    example: Any = None
    takes: str = "application/json"
    headers: tuple[str, ...] = ()


def operation(summary: str, *, tag: str, **more: Any) -> Callable[[Endpoint], Endpoint]:
    described = Operation(summary, tag, **more)

    def decorate(endpoint: Endpoint) -> Endpoint:
        @wraps(endpoint)
        async def guarded(request: Request) -> Response:
            await admit(request, described.access, described.scope)
            return await endpoint(request)

        guarded.operation = described  # type: ignore[attr-defined]
        return guarded

    return decorate


def described(endpoint: object) -> Operation | None:
    return cast("Operation | None", getattr(endpoint, "operation", None))


async def admit(request: Request, access: Access = "user", scope: str | None = None) -> Caller:
    """Let the caller of a request in, or raise 401, 403 or 429."""
    rates = services_of(request).rates
    try:
        caller = await identify(request)
        if caller.kind == "anonymous" and access != "anyone":
            raise UnauthenticatedError("Sign in first")
    except UnauthenticatedError:
        rates.take(f"stranger:{request.client.host if request.client else '-'}")
        raise
    if caller.kind != "anonymous":
        rates.take(caller.name)
    if access == "service" and caller.kind != "service":
        raise HTTPException(403, "This is for services")
    if scope is not None and caller.kind == "service" and not caller.may(scope):
        raise HTTPException(403, f"This needs a service key with the scope {scope}")
    return caller
