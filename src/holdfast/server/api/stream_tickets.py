"""Authenticate the viewers of event streams by token, key, ticket or cookie.

A browser's EventSource cannot send headers, and a token in a URL ends up in logs. A page therefore requests a
ticket with its token (`POST /api/jobs/{id}/ticket`) and opens the stream with `?ticket=`. A ticket works
once. The response sets a cookie for this one stream, which scripts of the page cannot read. The browser sends
the cookie when it reconnects after a lost connection.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from starlette.requests import Request

from holdfast.engine import access
from holdfast.engine.access import hash_secret
from holdfast.engine.connection import Connection
from holdfast.errors import DatabaseError
from holdfast.model import Json
from holdfast.server.api import job_views
from holdfast.server.api.identity import (
    ANONYMOUS_CALLER,
    CALLER_ASGI_SCOPE_KEY,
    Caller,
    identify_caller,
    transaction_as_caller,
)
from holdfast.server.api.services import get_services
from holdfast.server.api.token_verification import UnauthenticatedError

STREAM_TICKET_LIFETIME = timedelta(seconds=60)
STREAM_COOKIE_LIFETIME = timedelta(hours=1)
STREAM_COOKIE_NAME = "holdfast_stream"
MAX_STREAM_TICKET_CHARS = 200
NO_EXPIRY = float("inf")


@dataclass
class StreamViewer:
    """The viewer of an event stream: a user or a service, and the time when the access ends.

    `headers` must be sent with the response. `expires_at` is a time of `time.monotonic()`.

    >>> from uuid import UUID
    >>> from starlette.requests import Request
    >>> from holdfast.server import StreamViewer, require_stream_viewer
    >>> async def may_continue(request: Request, job_id: UUID) -> bool:
    ...     viewer: StreamViewer = await require_stream_viewer(request, job_id)
    ...     return await viewer.has_access()
    """

    request: Request
    caller: Caller
    expires_at: float = NO_EXPIRY
    headers: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def owner(self) -> str | None:
        """Id of the user who watches the stream, or None for a service."""
        return self.caller.owner

    @property
    def name(self) -> str:
        """Name by which the open streams of the viewer are counted."""
        return self.caller.name

    @property
    def is_service(self) -> bool:
        return self.caller.kind == "service"

    def redact_job(self, job: dict[str, Json]) -> dict[str, Json]:
        """Return the job without the parts that the viewer may not see."""
        return job_views.redact_job(job, self.caller)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        """Open a transaction with the viewer's rights."""
        async with transaction_as_caller(self.request) as connection:
            yield connection

    async def has_access(self) -> bool:
        """Return whether the viewer's token has not expired and the viewer's key is not revoked."""
        if time.monotonic() >= self.expires_at:
            return False
        if self.caller.kind != "service" or self.caller.id in (None, "settings"):
            return True
        try:
            return await get_services(self.request).key_verifier.is_key_active(self.caller.id)
        except DatabaseError:
            return True  # the key was valid before; it is checked again when the database is back


async def require_stream_viewer(request: Request, job_id: UUID) -> StreamViewer:
    """Return the viewer of an event stream: the caller, or the holder of a ticket or stream cookie.

    Raise `UnauthenticatedError` (401) if the request has none of them. Declare the endpoint with
    `access="anyone"`, so that requests with a ticket reach it. The function does not check whether the viewer
    may see the job: read it in `viewer.transaction()`.

    >>> from uuid import UUID
    >>> from starlette.requests import Request
    >>> from holdfast.server import require_stream_viewer
    >>> async def name_viewer(request: Request, job_id: UUID) -> str | None:
    ...     return (await require_stream_viewer(request, job_id)).owner
    """
    caller = await identify_caller(request)
    if caller.kind != "anonymous":
        return StreamViewer(request, caller, _get_token_expiry(caller))
    ticket = request.query_params.get("ticket")
    cookie = request.cookies.get(STREAM_COOKIE_NAME)
    if cookie is not None and len(cookie) < MAX_STREAM_TICKET_CHARS:
        stored = await _find_cookie_ticket(request, cookie, job_id)
        if stored is not None:
            return _create_viewer_from_ticket(request, stored)
    if not ticket or len(ticket) > MAX_STREAM_TICKET_CHARS:
        raise UnauthenticatedError(
            "The request has no valid credential. Send a bearer token or the query parameter `ticket`."
        )
    cookie = secrets.token_urlsafe(32)
    async with get_services(request).database.transaction() as connection:
        redeemed = await access.redeem_stream_ticket(
            connection, hash_secret(ticket), job_id, hash_secret(cookie), STREAM_COOKIE_LIFETIME
        )
    if redeemed is None:
        raise UnauthenticatedError("The ticket was used before or has expired")
    viewer = _create_viewer_from_ticket(request, redeemed)
    viewer.headers["Set-Cookie"] = _build_cookie_header(request, cookie)
    return viewer


async def _find_cookie_ticket(request: Request, cookie: str, job_id: UUID) -> access.StreamTicket | None:
    async with get_services(request).database.connection() as connection:
        return await access.verify_stream_pass(connection, hash_secret(cookie), job_id)


def _create_viewer_from_ticket(request: Request, ticket: access.StreamTicket) -> StreamViewer:
    """Create the viewer for a ticket. The rest of the request runs as the caller who requested the ticket."""
    if ticket.owner is None:
        caller = Caller("service", None, frozenset({"jobs"}))
    else:
        caller = Caller("user", ticket.owner, claims={"sub": ticket.owner, "role": "authenticated"})
    request.scope[CALLER_ASGI_SCOPE_KEY] = caller
    remaining_s = (ticket.expires_at - datetime.now(UTC)).total_seconds()
    return StreamViewer(request, caller, time.monotonic() + remaining_s)


def _build_cookie_header(request: Request, value: str) -> str:
    secure = "; Secure" if request.url.scheme == "https" else ""
    max_age_s = int(STREAM_COOKIE_LIFETIME.total_seconds())
    return (
        f"{STREAM_COOKIE_NAME}={value}; Path={request.url.path}; Max-Age={max_age_s}; "
        f"HttpOnly; SameSite=Strict{secure}"
    )


def _get_token_expiry(caller: Caller) -> float:
    expires_at = caller.claims.get("exp")
    return NO_EXPIRY if expires_at is None else time.monotonic() + float(expires_at) - time.time()


async def issue_stream_ticket(request: Request, job_id: UUID) -> str:
    """Create a ticket that opens the event stream of a job or batch once, within 60 seconds.

    Check first that the caller may see the job.

    >>> from uuid import UUID
    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import issue_stream_ticket, json_response, require_user
    >>> async def create_ticket(request: Request, job_id: UUID) -> Response:
    ...     await require_user(request)
    ...     return json_response({"ticket": await issue_stream_ticket(request, job_id)}, 201)
    """
    caller = await identify_caller(request)
    assert caller is not ANONYMOUS_CALLER  # noqa: S101  (the endpoint is not open to anonymous callers)
    ticket = secrets.token_urlsafe(32)
    async with transaction_as_caller(request, as_service=True) as connection:
        await access.store_stream_ticket(
            connection, hash_secret(ticket), job_id, caller.owner, STREAM_TICKET_LIFETIME
        )
    return ticket
