"""Authenticate the viewers of event streams by token, key, ticket or cookie.

A browser's EventSource cannot send headers, and a token in a URL ends up in logs. A page therefore requests a
ticket with its token (`POST /api/jobs/{id}/ticket`) and opens the stream with `?ticket=`. A ticket works
once. The response sets a cookie for this one stream, which scripts of the page cannot read. The browser sends
the cookie when it reconnects after a lost connection.

Tickets and cookies are rows of the database that end with the token or key of the caller who requested the
ticket. An open stream ends with it too (access_monitor.py).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from starlette.requests import Request

from holdfast.engine import sessions, stream_tickets
from holdfast.engine.access import hash_secret
from holdfast.engine.connection import Connection
from holdfast.engine.stream_tickets import NewTicket, StreamPass
from holdfast.errors import DatabaseError
from holdfast.model import Json
from holdfast.server.api import job_views
from holdfast.server.api.access_monitor import WatchedAccess
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
STREAM_VIEWER_SCOPE_KEY = "holdfast.stream_viewer"
SETTINGS_KEY_CALLER_ID = "settings"
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
    _watched_key: WatchedAccess | None = field(default=None, init=False, repr=False)
    _key_ended: asyncio.Event = field(default_factory=asyncio.Event, init=False, repr=False)

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
        if time.monotonic() >= self.expires_at or self._key_ended.is_set():
            return False
        subject = self._get_watched_subject()
        if subject is None or self._watched_key is not None:
            return True
        keys, session_ids = ([subject], []) if isinstance(subject, str) else ([], [subject])
        try:
            async with get_services(self.request).database.connection() as connection:
                ended_keys, ended_sessions = await sessions.list_ended_access(connection, keys, session_ids)
        except DatabaseError:
            return True  # the key was valid before; without the database there is nothing to read
        return not ended_keys and not ended_sessions

    @contextmanager
    def watch_access(self) -> Generator[None]:
        """Watch the viewer's key or session in the block. `EventStreamResponse` does so for open streams."""
        subject = self._get_watched_subject()
        if subject is not None:
            monitor = get_services(self.request).access_monitor
            self._watched_key = monitor.watch(subject, self._key_ended.set)
        try:
            yield
        finally:
            if self._watched_key is not None:
                self._watched_key.close()
                self._watched_key = None

    async def wait_for_access_end(self) -> str:
        """Wait until the viewer may no longer watch the stream, and return why: `expired` or `revoked`.

        Call it inside `watch_access`.
        """
        delay_s = None if self.expires_at == NO_EXPIRY else self.expires_at - time.monotonic()
        try:
            async with asyncio.timeout(delay_s):
                await self._key_ended.wait()
        except TimeoutError:
            return "expired"
        return "revoked"

    def _get_watched_subject(self) -> str | UUID | None:
        """Return what can be ended by others: the prefix of a stored key, or the id of a session."""
        is_stored_key = self.is_service and self.caller.id not in (None, SETTINGS_KEY_CALLER_ID)
        return self.caller.id if is_stored_key else self.caller.session_id


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
        viewer = StreamViewer(request, caller, _get_token_expiry(caller))
        # Other requests accept a token that expired a few seconds ago, and a key that was revoked within the
        # last second. A stream whose right has just ended must not be opened again.
        if not await viewer.has_access():
            raise UnauthenticatedError("The token or service key has expired or was revoked")
    else:
        viewer = await _authenticate_by_cookie(request, job_id) or await _redeem_ticket(request, job_id)
    request.scope[STREAM_VIEWER_SCOPE_KEY] = viewer
    return viewer


async def _authenticate_by_cookie(request: Request, job_id: UUID) -> StreamViewer | None:
    cookie = request.cookies.get(STREAM_COOKIE_NAME)
    if cookie is None or len(cookie) > MAX_STREAM_TICKET_CHARS:
        return None
    async with get_services(request).database.connection() as connection:
        stored = await stream_tickets.find_stream_pass(connection, _hash_ticket(request, cookie), job_id)
    return None if stored is None else _create_viewer_from_pass(request, stored)


async def _redeem_ticket(request: Request, job_id: UUID) -> StreamViewer:
    ticket = request.query_params.get("ticket")
    if not ticket or len(ticket) > MAX_STREAM_TICKET_CHARS:
        raise UnauthenticatedError(
            "The request has no valid credential. Send a bearer token or the query parameter `ticket`."
        )
    cookie = secrets.token_urlsafe(32)
    async with get_services(request).database.transaction() as connection:
        stored = await stream_tickets.redeem_stream_ticket(
            connection,
            _hash_ticket(request, ticket),
            job_id,
            _hash_ticket(request, cookie),
            STREAM_COOKIE_LIFETIME,
        )
    if stored is None:
        raise UnauthenticatedError("The ticket was used before, has expired, or its key was revoked")
    viewer = _create_viewer_from_pass(request, stored)
    viewer.headers["Set-Cookie"] = _build_cookie_header(request, cookie, stored)
    return viewer


def _hash_ticket(request: Request, secret: str) -> list[bytes]:
    return get_services(request).key_verifier.hash_bound_secret(secret)


def _create_viewer_from_pass(request: Request, stored: StreamPass) -> StreamViewer:
    """Create the viewer for a pass. The rest of the request runs as the caller who requested the ticket."""
    if stored.issuer == "user":
        claims = {"sub": stored.owner, "role": "authenticated"}
        caller = Caller("user", stored.owner, claims=claims)
    else:
        caller = Caller("service", stored.key_prefix or SETTINGS_KEY_CALLER_ID, frozenset({"jobs"}))
    request.scope[CALLER_ASGI_SCOPE_KEY] = caller
    return StreamViewer(request, caller, time.monotonic() + _get_remaining_s(stored))


def _get_remaining_s(stored: StreamPass) -> float:
    return (stored.expires_at - datetime.now(UTC)).total_seconds()


def _build_cookie_header(request: Request, value: str, stored: StreamPass) -> str:
    secure = "; Secure" if request.url.scheme == "https" else ""
    return (
        f"{STREAM_COOKIE_NAME}={value}; Path={request.url.path}; Max-Age={int(_get_remaining_s(stored))}; "
        f"HttpOnly; SameSite=Strict{secure}"
    )


def _get_token_expiry(caller: Caller) -> float:
    expires_at = caller.claims.get("exp")
    return NO_EXPIRY if expires_at is None else time.monotonic() + float(expires_at) - time.time()


async def issue_stream_ticket(request: Request, job_id: UUID) -> str:
    """Create a ticket that opens the event stream of a job or batch once, within 60 seconds.

    Check first that the caller may see the job. The ticket ends with the caller's token or key.

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
    new_ticket = _bind_ticket_to_caller(request, caller, ticket, job_id)
    async with transaction_as_caller(request, as_service=True) as connection:
        issued = await stream_tickets.issue_stream_ticket(connection, new_ticket, STREAM_TICKET_LIFETIME)
    if not issued:
        raise UnauthenticatedError("The token or service key has expired or was revoked")
    return ticket


def _bind_ticket_to_caller(request: Request, caller: Caller, ticket: str, job_id: UUID) -> NewTicket:
    """Return the ticket as it is stored, so that it ends with the caller's token or service key."""
    if caller.kind == "user":
        return NewTicket(
            digest=hash_secret(ticket),
            job_id=job_id,
            issuer="user",
            owner=caller.owner,
            not_after=datetime.fromtimestamp(float(caller.claims["exp"]), UTC),
        )
    if caller.id == SETTINGS_KEY_CALLER_ID:
        return NewTicket(digest=_hash_ticket(request, ticket)[-1], job_id=job_id, issuer="settings_key")
    return NewTicket(digest=hash_secret(ticket), job_id=job_id, issuer="key", key_prefix=caller.id)
