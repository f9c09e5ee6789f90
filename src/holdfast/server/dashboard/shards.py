"""The dashboard of an application with several shards.

Each shard has a whole dashboard at `/shards/<number>`, so a link or a form never reaches another shard. At
the top are the login, the list of jobs of all shards, and redirects: a path with an id leads to the shard of
the id, any other path to the first shard. Sessions of people are on the first shard.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final, TypeVar
from urllib.parse import quote, urlsplit

from starlette.datastructures import QueryParams
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.definitions.ids import shard_of
from holdfast.errors import DatabaseError, DatabaseUnavailableError
from holdfast.server.api.services import AppServices
from holdfast.server.dashboard.site import DashboardSite, PageRequest

T = TypeVar("T")
SHARD_READ_TIMEOUT_S: Final = 5.0
_SHARD_PATH: Final = re.compile(r"/shards/(\d{1,3})(/.*)?")
_ID: Final = re.compile(r"/([0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12})(?:/|$)")
_MERGED_PATHS: Final = frozenset({"/jobs", "/login", "/in", "/logout"})


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
        elif path in _MERGED_PATHS or path.startswith("/static/") or _is_merged_stream(path, scope):
            await self._merged(scope, receive, send)
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
        if path == "/":
            return "/jobs"
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
    """Build the dashboard of one database, or one for each shard and one that shows the jobs of all."""
    merged = DashboardSite(services, environment=environment)
    if services.shards is None:
        return create(merged)
    merged.shard_numbers = list(services.shards.by_number)
    for number, own_services in services.shards.by_number.items():
        site = DashboardSite(own_services, environment=environment)
        site.shard, site.shard_numbers = number, merged.shard_numbers
        site.sessions = merged.sessions
        merged.shard_sites[number] = site
    by_number = {number: create(site) for number, site in merged.shard_sites.items()}
    return ShardedDashboard(create(merged), by_number)


def _is_merged_stream(path: str, scope: Scope) -> bool:
    shown = QueryParams(scope["query_string"]).get("path", "")
    return path == "/live" and urlsplit(shown).path == "/jobs"


async def read_all_shards(
    request: PageRequest, read: Callable[[PageRequest], Awaitable[T]]
) -> tuple[dict[int, T], list[int]]:
    """Read from all shards at once, each in its own transaction. Return what was read, and missing shards."""

    async def read_one(site: DashboardSite) -> T:
        own_request = replace(request, site=site)
        async with asyncio.timeout(SHARD_READ_TIMEOUT_S), site.transaction() as connection:
            own_request.connection = connection
            return await read(own_request)

    sites = request.site.shard_sites
    results = await asyncio.gather(*map(read_one, sites.values()), return_exceptions=True)
    rows: dict[int, T] = {}
    for number, result in zip(sites, results, strict=True):
        if isinstance(result, BaseException) and not isinstance(result, (DatabaseError, TimeoutError)):
            raise result
        if not isinstance(result, BaseException):
            rows[number] = result
    if not rows:
        raise DatabaseUnavailableError("No shard answered.")
    return rows, [number for number in sites if number not in rows]
