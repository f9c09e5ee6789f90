"""The ASGI application: routes from the registry, security headers, and error pages."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import errors
from holdfast.server.api.identity import reject_cross_site_request
from holdfast.server.api.services import SERVICES_ASGI_SCOPE_KEY, AppServices
from holdfast.server.dashboard import pages
from holdfast.server.dashboard.compression import GzipResponses
from holdfast.server.dashboard.flash import ActionResult, read_flash_message, redirect_with_message
from holdfast.server.dashboard.forms import read_form
from holdfast.server.dashboard.live import FORM_TOKEN_PLACEHOLDER, LiveUpdates
from holdfast.server.dashboard.login import LoginHandler, sanitize_redirect_path
from holdfast.server.dashboard.registry import (
    ACTION_ROUTES,
    DOWNLOAD_ROUTES,
    PAGE_ROUTES,
    DashboardRoute,
    find_page_route,
)
from holdfast.server.dashboard.roles import DashboardUser
from holdfast.server.dashboard.sessions import (
    FLASH_COOKIE,
    SESSION_COOKIE,
    DashboardSession,
    form_token_matches,
    mask_form_token,
)
from holdfast.server.dashboard.shards import build_dashboard
from holdfast.server.dashboard.site import (
    ActionRequest,
    DashboardPage,
    DashboardSite,
    PageRequest,
    get_base_path,
)
from holdfast.server.dashboard.static_files import load_static_files

__all__ = ["IdentifyUser", "create_dashboard"]

IdentifyUser: TypeAlias = "Callable[[HTTPConnection], Awaitable[DashboardUser | None] | DashboardUser | None]"
WRITE_TRANSACTION_TIMEOUT_S = 20
MAX_PAGE_VERSION_CHARS = 64
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; media-src 'self'; frame-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types holdfast",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_HTTP_STATUSES_BY_ERROR: list[tuple[type[errors.HoldfastError], int]] = [
    (errors.NotFoundError, 404),
    (errors.InvalidError, 422),
    (errors.ConflictError, 409),
    (errors.RefusedError, 403),
    (errors.TooLargeError, 413),
    (errors.DatabaseRefusedError, 500),
    (errors.DatabaseError, 503),
    (errors.SchemaError, 503),
]
_log = logging.getLogger("holdfast.server.dashboard")


def create_dashboard(
    services: AppServices,
    *,
    prefix: str = "/dashboard",
    identify_user: IdentifyUser | None = None,
    environment: str = "",
) -> ASGIApp:
    """Create the dashboard as an ASGI application that you can mount in another one.

    `identify_user` returns the user of a request of your own application (a `DashboardUser` or None). Without
    it, users sign in with a login link or a service key. `prefix` is the path where `create_app` mounts the
    dashboard. `environment`, such as "staging", is shown on every page.

    >>> from holdfast.server import create_app, create_dashboard
    >>> app = create_app(dashboard=create_dashboard)
    """
    pages.register_pages()
    return build_dashboard(services, environment, lambda site: Dashboard(site, identify_user, prefix))


class Dashboard:
    """The ASGI application of the dashboard. It takes its mount path from each request."""

    def __init__(self, site: DashboardSite, identify_user: IdentifyUser | None, prefix: str) -> None:
        self.site = site
        self.live = LiveUpdates(site)
        self.prefix = prefix
        self._identify_user = identify_user
        self._login_handler = LoginHandler(site)
        self._static_files = load_static_files()
        self._app: ASGIApp = Starlette(
            routes=self._build_routes(),
            exception_handlers={
                HTTPException: self._handle_http_error,
                errors.HoldfastError: self._handle_holdfast_error,
                Exception: self._handle_unexpected_error,
            },
        )

        self._compressed_app = GzipResponses(self._app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        scope[SERVICES_ASGI_SCOPE_KEY] = self.site.services

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message.get("headers", ())}
                message["headers"] = [
                    *message.get("headers", ()),
                    *(
                        (name.encode(), value.encode())
                        for name, value in SECURITY_HEADERS.items()
                        if name.encode() not in present
                    ),
                ]
            await send(message)

        await self._compressed_app(scope, receive, send_with_headers)

    def _build_routes(self) -> list[BaseRoute]:
        return [
            Route("/static/{name}", self._serve_static_file),
            Route("/login", self._serve_login, methods=["GET", "POST"]),
            Route("/in", self._login_handler.login_with_link),
            Route("/logout", self._serve_logout, methods=["POST"]),
            Route("/live", self._serve_stream),
            *(
                Route(path, self._create_download_endpoint(route), methods=["GET"])
                for path, route in DOWNLOAD_ROUTES.items()
            ),
            *(
                Route(path, self._create_page_endpoint(route), methods=["GET"])
                for path, route in PAGE_ROUTES.items()
            ),
            *(
                Route(path, self._create_action_endpoint(route), methods=["POST"])
                for path, route in ACTION_ROUTES.items()
            ),
        ]

    # Identity

    async def find_session(
        self, request: HTTPConnection, *, allow_unverified: bool = False
    ) -> DashboardSession | None:
        """Return the session of the user who sent a request, or None if the user is not signed in.

        `allow_unverified` also returns a session that the database could not be asked about.
        """
        if self._identify_user is None:
            cookie = request.cookies.get(SESSION_COOKIE)
            return await self.site.sessions.find_session(cookie, allow_unverified=allow_unverified)
        identified = self._identify_user(request)
        user = await identified if inspect.isawaitable(identified) else identified
        return None if user is None else self.site.signer.create_host_session(user)

    async def _create_page_request(
        self, request: HTTPConnection, path: str, query: QueryParams, params: dict[str, Any]
    ) -> PageRequest | None:
        session = await self.find_session(request, allow_unverified=request.scope["method"] != "POST")
        if session is None:
            return None
        return PageRequest(self.site, session, get_base_path(request), path, query, params, request.cookies)

    async def _authorize_request(self, request: Request, permission: str) -> PageRequest | Response:
        """Return the page request if the user has the permission, or a redirect to the login page."""
        page_request = await self._create_page_request(
            request, _get_path_below_mount(request), request.query_params, dict(request.path_params)
        )
        if page_request is None:
            return self._redirect_to_login(request)
        if not page_request.can(permission):
            raise HTTPException(403, f"Your role does not have the permission {permission}.")
        return page_request

    def _redirect_to_login(self, request: HTTPConnection) -> Response:
        if self._identify_user is not None:
            raise HTTPException(403, "You do not have access to this dashboard.")
        here = _get_path_below_mount(request) + (f"?{request.url.query}" if request.url.query else "")
        login = f"{get_base_path(request)}/login?next={quote(here, safe='')}"
        return RedirectResponse(login, status_code=303)

    # Pages

    def _create_page_endpoint(self, route: DashboardRoute) -> Callable[[Request], Awaitable[Response]]:
        async def serve_page(request: Request) -> Response:
            page_request = await self._authorize_request(request, route.permission)
            if isinstance(page_request, Response):
                return page_request
            # Whoever has just changed something sees the change, which the replica may not have yet.
            page_request.reads_replica = route.reads_replica and FLASH_COOKIE not in request.cookies
            page, problem = await self._load_page_or_cached(page_request, route)
            return self._render_page_response(request, page_request, page, problem)

        return serve_page

    def _create_download_endpoint(self, route: DashboardRoute) -> Callable[[Request], Awaitable[Response]]:
        async def serve_download(request: Request) -> Response:
            page_request = await self._authorize_request(request, route.permission)
            if isinstance(page_request, Response):
                return page_request
            if not page_request.session.is_verified:
                raise errors.DatabaseUnavailableError("The session could not be verified.")
            async with self.site.transaction(timeout_s=WRITE_TRANSACTION_TIMEOUT_S, write=True) as connection:
                page_request.connection = connection
                response: Response = await route.function(page_request)
            return response

        return serve_download

    async def _load_page_or_cached(
        self, request: PageRequest, route: DashboardRoute
    ) -> tuple[DashboardPage, str | None]:
        """Return a page or, if the database does not respond, the cached page and an error message."""
        try:
            if not request.session.is_verified:
                raise errors.DatabaseUnavailableError("The session could not be verified.")
            return await self.site.load_page(request, route.function), None
        except errors.DatabaseError as error:
            _log.warning("page %s could not be loaded: %s", request.path, error)
            html = self.site.get_cached_page(request)
            values = {
                "last_html": html.replace(FORM_TOKEN_PLACEHOLDER, request.session.token) if html else None
            }
            status = 200 if html else 503
            page = DashboardPage("unavailable.html", "Database unavailable", values, status=status)
            return page, _format_database_error(error)

    def _render_page_response(
        self, request: Request, page_request: PageRequest, page: DashboardPage, problem: str | None
    ) -> Response:
        """Render a page as a response, with the one-time message of the last action."""
        flash = read_flash_message(self.site.signer, request.cookies.get(FLASH_COOKIE))
        page = replace(page, values={**page.values, "flash": flash})
        content = self.site.render_content(page_request, page, problem)
        html = self.site.render_document(page_request, page, content, problem)
        if page.live and problem is None:
            content = content.replace(page_request.session.token, FORM_TOKEN_PLACEHOLDER)
            self.site.cache_page_html(page_request, content)
        html = html.replace(page_request.session.token, mask_form_token(page_request.session.token))
        response = Response(html, page.status, media_type="text/html")
        if flash:
            response.delete_cookie(FLASH_COOKIE, path=page_request.base or "/")
        return response

    async def _serve_stream(self, request: Request) -> Response:
        """Stream the content of a page as server-sent events, again after each change."""
        target = urlsplit(sanitize_redirect_path(request.query_params.get("path")))
        match = find_page_route(target.path)
        if match is None:
            raise HTTPException(404, f"Page {target.path} does not exist.")
        route, params = match
        page_request = await self._create_page_request(
            request, target.path, QueryParams(target.query), params
        )
        if page_request is None:
            return Response(status_code=401)  # a browser does not reconnect after an error
        if not page_request.can(route.permission):
            return Response(status_code=403)
        page_request.reads_replica = route.reads_replica
        version = request.headers.get("last-event-id") or request.query_params.get("version", "")

        async def is_signed_in() -> bool:
            """Ask the host application again who its user is."""
            session = await self.find_session(request)
            return session is not None and session.user == page_request.user

        return StreamingResponse(
            self.live.stream_page(
                page_request,
                route.function,
                version[:MAX_PAGE_VERSION_CHARS],
                is_signed_in if self._identify_user is not None else None,
            ),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no", "cache-control": "no-store, no-transform"},
        )

    # Actions

    def _create_action_endpoint(self, route: DashboardRoute) -> Callable[[Request], Awaitable[Response]]:
        async def serve_action(request: Request) -> Response:
            reject_cross_site_request(request)
            page_request = await self._create_page_request(
                request, _get_path_below_mount(request), request.query_params, dict(request.path_params)
            )
            if page_request is None:
                return self._redirect_to_login(request)
            form = await read_form(request)
            token = str(form.get("token", ""))
            if not form_token_matches(token, page_request.session.token):
                raise HTTPException(
                    403, "This form belongs to another session. Reload the page and try again."
                )
            if not page_request.can(route.permission):
                raise HTTPException(403, f"Your role does not have the permission {route.permission}.")
            async with self.site.transaction(timeout_s=WRITE_TRANSACTION_TIMEOUT_S, write=True) as connection:
                page_request.connection = connection
                result = await route.function(ActionRequest(page_request, form, connection))
            if isinstance(result, DashboardPage):
                return self._render_page_response(request, page_request, result, None)
            if isinstance(result, Response):
                return result
            path, message, undo = ActionResult(*result)
            target = sanitize_redirect_path(path)
            return redirect_with_message(self.site.signer, page_request.base, target, message, undo)

        return serve_action

    async def _serve_login(self, request: Request) -> Response:
        if request.method == "GET":
            return self._login_handler.render_login_page(request)
        form = await read_form(request)
        next_path = sanitize_redirect_path(str(form.get("next", "")))
        return await self._login_handler.login_with_service_key(request, str(form.get("key", "")), next_path)

    async def _serve_logout(self, request: Request) -> Response:
        reject_cross_site_request(request)
        return await self._login_handler.logout(request)

    async def _serve_static_file(self, request: Request) -> Response:
        name = request.path_params["name"]
        file = self._static_files.get(name)
        if file is None:
            raise HTTPException(404, f"File {name} does not exist.")
        body, media_type = file
        return Response(body, media_type=media_type, headers={"cache-control": "public, max-age=3600"})

    # Errors

    async def _handle_http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101
        return await self._render_error(request, error.status_code, error.detail)

    async def _handle_holdfast_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, errors.HoldfastError)  # noqa: S101
        status = next((code for kind, code in _HTTP_STATUSES_BY_ERROR if isinstance(error, kind)), 500)
        is_database = isinstance(error, errors.DatabaseError)
        return await self._render_error(
            request, status, _format_database_error(error) if is_database else str(error)
        )

    async def _handle_unexpected_error(self, request: Request, error: Exception) -> Response:
        _log.error("unexpected %s on %s", type(error).__name__, request.url.path, exc_info=error)
        return await self._render_error(request, 500, "An unexpected error occurred. It was logged.")

    async def _render_error(self, request: Request, status: int, text: str) -> Response:
        page_request = None
        with contextlib.suppress(errors.DatabaseError):
            page_request = await self._create_page_request(
                request, _get_path_below_mount(request), request.query_params, {}
            )
        if page_request is None:
            return Response(text, status, media_type="text/plain")
        title = "Not found" if status == 404 else "Access denied" if status == 403 else "Request failed"
        values = {"text": text, "code": status, "flash": None}
        page = DashboardPage("error_page.html", title, values, live=False)
        html = self.site.render_document(page_request, page, self.site.render_content(page_request, page))
        html = html.replace(page_request.session.token, mask_form_token(page_request.session.token))
        return Response(html, status, media_type="text/html")


def _format_database_error(error: errors.HoldfastError) -> str:
    if "57014" in error.message:  # query_canceled
        return "The database took longer than two seconds. Narrow the search, or try again."
    return "The database does not respond. This page retries automatically."


def _get_path_below_mount(request: HTTPConnection) -> str:
    """Return the path of a request below the path where the dashboard is mounted."""
    path, root = request.scope["path"], str(request.scope.get("root_path", "")).rstrip("/")
    inner = path[len(root) :] if root and path.startswith(root) else path
    return inner or "/"
