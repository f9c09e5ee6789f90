"""The main navigation: every section with its label, permission and keyboard shortcut."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class NavigationLink(NamedTuple):
    """A link in the sidebar, with its permission and keyboard shortcut.

    The keys `g` and `shortcut` open the link. `prefixes` are further paths that belong to it.
    """

    path: str
    label: str
    permission: str
    shortcut: str
    prefixes: tuple[str, ...] = ()

    def is_current(self, path: str) -> bool:
        """Return whether a request path belongs to this sidebar link."""
        if self.path == "/":
            return path == "/"
        return path == self.path or path.startswith((f"{self.path}/", *self.prefixes))


NAVIGATION_LINKS_BY_GROUP = {
    "Monitor": (
        NavigationLink("/", "Overview", "jobs.view", "o"),
        NavigationLink("/charts", "Charts", "system.view", "c"),
        NavigationLink("/alerts", "Alerts", "system.view", "r"),
        NavigationLink("/jobs", "Jobs", "jobs.view", "j"),
        NavigationLink("/errors", "Errors", "errors.view", "e", ("/error",)),
        NavigationLink("/bulk", "Batches and bulk actions", "batch.view", "b", ("/batches",)),
        NavigationLink("/files", "Files", "artifact.view", "f"),
    ),
    "Manage": (
        NavigationLink("/queues", "Queues", "system.view", "q", ("/queue",)),
        NavigationLink("/tasks", "Tasks", "system.view", "t", ("/task",)),
        NavigationLink("/schedules", "Schedules", "system.view", "s"),
        NavigationLink("/messages", "Messages", "message.view", "m"),
        NavigationLink("/limits", "Limits", "system.view", "l"),
        NavigationLink("/webhooks", "Webhooks", "system.view", "h"),
    ),
    "System": (
        NavigationLink("/workers", "Workers", "system.view", "w", ("/worker",)),
        NavigationLink("/database", "Database", "system.view", "d"),
        NavigationLink("/audit", "Audit log", "audit.view", "a"),
        NavigationLink("/sessions", "Sessions", "session.view", "n"),
        NavigationLink("/settings", "Settings", "settings.edit", ","),
    ),
}


def filter_navigation_links(can: Callable[[str], bool]) -> dict[str, list[NavigationLink]]:
    """Return the sidebar links that a user may open, by group title. Empty groups are left out."""
    visible = {
        title: [link for link in links if can(link.permission)]
        for title, links in NAVIGATION_LINKS_BY_GROUP.items()
    }
    return {title: links for title, links in visible.items() if links}
