"""What was done by whom, and how a visitor likes the pages to look."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from holdfast.engine import access
from holdfast.server.dashboard.registry import deed, screen
from holdfast.server.dashboard.roles import PERMISSIONS, ROLES
from holdfast.server.dashboard.site import Deed, Page, View, redirect

CHOICES = {
    "theme": ("system", "light", "dark"),
    "time": ("relative", "utc"),
    "density": ("normal", "dense"),
    "keys": ("on", "off"),
    "previews": ("on", "off"),
}
LIMIT = 100


@screen("/audit", "audit.view")
async def audit(view: View) -> Page:
    given = view.query.get("before", "")
    before = int(given) if given.isdigit() and len(given) < 19 else None
    rows = await access.list_audit(view.connection, before=before, limit=LIMIT)
    return Page("audit.html", "Audit", {"rows": rows, "next": rows[-1].id if len(rows) == LIMIT else None})


@screen("/settings", "settings.edit")
async def settings(view: View) -> Page:
    chosen: dict[str, Any] = {
        name: view.cookies.get(f"holdfast_{name}", options[0]) for name, options in CHOICES.items()
    }
    return Page(
        "settings.html",
        "Settings",
        {"choices": CHOICES, "chosen": chosen, "roles": ROLES, "permissions": PERMISSIONS},
        live=False,
    )


@deed("/settings", "settings.edit")
async def choose(asked: Deed) -> Response:
    """The choices are cookies: they belong to the browser, not to the person."""
    answer = redirect(asked.view.site, asked.view, "/settings", "Saved.")
    for name, options in CHOICES.items():
        value = asked.text(name)
        if value in options:
            answer.set_cookie(
                f"holdfast_{name}", value, max_age=365 * 86400, samesite="lax", path=asked.view.base or "/"
            )
    return answer
