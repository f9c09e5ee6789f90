"""Sign in and sign out.

The dashboard is closed by default. There are three ways in: a login link that works once (printed by
`holdfast api` on this machine, or created with `create_login_link`), a service key, or the host application,
which identifies its user on every request.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from datetime import timedelta

from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response

from holdfast.engine import access, audit
from holdfast.engine.access import ALL_SCOPES_WILDCARD, hash_secret
from holdfast.engine.connection import Connection
from holdfast.server.api.identity import reject_cross_site_request
from holdfast.server.api.services import AppServices
from holdfast.server.dashboard.roles import PERMISSIONS_BY_ROLE, DashboardUser
from holdfast.server.dashboard.sessions import SESSION_COOKIE, SESSION_LIFETIME_S, Login
from holdfast.server.dashboard.site import DashboardSite, get_base_path

MAX_LOGIN_ATTEMPTS = 10
LOGIN_RATE_WINDOW_S = 60.0
MAX_TRACKED_LOGIN_HOSTS = 1000


async def create_login_link(
    connection: Connection,
    base: str,
    *,
    name: str = "operator",
    role: str = "admin",
    life: timedelta = timedelta(minutes=15),
) -> str:
    """Create a one-time login URL for the dashboard. It signs in the first person who opens it.

        link = await create_login_link(connection, "https://ops.example/dashboard", name="ann", role="viewer")

    `base` is the URL of the dashboard, and `life` is how long the link is valid.
    """
    secret = secrets.token_urlsafe(24)
    await access.store_login_link(connection, hash_secret(secret), name=name, role=role, lifetime=life)
    return f"{base.rstrip('/')}/in?t={secret}"


class LoginHandler:
    """Serves the login page, verifies service keys and login links, and starts sessions."""

    def __init__(self, site: DashboardSite) -> None:
        self._site = site
        self._attempts: OrderedDict[str, list[float]] = OrderedDict()

    def render_login_page(self, request: HTTPConnection, *, error: str = "", status: int = 200) -> Response:
        template = self._site.templates.get_template("login.html")
        html = template.render(
            base=get_base_path(request),
            next=sanitize_redirect_path(request.query_params.get("next")),
            error=error,
            theme=request.cookies.get("holdfast_theme", "system"),
            environment=self._site.environment,
        )
        return Response(html, status, media_type="text/html")

    async def login_with_service_key(self, request: Request, key: str, next_path: str) -> Response:
        """Sign in with a service key that has a dashboard role."""
        reject_cross_site_request(request)
        if self._record_and_check_login_attempt(request):
            return self.render_login_page(
                request, error="Too many attempts. Try again in a minute.", status=429
            )
        login = await find_login_by_service_key(self._site.services, key)
        if login is None:
            return self.render_login_page(request, error="This key has no access.", status=403)
        async with self._site.transaction(write=True) as connection:
            cookie = await self._start_session(connection, request, login)
        if cookie is None:
            return self.render_login_page(request, error="This key has no access.", status=403)
        return self._redirect_with_cookie(request, cookie, next_path)

    async def login_with_link(self, request: Request) -> Response:
        """Sign in with a one-time login link, which then stops working."""
        if "prefetch" in request.headers.get("sec-purpose", ""):
            return Response(status_code=503)  # a browser that prefetches must not use up the link
        async with self._site.transaction(write=True) as connection:
            link = await access.redeem_login_link(connection, hash_secret(request.query_params.get("t", "")))
            cookie = None
            if link is not None and link["role"] in PERMISSIONS_BY_ROLE:
                login = Login(DashboardUser(link["name"], link["role"]), "link")
                cookie = await self._start_session(connection, request, login)
        if cookie is None:
            return self.render_login_page(
                request, error="This login link was already used or has expired.", status=403
            )
        return self._redirect_with_cookie(request, cookie, "/")

    async def logout(self, request: Request) -> Response:
        """Sign out: end the session, delete its cookie and redirect to the login page."""
        sessions = self._site.sessions
        async with self._site.transaction(write=True) as connection:
            ended = await sessions.end_session(connection, request.cookies.get(SESSION_COOKIE))
            if ended is not None:
                await audit.record_audit_entry(
                    connection, ended.user.actor, "dashboard.logout", str(ended.id)
                )
        if ended is not None:
            sessions.close_streams(ended)
        response = RedirectResponse(f"{get_base_path(request)}/login", status_code=303)
        response.delete_cookie(SESSION_COOKIE, path=get_base_path(request) or "/")
        return response

    async def _start_session(self, connection: Connection, request: Request, login: Login) -> str | None:
        """Start a session and return its cookie, or None if the service key was revoked meanwhile.

        A session of the same browser ends, so that its old cookie does not stay valid unnoticed.
        """
        sessions = self._site.sessions
        started = await sessions.start_session(
            connection,
            login,
            address=request.client.host if request.client else None,
            user_agent=request.headers.get("user-agent"),
        )
        if started is None:
            return None
        session_id, cookie = started
        await sessions.end_session(connection, request.cookies.get(SESSION_COOKIE))
        await audit.record_audit_entry(
            connection, login.user.actor, "dashboard.login", str(session_id), {"by": login.method}
        )
        return cookie

    def _redirect_with_cookie(self, request: Request, cookie: str, path: str) -> Response:
        response = RedirectResponse(get_base_path(request) + path, status_code=303)
        response.set_cookie(
            SESSION_COOKIE,
            cookie,
            max_age=SESSION_LIFETIME_S,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
            path=get_base_path(request) or "/",
        )
        return response

    def _record_and_check_login_attempt(self, request: HTTPConnection) -> bool:
        """Record a login attempt, and return whether the host made too many attempts within a minute."""
        host = request.client.host if request.client else "?"
        now = time.monotonic()
        recent = [at for at in self._attempts.get(host, ()) if at > now - LOGIN_RATE_WINDOW_S]
        self._attempts[host] = [*recent, now]
        self._attempts.move_to_end(host)
        while len(self._attempts) > MAX_TRACKED_LOGIN_HOSTS:
            self._attempts.popitem(last=False)
        return len(recent) >= MAX_LOGIN_ATTEMPTS


async def find_login_by_service_key(services: AppServices, key: str) -> Login | None:
    """Return the login of a service key, or None if the key has no dashboard role.

    A key with the scope `dashboard:<role>` has that role. A key for everything is an admin.
    """
    if services.key_verifier.is_configured_key(key):
        return Login(DashboardUser("service key", "admin"), "settings_key")
    service_key = await services.key_verifier.find_service_key(key)
    if service_key is None:
        return None
    roles = [role for role in PERMISSIONS_BY_ROLE if f"dashboard:{role}" in service_key.scopes]
    if ALL_SCOPES_WILDCARD in service_key.scopes:
        roles = ["admin"]
    return Login(DashboardUser(service_key.name, roles[-1]), "key", service_key.prefix) if roles else None


def sanitize_redirect_path(text: str | None) -> str:
    """Return a redirect path if it points into the dashboard, otherwise `/`.

    The path to return to after the login comes from the URL, which anybody can write.
    """
    if (
        not text
        or not text.startswith("/")
        or text.startswith(("//", "/\\"))
        or any(c in text for c in "\r\n\\")
    ):
        return "/"
    return text
