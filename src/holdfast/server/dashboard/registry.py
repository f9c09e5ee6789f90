"""The routes of the dashboard: every page, download and action, with the permission it needs.

A route cannot be registered without a permission, so nothing is reachable by accident. A test tries every
route with every role.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.routing import compile_path

from holdfast.server.dashboard.roles import PERMISSIONS
from holdfast.server.dashboard.site import ActionFunction, DownloadFunction, PageFunction

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class DashboardRoute:
    """A path below the mount point, the permission it needs, and the function that serves it."""

    path: str
    permission: str
    function: Any

    @property
    def pattern(self) -> re.Pattern[str]:
        return compile_path(self.path)[0]


PAGES: dict[str, DashboardRoute] = {}
DOWNLOADS: dict[str, DashboardRoute] = {}
ACTIONS: dict[str, DashboardRoute] = {}


def register_page(path: str, permission: str) -> Callable[[PageFunction], PageFunction]:
    """Serve GET requests for `path` with a page."""
    return _register_route(PAGES, path, permission)


def register_download(path: str, permission: str) -> Callable[[DownloadFunction], DownloadFunction]:
    """Serve GET requests for `path` with a response of its own, such as a file."""
    return _register_route(DOWNLOADS, path, permission)


def register_action(path: str, permission: str) -> Callable[[ActionFunction], ActionFunction]:
    """Serve POST requests for `path` with a change."""
    return _register_route(ACTIONS, path, permission)


def _register_route(routes: dict[str, DashboardRoute], path: str, permission: str) -> Callable[[F], F]:
    if permission not in PERMISSIONS:
        raise ValueError(f"{path}: permission {permission!r} does not exist")
    if path in routes:
        raise ValueError(f"{path} is registered twice")

    def register(function: F) -> F:
        routes[path] = DashboardRoute(path, permission, function)
        return function

    return register


def find_page(path: str) -> tuple[DashboardRoute, dict[str, str]] | None:
    """Return the page that serves a path, with the values of the path's parameters."""
    for route in PAGES.values():
        match = route.pattern.match(path)
        if match:
            return route, match.groupdict()
    return None
