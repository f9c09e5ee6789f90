"""The routes of the dashboard: every page, download and action, with the permission it needs.

A route cannot be registered without a permission, so nothing is reachable by accident. A test tries every
route with every role.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from starlette.routing import compile_path

from holdfast.server.dashboard.roles import ALL_PERMISSIONS
from holdfast.server.dashboard.site import (
    ActionFunction,
    DashboardPage,
    DownloadFunction,
    PageFunction,
    PageRequest,
)

F = TypeVar("F", bound=Callable[..., Any])
AllShardsDisplay: TypeAlias = Literal["sections", "merged", "first", "one_shard"]
"""What a page shows if there are several shards and the user has not picked one:

- sections: the page of each shard, one below the other
- merged: the function of the page reads all shards itself
- first: the page is about the user or the process, not about a shard
- one_shard: nothing; the page is opened on one shard, such as a form
"""
ShardHeaderFunction: TypeAlias = "Callable[[PageRequest, Mapping[int, DashboardPage]], DashboardPage]"
"""Builds what stands above the sections of a page, from the pages of the shards that answered."""


@dataclass(frozen=True)
class DashboardRoute:
    """A route of the dashboard: its path, the permission it needs, and the function that serves it."""

    path: str
    permission: str
    function: Any
    reads_replica: bool = False  # shows lists or numbers that may be some seconds old
    all_shards: AllShardsDisplay = "sections"
    build_shard_header: ShardHeaderFunction | None = None

    @property
    def path_pattern(self) -> re.Pattern[str]:
        return compile_path(self.path)[0]


PAGE_ROUTES: dict[str, DashboardRoute] = {}
DOWNLOAD_ROUTES: dict[str, DashboardRoute] = {}
ACTION_ROUTES: dict[str, DashboardRoute] = {}


def register_page(
    path: str,
    permission: str,
    *,
    reads_replica: bool = False,
    all_shards: AllShardsDisplay = "sections",
    build_shard_header: ShardHeaderFunction | None = None,
) -> Callable[[PageFunction], PageFunction]:
    """Register a function that builds the page for GET requests of `path`.

    `reads_replica` reads from the read replica if there is one: for lists, never for a form or one job.
    `all_shards` is what the page shows if there are several shards and none is picked. `build_shard_header`
    builds what stands above its sections then.
    """
    return _register_route(
        PAGE_ROUTES,
        path,
        permission,
        reads_replica=reads_replica,
        all_shards=all_shards,
        build_shard_header=build_shard_header,
    )


def register_download(path: str, permission: str) -> Callable[[DownloadFunction], DownloadFunction]:
    """Register a function that returns a response, such as a file, for GET requests of `path`."""
    return _register_route(DOWNLOAD_ROUTES, path, permission)


def register_action(path: str, permission: str) -> Callable[[ActionFunction], ActionFunction]:
    """Register a function that makes a change for POST requests of `path`."""
    return _register_route(ACTION_ROUTES, path, permission)


def _register_route(
    routes: dict[str, DashboardRoute],
    path: str,
    permission: str,
    **options: Any,
) -> Callable[[F], F]:
    if permission not in ALL_PERMISSIONS:
        raise ValueError(f"{path}: permission {permission!r} does not exist")
    if path in routes:
        raise ValueError(f"{path} is registered twice")

    def register_function(function: F) -> F:
        routes[path] = DashboardRoute(path, permission, function, **options)
        return function

    return register_function


def find_page_route(path: str) -> tuple[DashboardRoute, dict[str, str]] | None:
    """Return the page route that serves a path, with the path parameters, or None."""
    for route in PAGE_ROUTES.values():
        match = route.path_pattern.match(path)
        if match:
            return route, match.groupdict()
    return None
