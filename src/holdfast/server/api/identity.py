"""Who is asking, and the one transaction in which they are answered.

A request shows a bearer token, an `apikey` header (as Supabase's clients do) or, where the setting
`jwt_cookie` names one, a cookie. A service's key makes it a service, a signed token a user; nothing makes
it anonymous, and something that proves nothing is refused rather than ignored.

`acting(request)` opens the transaction: the role and the claims are local to it, so the row-level security
of the database decides what this caller sees, also when a pooler hands the same connection to somebody else
next.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from holdfast.engine import access
from holdfast.engine.connection import Connection
from holdfast.errors import DatabaseRightsError, RefusedError
from holdfast.server.api.keyring import ALL
from holdfast.server.api.services import services_of
from holdfast.server.api.tokens import UnauthenticatedError

Kind = Literal["user", "service", "anonymous"]
SAFE = {"GET", "HEAD", "OPTIONS"}
_KNOWN = "holdfast.caller"


@dataclass(frozen=True)
class Caller:
    kind: Kind
    id: str | None = None
    scopes: frozenset[str] = frozenset()
    claims: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def may(self, scope: str) -> bool:
        return self.kind == "service" and (ALL in self.scopes or scope in self.scopes)

    @property
    def name(self) -> str:
        """For the audit log and the rate limits."""
        return f"{self.kind}:{self.id or '-'}"

    @property
    def owner(self) -> str | None:
        """Whose jobs these are: a user's own; a service says it itself."""
        return self.id if self.kind == "user" else None


ANONYMOUS = Caller("anonymous")


async def identify(request: HTTPConnection) -> Caller:
    """The caller of a request; 401 when what it shows proves nothing."""
    known = request.scope.get(_KNOWN)
    if known is None:
        known = request.scope[_KNOWN] = await _identify(request)
    assert isinstance(known, Caller)  # noqa: S101  (nobody else writes there)
    return known


async def _identify(request: HTTPConnection) -> Caller:
    services = services_of(request)
    shown, cookie = _credential(request, services.settings.jwt_cookie)
    if shown is None:
        return ANONYMOUS
    if not cookie:
        if services.keys.is_fixed(shown):
            return Caller("service", "settings", frozenset({ALL}))
        key = await services.keys.find(shown)
        if key is not None:
            return Caller("service", key.prefix, frozenset(key.scopes))
    claims = await services.tokens.verify(shown)
    if cookie:
        refuse_cross_site(request)
    return Caller("user", claims["sub"], frozenset(), claims)


def _credential(request: HTTPConnection, cookie: str | None) -> tuple[str | None, bool]:
    """What the request shows, and whether a browser sent it by itself."""
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, given = header.partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise UnauthenticatedError("Only bearer tokens are understood")
        return given.strip(), False
    key = request.headers.get("apikey")
    if key is not None:
        return key, False
    if cookie is not None and cookie in request.cookies:
        return request.cookies[cookie], True
    return None, False


def refuse_cross_site(request: HTTPConnection) -> None:
    """A browser sends cookies for everybody; only our own pages may change something with them."""
    if request.scope.get("method", "GET") in SAFE:
        return
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        fine = site in {"same-origin", "none"}
    else:
        origin = request.headers.get("origin")
        fine = origin is not None and urlsplit(origin).netloc == request.headers.get("host")
    if not fine:
        raise RefusedError("This came from another site.", fix="Send the token as a bearer header.")


async def require_user(request: HTTPConnection) -> Caller:
    """A user or a service, anybody but a stranger."""
    caller = await identify(request)
    if caller.kind == "anonymous":
        raise UnauthenticatedError("Sign in first")
    return caller


async def require_service(request: HTTPConnection, scope: str) -> Caller:
    caller = await require_user(request)
    if not caller.may(scope):
        raise HTTPException(403, f"This needs a service key with the scope {scope}")
    return caller


@asynccontextmanager
async def acting(
    request: HTTPConnection, *, as_service: bool = False, as_login: bool = False
) -> AsyncGenerator[Connection]:
    """One transaction as the caller. `as_service` for what the application does on a user's behalf.

    `as_login` is for services and for what takes the rights of an owner, such as making a queue's tables.
    """
    services = services_of(request)
    caller = await require_user(request)
    as_user = caller.kind == "user" and not as_service
    role = None
    if as_user or not as_login:
        role = await _role(request, "authenticated" if as_user else "service_role")
    claims = caller.claims if as_user else {"role": "service_role"}
    async with services.database.transaction() as connection:
        await access.act_as(connection, role, claims, services.settings.call_timeout)
        yield connection


async def _role(request: HTTPConnection, wanted: str) -> str | None:
    """The role to act as. A service may be the login itself; a user must be less than that."""
    if wanted in await services_of(request).roles():
        return wanted
    if wanted == "service_role":
        return None
    raise DatabaseRightsError(
        "The login of the API may not act as the role authenticated.",
        fix="Let an administrator run: grant authenticated to the role in DATABASE_URL.",
    )
