"""Who may watch a stream: the caller of the request, or whoever shows a ticket.

A browser's EventSource cannot send headers, and a token in an address ends up in logs. So a page asks for a
ticket with its token (`POST /api/jobs/{id}/ticket`), opens the stream with `?ticket=`, and the ticket is
used up. The answer sets a pass: a cookie for this one stream that page scripts cannot read, with which the
browser comes back by itself after a cut.
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
from holdfast.engine.connection import Connection
from holdfast.errors import DatabaseError
from holdfast.model import Json
from holdfast.server.api import views
from holdfast.server.api.identity import ANONYMOUS, Caller, acting, identify
from holdfast.server.api.keyring import digest
from holdfast.server.api.services import services_of
from holdfast.server.api.tokens import UnauthenticatedError

TICKET_LIFE = timedelta(seconds=60)
PASS_LIFE = timedelta(hours=1)
PASS = "holdfast_stream"  # noqa: S105  (the name of the cookie)
NEVER = float("inf")


@dataclass
class Viewer:
    """Whoever watches: as which user, or as a service, and until when."""

    request: Request
    caller: Caller
    until: float = NEVER
    headers: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def owner(self) -> str | None:
        return self.caller.owner

    @property
    def name(self) -> str:
        return self.caller.name

    @property
    def sees_all(self) -> bool:
        return self.caller.kind == "service"

    def view(self, job: dict[str, Json]) -> dict[str, Json]:
        return views.job_view(job, self.caller)

    @asynccontextmanager
    async def acting(self) -> AsyncGenerator[Connection]:
        async with acting(self.request) as connection:
            yield connection

    async def valid(self) -> bool:
        """Whether the stream may go on: the token has not expired, the key was not revoked."""
        if time.monotonic() >= self.until:
            return False
        if self.caller.kind != "service" or self.caller.id in (None, "settings"):
            return True
        try:
            return await services_of(self.request).keys.alive(self.caller.id)
        except DatabaseError:
            return True  # it was, a moment ago; asked again when the database is back


async def viewer_of(request: Request, job_id: UUID) -> Viewer:
    caller = await identify(request)
    if caller.kind != "anonymous":
        return Viewer(request, caller, _until(caller))
    ticket = request.query_params.get("ticket")
    cookie = request.cookies.get(PASS)
    if cookie is not None and len(cookie) < 200:
        found = await _check(request, cookie, job_id)
        if found is not None:
            return _holder(request, found)
    if not ticket or len(ticket) > 200:
        raise UnauthenticatedError("Sign in first")
    given = secrets.token_urlsafe(32)
    async with services_of(request).database.transaction() as connection:
        redeemed = await access.redeem_ticket(connection, digest(ticket), job_id, digest(given), PASS_LIFE)
    if redeemed is None:
        raise UnauthenticatedError("The ticket is used or expired")
    viewer = _holder(request, redeemed)
    viewer.headers["Set-Cookie"] = _cookie(request, given)
    return viewer


async def _check(request: Request, cookie: str, job_id: UUID) -> access.Ticket | None:
    async with services_of(request).database.connection() as connection:
        return await access.check_pass(connection, digest(cookie), job_id)


def _holder(request: Request, ticket: access.Ticket) -> Viewer:
    """From here on the request is the one who asked for the ticket."""
    if ticket.owner is None:
        caller = Caller("service", None, frozenset({"jobs"}))
    else:
        caller = Caller("user", ticket.owner, claims={"sub": ticket.owner, "role": "authenticated"})
    request.scope["holdfast.caller"] = caller
    left = (ticket.expires_at - datetime.now(UTC)).total_seconds()
    return Viewer(request, caller, time.monotonic() + left)


def _cookie(request: Request, value: str) -> str:
    secure = "; Secure" if request.url.scheme == "https" else ""
    return (
        f"{PASS}={value}; Path={request.url.path}; Max-Age={int(PASS_LIFE.total_seconds())}; "
        f"HttpOnly; SameSite=Strict{secure}"
    )


def _until(caller: Caller) -> float:
    expires = caller.claims.get("exp")
    return NEVER if expires is None else time.monotonic() + float(expires) - time.time()


async def issue(request: Request, job_id: UUID) -> str:
    """A ticket for the caller and this job, which the caller has been shown to see."""
    caller = await identify(request)
    assert caller is not ANONYMOUS  # noqa: S101  (the route is closed to strangers)
    ticket = secrets.token_urlsafe(32)
    async with acting(request, as_service=True) as connection:
        await access.issue_ticket(connection, digest(ticket), job_id, caller.owner, TICKET_LIFE)
    return ticket
