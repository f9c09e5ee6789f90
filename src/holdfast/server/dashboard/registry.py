"""Every page and every action of the dashboard, with the permission it needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.routing import compile_path

from holdfast.server.dashboard.roles import PERMISSIONS
from holdfast.server.dashboard.site import Action, Download, Screen

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    path: str
    permission: str
    function: Any

    @property
    def pattern(self) -> re.Pattern[str]:
        return compile_path(self.path)[0]


SCREENS: dict[str, Entry] = {}
DOWNLOADS: dict[str, Entry] = {}
DEEDS: dict[str, Entry] = {}


def screen(path: str, permission: str) -> Callable[[Screen], Screen]:
    return _registered(SCREENS, path, permission)


def download(path: str, permission: str) -> Callable[[Download], Download]:
    return _registered(DOWNLOADS, path, permission)


def deed(path: str, permission: str) -> Callable[[Action], Action]:
    return _registered(DEEDS, path, permission)


def _registered(into: dict[str, Entry], path: str, permission: str) -> Callable[[F], F]:
    if permission not in PERMISSIONS or path in into:
        raise ValueError(f"{path}: unknown permission, or registered twice")

    def register(function: F) -> F:
        into[path] = Entry(path, permission, function)
        return function

    return register


def screen_at(path: str) -> tuple[Entry, dict[str, str]] | None:
    for entry in SCREENS.values():
        found = entry.pattern.match(path)
        if found:
            return entry, found.groupdict()
    return None
