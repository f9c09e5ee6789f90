"""Identify the caller of a request and run queries with the caller's rights.

A request carries a bearer token, an `apikey` header (as Supabase clients send it), a cookie, if the setting
`jwt_cookie` names one, or the cookie of a session (user_session.py). A service key identifies a service. A
signed token or a session identifies a user. A request without a credential is anonymous. A request with an
invalid credential is rejected with 401.

`transaction_as_caller(request)` opens a transaction in which the database role and the token claims are
local settings. The row-level security of the database therefore decides what the caller can see, and the
settings do not leak to the next user of a pooled connection.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from holdfast.engine import access
from holdfast.engine.access import ALL_SCOPES_WILDCARD
from holdfast.engine.connection import Connection, Database
from holdfast.errors import DatabasePermissionError, RefusedError
from holdfast.model import Json
from holdfast.server.api.replica_reads import ReadSource
from holdfast.server.api.services import get_services
from holdfast.server.api.token_verification import UnauthenticatedError
from holdfast.server.api.user_session_store import USER_SESSION_COOKIE

T = TypeVar("T")
CallerKind: TypeAlias = Literal["user", "service", "anonymous"]
SAFE_HTTP_METHODS = {"GET", "HEAD", "OPTIONS"}
CALLER_ASGI_SCOPE_KEY = "holdfast.caller"


@dataclass(frozen=True)
class Caller:
    """The caller of a request: a user, a service or an anonymous client.

    `id` is the user's `sub` claim or the prefix of the service key. `scopes` are the scopes of the service
    key. `claims` are the claims of the user's token. `session_id` is the session of a user who has signed in
    to the pages of systems.

    >>> from holdfast.server import Caller
    >>> caller = Caller("user", "7d0c2f6e-0f0a-4f0e-9a51-1d2f0f4b8a11")
    >>> assert caller.owner == caller.id and not caller.has_scope("jobs")
    """

    kind: CallerKind
    id: str | None = None
    scopes: frozenset[str] = frozenset()
    claims: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)
    session_id: UUID | None = None

    def has_scope(self, scope: str) -> bool:
        """Return whether the caller is a service whose key has the scope."""
        return self.kind == "service" and (ALL_SCOPES_WILDCARD in self.scopes or scope in self.scopes)

    @property
    def name(self) -> str:
        """Name of the caller in the audit log and in rate limits: its kind and id."""
        return f"{self.kind}:{self.id or '-'}"

    @property
    def owner(self) -> str | None:
        """Owner of the jobs that the caller submits: the id of a user, or None for a service."""
        return self.id if self.kind == "user" else None


ANONYMOUS_CALLER = Caller("anonymous")


async def identify_caller(request: HTTPConnection) -> Caller:
    """Return the caller of a request. Raise `UnauthenticatedError` (401) if the credential is invalid.

    The result is cached in the request, so that you can call this function as often as you like.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import identify_caller, json_response
    >>> async def greet(request: Request) -> Response:
    ...     caller = await identify_caller(request)
    ...     return json_response({"hello": caller.id if caller.kind == "user" else None})
    """
    caller = request.scope.get(CALLER_ASGI_SCOPE_KEY)
    if caller is None:
        caller = request.scope[CALLER_ASGI_SCOPE_KEY] = await _authenticate_caller(request)
    assert isinstance(caller, Caller)  # noqa: S101  (only this module and stream_tickets write this key)
    return caller


async def verify_caller_again(request: HTTPConnection) -> Caller:
    """Verify the credential of a request that has waited for long: its key may have been revoked meanwhile.

    Raise `UnauthenticatedError` (401) if the credential is no longer valid.
    """
    request.scope.pop(CALLER_ASGI_SCOPE_KEY, None)
    return await identify_caller(request)


async def _authenticate_caller(request: HTTPConnection) -> Caller:
    services = get_services(request)
    credential, from_cookie = _read_credential(request, services.settings.jwt_cookie)
    if credential is None:
        return await _authenticate_by_session(request)
    if not from_cookie:
        if services.key_verifier.is_configured_key(credential):
            return Caller("service", "settings", frozenset({ALL_SCOPES_WILDCARD}))
        key = await services.key_verifier.find_service_key(credential)
        if key is not None:
            return Caller("service", key.prefix, frozenset(key.scopes))
    claims = await services.token_verifier.verify_token(credential)
    if from_cookie:
        reject_cross_site_request(request)
    return Caller("user", claims["sub"], frozenset(), claims)


async def _authenticate_by_session(request: HTTPConnection) -> Caller:
    """Return the user who has signed in to the pages of systems. A session that has ended is ignored."""
    session = await get_services(request).user_sessions.find_session(request.cookies.get(USER_SESSION_COOKIE))
    if session is None:
        return ANONYMOUS_CALLER
    reject_cross_site_request(request)
    return Caller("user", session.claims["sub"], frozenset(), session.claims, session.id)


def _read_credential(request: HTTPConnection, cookie_name: str | None) -> tuple[str | None, bool]:
    """Return the credential of a request and whether it came from a cookie."""
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, credential = header.partition(" ")
        if scheme.lower() != "bearer" or not credential.strip():
            raise UnauthenticatedError("The Authorization header must be a bearer token")
        return credential.strip(), False
    key = request.headers.get("apikey")
    if key is not None:
        return key, False
    if cookie_name is not None and cookie_name in request.cookies:
        return request.cookies[cookie_name], True
    return None, False


def reject_cross_site_request(request: HTTPConnection) -> None:
    """Reject a cross-site request with a cookie, unless its HTTP method is safe.

    A browser adds cookies to the requests of every page. A cookie alone does not prove that the user intended
    the request.
    """
    if request.scope.get("method", "GET") in SAFE_HTTP_METHODS:
        return
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        same_site = site in {"same-origin", "none"}
    else:
        origin = request.headers.get("origin")
        same_site = origin is not None and urlsplit(origin).netloc == request.headers.get("host")
    if not same_site:
        raise RefusedError(
            "The request came from a page of another site.",
            fix="Send the token in the Authorization header instead of a cookie.",
        )


async def require_user(request: HTTPConnection) -> Caller:
    """Return the caller if it is a user or a service. Raise `UnauthenticatedError` (401) otherwise.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import json_response, require_user
    >>> async def show_account(request: Request) -> Response:
    ...     caller = await require_user(request)
    ...     return json_response({"id": caller.id})
    """
    caller = await identify_caller(request)
    if caller.kind == "anonymous":
        raise UnauthenticatedError("The request has no valid credential. Send a bearer token.")
    return caller


async def require_service(request: HTTPConnection, scope: str) -> Caller:
    """Return the caller if it is a service whose key has the scope. Raise 401 or 403 otherwise.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import json_response, require_service
    >>> async def purge(request: Request) -> Response:
    ...     await require_service(request, "operate")
    ...     return json_response({"purged": 0})
    """
    caller = await require_user(request)
    if not caller.has_scope(scope):
        raise HTTPException(403, f"This endpoint needs a service key with the scope {scope}")
    return caller


@asynccontextmanager
async def transaction_as_caller(
    request: HTTPConnection, *, as_service: bool = False, as_login: bool = False
) -> AsyncGenerator[Connection]:
    """Open a transaction with the rights of the caller and return its connection.

    A user's queries run as the role `authenticated` with the token's claims, so that row-level security
    applies. `as_service` runs them as `service_role`, for work that your application does on a user's behalf.
    `as_login` runs a service's queries as the login role of the API, which owns the tables; creating a queue
    needs this.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import json_response, transaction_as_caller
    >>> async def list_notes(request: Request) -> Response:
    ...     async with transaction_as_caller(request) as connection:
    ...         rows = await connection.fetch("select id, title from notes")
    ...     return json_response([dict(row) for row in rows])
    """
    database = get_services(request).database
    async with _open_caller_transaction(
        request, database, as_service=as_service, as_login=as_login
    ) as connection:
        yield connection


async def read_as_caller(
    request: HTTPConnection, read: Callable[[Connection], Awaitable[T]]
) -> tuple[T, ReadSource]:
    """Run a read with the rights of the caller on the read replica, or on the primary if there is none.

    For lists, search and metrics: the data may be some seconds old.
    """
    return (
        await get_services(request)
        .get_replica_reads()
        .run_read(partial(_open_caller_transaction, request), read)
    )


@asynccontextmanager
async def _open_caller_transaction(
    request: HTTPConnection, database: Database, *, as_service: bool = False, as_login: bool = False
) -> AsyncGenerator[Connection]:
    settings = get_services(request).settings
    role, claims = await choose_role_and_claims(request, as_service=as_service, as_login=as_login)
    async with database.transaction() as connection:
        await access.set_transaction_role(connection, role, claims, settings.call_timeout, settings.user_jobs)
        yield connection


async def choose_role_and_claims(
    request: HTTPConnection, *, as_service: bool = False, as_login: bool = False
) -> tuple[str | None, Mapping[str, Json]]:
    """Return the database role and the claims with which the caller's statements run.

    The role is None for the login role of the API.
    """
    caller = await require_user(request)
    as_user = caller.kind == "user" and not as_service
    role = None
    if as_user or not as_login:
        role = await _choose_database_role(request, "authenticated" if as_user else "service_role")
    # The SQL functions of systems read the service key, to know who claimed a task.
    service_key = caller.id if caller.kind == "service" else None
    return role, caller.claims if as_user else {"role": "service_role", "service_key": service_key}


async def _choose_database_role(request: HTTPConnection, role: str) -> str | None:
    """Return the database role for the transaction, or None for the login role of the API.

    A user never acts with the login role.
    """
    if role in await get_services(request).fetch_allowed_roles():
        return role
    if role == "service_role":
        return None
    raise DatabasePermissionError(
        "The database login of the API may not act as the role authenticated.",
        fix="Ask an administrator to grant the role authenticated to the role in DATABASE_URL.",
    )
