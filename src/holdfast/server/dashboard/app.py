"""The ASGI application: routes made from the registries, and what surrounds every answer."""

from __future__ import annotations

import hmac
import inspect
import logging
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import FormData, QueryParams, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import errors
from holdfast.server.api.identity import refuse_cross_site
from holdfast.server.api.services import PLACE, Services
from holdfast.server.dashboard import pages
from holdfast.server.dashboard.entrance import Entrance, local_path
from holdfast.server.dashboard.live import TOKEN, Live
from holdfast.server.dashboard.registry import DEEDS, DOWNLOADS, SCREENS, Entry, screen_at
from holdfast.server.dashboard.roles import Visitor
from holdfast.server.dashboard.sessions import COOKIE, FLASH, Session
from holdfast.server.dashboard.site import Deed, Page, Site, View, base_of, redirect

__all__ = ["Who", "create_dashboard"]

Who: TypeAlias = "Callable[[HTTPConnection], Awaitable[Visitor | None] | Visitor | None]"
MOST_BYTES = 1024 * 1024
HEADERS = {
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
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_STATUS: list[tuple[type[errors.HoldfastError], int]] = [
    (errors.NotFoundError, 404),
    (errors.InvalidError, 422),
    (errors.ConflictError, 409),
    (errors.RefusedError, 403),
    (errors.DatabaseError, 503),
    (errors.SchemaError, 503),
]
_log = logging.getLogger("holdfast.server.dashboard")


def create_dashboard(
    services: Services, *, prefix: str = "/dashboard", roles: Who | None = None, environment: str = ""
) -> ASGIApp:
    """The application, to be mounted anywhere: it finds out from each request where it is.

    `roles` says who the host's own user is (a `Visitor` or None), and then nobody else gets in. `prefix` is
    where a server that mounts it at its root should pretend it is. `environment` is shown on every page.
    """
    pages.register()
    return Dashboard(Site(services, environment=environment), roles, prefix)


class Dashboard:
    def __init__(self, site: Site, roles: Who | None, prefix: str) -> None:
        self.site = site
        self.live = Live(site)
        self.prefix = prefix
        self._roles = roles
        self._entrance = Entrance(site)
        self._static = _static_files()
        self._app = Starlette(
            routes=self._routes(),
            exception_handlers={
                HTTPException: self._on_http_error,
                errors.HoldfastError: self._on_problem,
                Exception: self._on_surprise,
            },
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        scope[PLACE] = self.site.services

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message.get("headers", ())}
                message["headers"] = [
                    *message.get("headers", ()),
                    *((n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in known),
                ]
            await send(message)

        await self._app(scope, receive, safely)

    def _routes(self) -> list[BaseRoute]:
        return [
            Route("/static/{name}", self._file),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/in", self._entrance.by_link),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/live", self._stream),
            *(Route(path, self._download(entry), methods=["GET"]) for path, entry in DOWNLOADS.items()),
            *(Route(path, self._screen(entry), methods=["GET"]) for path, entry in SCREENS.items()),
            *(Route(path, self._deed(entry), methods=["POST"]) for path, entry in DEEDS.items()),
        ]

    # Who asks

    async def session(self, request: HTTPConnection) -> Session | None:
        if self._roles is None:
            return self.site.signer.session(request.cookies.get(COOKIE))
        told = self._roles(request)
        visitor = await told if inspect.isawaitable(told) else told
        return None if visitor is None else self.site.signer.hosted(visitor)

    async def _view(
        self, request: HTTPConnection, path: str, query: QueryParams, params: dict[str, Any]
    ) -> View | None:
        session = await self.session(request)
        if session is None:
            return None
        return View(self.site, session, base_of(request), path, query, params, request.cookies)

    def _closed(self, request: HTTPConnection) -> Response:
        if self._roles is not None:
            raise HTTPException(403, "You are not let in here.")
        here = _path(request) + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{base_of(request)}/login?next={quote(here, safe='')}", status_code=303)

    # Pages

    def _screen(self, entry: Entry) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            view = await self._view(request, _path(request), request.query_params, dict(request.path_params))
            if view is None:
                return self._closed(request)
            if not view.may(entry.permission):
                raise HTTPException(403, "Your role may not see this.")
            return self._with_flash(request, view, *await self._made(view, entry))

        return answer

    def _download(self, entry: Entry) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            view = await self._view(request, _path(request), request.query_params, dict(request.path_params))
            if view is None:
                return self._closed(request)
            if not view.may(entry.permission):
                raise HTTPException(403, f"Your role may not do this: it needs {entry.permission}.")
            async with self.site.transaction(seconds=20, write=True) as connection:
                view.connection = connection
                answered: Response = await entry.function(view)
            return answered

        return answer

    async def _made(self, view: View, entry: Entry) -> tuple[Page, str | None]:
        """The page; or, when the database does not answer in time, its last good state and what is wrong."""
        try:
            async with self.site.transaction() as connection:
                view.connection = connection
                page = await entry.function(view)
        except errors.DatabaseError as trouble:
            _log.warning("%s: %s", view.path, trouble)
            good = self.site.recall(view)
            values = {"last": good.replace(TOKEN, view.session.token) if good else None}
            return Page("stale.html", "Waiting for the database", values, status=200 if good else 503), _late(
                trouble
            )
        return page, None

    def _with_flash(self, request: Request, view: View, page: Page, problem: str | None) -> Response:
        flash = self.site.signer.read("flash", request.cookies.get(FLASH))
        shown = Page(page.template, page.title, {**page.values, "flash": flash}, page.live, page.status)
        html = self.site.render(view, shown, problem=problem)
        if page.live and problem is None:
            fragment = self.site.render(view, shown, fragment=True)
            self.site.remember(view, fragment.replace(view.session.token, TOKEN))
        answer = Response(html, page.status, media_type="text/html")
        if flash:
            answer.delete_cookie(FLASH, path=view.base or "/")
        return answer

    async def _stream(self, request: Request) -> Response:
        """The living part of a page, again whenever it changes."""
        asked = urlsplit(local_path(request.query_params.get("path")))
        found = screen_at(asked.path)
        if found is None:
            raise HTTPException(404, "There is no such page.")
        entry, params = found
        view = await self._view(request, asked.path, QueryParams(asked.query), params)
        if view is None or not view.may(entry.permission):
            return Response(status_code=204)  # tells the browser not to come back
        have = request.headers.get("last-event-id") or request.query_params.get("have", "")
        return StreamingResponse(
            self.live.stream(view, entry.function, have[:64]),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no", "cache-control": "no-store, no-transform"},
        )

    # Actions

    def _deed(self, entry: Entry) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            refuse_cross_site(request)
            view = await self._view(request, _path(request), request.query_params, dict(request.path_params))
            if view is None:
                return self._closed(request)
            form = await _form(request)
            token = str(form.get("token", ""))
            if not hmac.compare_digest(token.encode("utf-8", "replace"), view.session.token.encode()):
                raise HTTPException(403, "This form is from another session. Go back, reload and try again.")
            if not view.may(entry.permission):
                raise HTTPException(403, f"Your role may not do this: it needs {entry.permission}.")
            async with self.site.transaction(seconds=20, write=True) as connection:
                view.connection = connection
                told = await entry.function(Deed(view, form, connection))
            if isinstance(told, Page):
                return self._with_flash(request, view, told, None)
            if isinstance(told, Response):
                return told
            path, message = told
            return redirect(self.site, view, local_path(path), message)

        return answer

    async def _login(self, request: Request) -> Response:
        if request.method == "GET":
            return self._entrance.form(request)
        form = await _form(request)
        return await self._entrance.by_key(
            request, str(form.get("key", "")), local_path(str(form.get("next", "")))
        )

    async def _logout(self, request: Request) -> Response:
        refuse_cross_site(request)
        return self._entrance.leave(request)

    async def _file(self, request: Request) -> Response:
        found = self._static.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "There is no such file.")
        body, kind = found
        return Response(body, media_type=kind, headers={"cache-control": "public, max-age=3600"})

    # What goes wrong

    async def _on_http_error(self, request: Request, problem: Exception) -> Response:
        assert isinstance(problem, HTTPException)  # noqa: S101
        return await self._problem(request, problem.status_code, problem.detail)

    async def _on_problem(self, request: Request, problem: Exception) -> Response:
        assert isinstance(problem, errors.HoldfastError)  # noqa: S101
        status = next((code for kind, code in _STATUS if isinstance(problem, kind)), 500)
        text = _late(problem) if isinstance(problem, errors.DatabaseError) else str(problem)
        return await self._problem(request, status, text)

    async def _on_surprise(self, request: Request, problem: Exception) -> Response:
        _log.error("unexpected %s on %s", type(problem).__name__, request.url.path, exc_info=problem)
        return await self._problem(request, 500, "Something went wrong on our side. It was logged.")

    async def _problem(self, request: Request, status: int, text: str) -> Response:
        view = await self._view(request, _path(request), request.query_params, {})
        if view is None:
            return Response(text, status, media_type="text/plain")
        page = Page(
            "problem.html", "This did not work", {"text": text, "code": status, "flash": None}, live=False
        )
        return Response(self.site.render(view, page), status, media_type="text/html")


def _late(problem: errors.HoldfastError) -> str:
    if "57014" in problem.message:
        return "The database took longer than two seconds. Narrow the search, or try again."
    return "The database does not answer. This page tries again by itself."


def _path(request: HTTPConnection) -> str:
    """The path below where we are mounted."""
    path, root = request.scope["path"], str(request.scope.get("root_path", "")).rstrip("/")
    inner = path[len(root) :] if root and path.startswith(root) else path
    return inner or "/"


async def _form(request: Request) -> FormData:
    """An ordinary form. Ours are never larger than a payload may be."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise HTTPException(413, "The form is too large.")
    pairs: list[tuple[str, str | UploadFile]] = []
    pairs += parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=5000)
    return FormData(pairs)


def _static_files() -> dict[str, tuple[bytes, str]]:
    folder = resources.files("holdfast.server.dashboard") / "static"
    return {
        entry.name: (entry.read_bytes(), _TYPES[entry.name[entry.name.rindex(".") :]])
        for entry in folder.iterdir()
        if entry.name.endswith(tuple(_TYPES))
    }
