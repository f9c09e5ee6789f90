"""Database: does the schema fit, what is large, what holds it up."""

from __future__ import annotations

from holdfast.engine import insight, schema
from holdfast.server.dashboard.registry import screen
from holdfast.server.dashboard.site import Page, View
from holdfast.server.dashboard.words import between


@screen("/database", "system.view")
async def database(view: View) -> Page:
    found = await insight.database_page(view.connection)
    installed = max((m["version"] for m in found["migrations"] or ()), default=0)
    return Page(
        "database.html",
        "Database",
        {
            "db": found,
            "installed": installed,
            "wanted": schema.packaged().latest,
            "skew_s": between(view.now, found["clock"]),
        },
    )
