"""The door: who is let in, and how they leave.

Closed by default. Three keys fit: a link that opens once (printed by `holdfast api` on this machine, or made
with `login_link`), a service key, or the host application, which says on every request who its user is.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from datetime import timedelta

from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response

from holdfast.engine import access, insight
from holdfast.engine.access import ALL
from holdfast.engine.connection import Connection
from holdfast.server.api.identity import refuse_cross_site
from holdfast.server.api.services import Services
from holdfast.server.dashboard.roles import ROLES, Visitor
from holdfast.server.dashboard.sessions import COOKIE, LIFE_SECONDS
from holdfast.server.dashboard.site import Site, base_of

TRIES, PER_SECONDS = 10, 60.0


async def login_link(
    connection: Connection,
    base: str,
    *,
    name: str = "operator",
    role: str = "admin",
    life: timedelta = timedelta(minutes=15),
) -> str:
    """An address that lets whoever opens it first in, once."""
    secret = secrets.token_urlsafe(24)
    await insight.make_login_link(connection, _digest(secret), name=name, role=role, life=life)
    return f"{base.rstrip('/')}/in?t={secret}"


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


class Entrance:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._tries: OrderedDict[str, list[float]] = OrderedDict()

    def form(self, request: HTTPConnection, *, wrong: str = "", status: int = 200) -> Response:
        template = self._site.templates.get_template("login.html")
        html = template.render(
            base=base_of(request),
            next=local_path(request.query_params.get("next")),
            wrong=wrong,
            theme=request.cookies.get("holdfast_theme", "system"),
            environment=self._site.environment,
        )
        return Response(html, status, media_type="text/html")

    async def by_key(self, request: Request, key: str, next_path: str) -> Response:
        refuse_cross_site(request)
        if self._too_many(request):
            return self.form(request, wrong="Too many tries. Wait a minute.", status=429)
        visitor = await visitor_of_key(self._site.services, key)
        if visitor is None:
            return self.form(request, wrong="This key opens nothing here.", status=403)
        return await self._in(request, visitor, next_path, "key")

    async def by_link(self, request: Request) -> Response:
        if "prefetch" in request.headers.get("sec-purpose", ""):
            return Response(status_code=503)  # a browser that looks ahead must not use up the link
        async with self._site.transaction(write=True) as connection:
            found = await insight.use_login_link(connection, _digest(request.query_params.get("t", "")))
        if found is None or found["role"] not in ROLES:
            return self.form(request, wrong="This link was used already, or is too old.", status=403)
        return await self._in(request, Visitor(found["name"], found["role"]), "/", "link")

    def leave(self, request: Request) -> Response:
        answer = RedirectResponse(f"{base_of(request)}/login", status_code=303)
        answer.delete_cookie(COOKIE, path=base_of(request) or "/")
        return answer

    async def _in(self, request: Request, visitor: Visitor, next_path: str, how: str) -> Response:
        async with self._site.transaction(write=True) as connection:
            await access.record(connection, visitor.actor, "dashboard.login", None, {"by": how})
        answer = RedirectResponse(base_of(request) + next_path, status_code=303)
        answer.set_cookie(
            COOKIE,
            self._site.signer.start(visitor),
            max_age=LIFE_SECONDS,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
            path=base_of(request) or "/",
        )
        return answer

    def _too_many(self, request: HTTPConnection) -> bool:
        """Whether this address has tried too often within a minute."""
        host = request.client.host if request.client else "?"
        recent = [at for at in self._tries.get(host, ()) if at > time.monotonic() - PER_SECONDS]
        self._tries[host] = [*recent, time.monotonic()]
        self._tries.move_to_end(host)
        while len(self._tries) > 1000:
            self._tries.popitem(last=False)
        return len(recent) >= TRIES


async def visitor_of_key(services: Services, key: str) -> Visitor | None:
    """A key with the scope `dashboard:<role>` opens it in that role; one for everything, as admin."""
    if services.keys.is_fixed(key):
        return Visitor("service key", "admin")
    found = await services.keys.find(key)
    if found is None:
        return None
    if ALL in found.scopes:
        return Visitor(found.name, "admin")
    roles = [role for role in ROLES if f"dashboard:{role}" in found.scopes]
    return Visitor(found.name, roles[-1]) if roles else None


def local_path(text: str | None) -> str:
    """Where to go after the login: one of our own pages, whatever the address says."""
    if (
        not text
        or not text.startswith("/")
        or text.startswith(("//", "/\\"))
        or any(c in text for c in "\r\n\\")
    ):
        return "/"
    return text
