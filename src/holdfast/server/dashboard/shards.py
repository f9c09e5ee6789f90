"""The dashboard of an application with several shards.

Each shard has a whole dashboard at `/shards/<number>`, so a link or a form never reaches another shard. At
the top are the login and the pages of all shards (`shard_pages`). A path with an id leads to the shard of the
id. A change that names no shard is refused, except those that are made on all of them. Sessions of people are
on the first shard.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.datastructures import QueryParams
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.definitions.ids import shard_of
from holdfast.server.api.services import AppServices
from holdfast.server.dashboard.registry import PAGE_ROUTES
from holdfast.server.dashboard.shard_pages import AllShardsSite
from holdfast.server.dashboard.site import DashboardSite

_SHARD_PATH: Final = re.compile(r"/shards/(\d{1,3})(/.*)?")
_ID: Final = re.compile(r"/([0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12})(?:/|$)")
_LOGIN_PATHS: Final = frozenset({"/login", "/in", "/logout"})
# Changes that are made on all shards, or that are about the user and not about a shard.
_MERGED_CHANGES: Final = frozenset(
    {
        "/bulk",
        "/jobs/columns",
        "/queue/pause",
        "/queue/resume",
        "/settings",
        "/views/delete",
        "/views/save",
    }
)


class ShardedDashboard:
    """The ASGI application that leads each request to the dashboard of its shard, or to the merged pages."""

    def __init__(self, merged: ASGIApp, by_number: Mapping[int, ASGIApp]) -> None:
        self._merged = merged
        self._by_number = by_number
        self._first = next(iter(by_number))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._merged(scope, receive, send)
            return
        root = str(scope.get("root_path", "")).rstrip("/")
        path = str(scope["path"])[len(root) :] or "/"
        match = _SHARD_PATH.fullmatch(path)
        if match is not None and int(match[1]) in self._by_number:
            await self._serve_shard(int(match[1]), match[2] or "/", scope, receive, send)
        elif _is_merged(path, scope):
            await self._merged(scope, receive, send)
        elif scope.get("method") == "POST" and _ID.search(path) is None:
            text = "This change needs a shard. Pick a shard at the top of the dashboard and try again.\n"
            await PlainTextResponse(text, 400)(scope, receive, send)
        else:
            await self._redirect(self._find_target(path), scope, receive, send)

    async def _serve_shard(self, number: int, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        prefix = f"/shards/{number}"
        if path == "/login":  # people sign in once, for all shards
            target = QueryParams(scope["query_string"]).get("next", "/")
            await self._redirect(f"/login?next={quote(prefix + target, safe='')}", scope, receive, send, "")
        elif path == "/logout":
            root = str(scope.get("root_path", "")).rstrip("/")
            await self._merged({**scope, "path": f"{root}/logout"}, receive, send)
        else:
            root = str(scope.get("root_path", "")).rstrip("/")
            await self._by_number[number]({**scope, "root_path": root + prefix}, receive, send)

    def _find_target(self, path: str) -> str:
        match = _ID.search(path)
        number = shard_of(match[1]) if match is not None else self._first
        return f"/shards/{number if number in self._by_number else self._first}{path}"

    async def _redirect(
        self, target: str, scope: Scope, receive: Receive, send: Send, query: str | None = None
    ) -> None:
        query = scope["query_string"].decode("latin-1") if query is None else query
        root = str(scope.get("root_path", "")).rstrip("/")
        # 307 keeps the method: a form that was sent without a shard is sent to the right one.
        location = quote(root, safe="/~") + quote(target, safe="/~?=&%") + (f"?{query}" if query else "")
        await RedirectResponse(location, status_code=307)(scope, receive, send)


def build_dashboard(
    services: AppServices, environment: str, create: Callable[[DashboardSite], ASGIApp]
) -> ASGIApp:
    """Build the dashboard of one database, or one for each shard and one that shows all of them."""
    if services.shards is None:
        return create(DashboardSite(services, environment=environment))
    merged = AllShardsSite(services, environment=environment)
    merged.shard_numbers = list(services.shards.by_number)
    for number, own_services in services.shards.by_number.items():
        site = DashboardSite(own_services, environment=environment)
        site.shard, site.shard_numbers = number, merged.shard_numbers
        site.sessions = merged.sessions
        merged.shard_sites[number] = site
    by_number = {number: create(site) for number, site in merged.shard_sites.items()}
    return ShardedDashboard(create(merged), by_number)


def _is_merged(path: str, scope: Scope) -> bool:
    """Return whether the pages of all shards serve a request, instead of those of one shard."""
    if path in _LOGIN_PATHS or path.startswith("/static/") or path == "/jobs/export":
        return True
    if path.startswith("/sessions"):  # their ids do not name a shard
        return True
    if scope.get("method") == "POST":
        return path in _MERGED_CHANGES
    if path == "/live":
        path = urlsplit(QueryParams(scope["query_string"]).get("path", "")).path
    route = PAGE_ROUTES.get(path)
    return route is not None and "{" not in path and route.all_shards != "one_shard"
