"""Errors: causes, not rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from starlette.exceptions import HTTPException

from holdfast.engine import search
from holdfast.errors import InvalidError
from holdfast.search import quoted
from holdfast.server.dashboard.pages.job import frames
from holdfast.server.dashboard.registry import deed, screen
from holdfast.server.dashboard.site import Deed, Page, View

SPANS = {"1h": 1, "24h": 24, "7d": 168, "30d": 720}
IGNORED = {"1h": 1, "1d": 24, "7d": 168, "30d": 720, "always": 24 * 36500}


@screen("/errors", "errors.view")
async def errors(view: View) -> Page:
    span = view.query.get("span", "24h")
    hours = SPANS.get(span, 24)
    ignored = view.query.get("ignored") == "yes"
    groups = await search.error_groups(
        view.connection, since=view.now - timedelta(hours=hours), owner=view.tenant, ignored=ignored
    )
    redactor = view.redactor()
    return Page(
        "errors.html",
        "Errors",
        {
            "groups": [{**group, "message": redactor.text(group.get("message"))} for group in groups],
            "spans": list(SPANS),
            "span": span if span in SPANS else "24h",
            "ignored": ignored,
        },
    )


@screen("/error", "errors.view")
async def error(view: View) -> Page:
    cause = view.query.get("cause", "")
    group = await search.error_group(view.connection, cause, owner=view.tenant)
    if group is None:
        raise HTTPException(404, "Nothing failed from this cause within seven days.")
    query = f"cause:{quoted(cause)}"
    failed = await search.bulk_preview(view.connection, "retry", query, owner=view.tenant)
    return Page(
        "error.html",
        group.get("type") or cause,
        {
            "group": {**group, "message": view.redactor().text(group.get("message"))},
            "samples": [_sample(view, one) for one in group["samples"]],
            "failed": failed,
            "query": query,
            "spans": list(IGNORED),
        },
    )


def _sample(view: View, one: Mapping[str, Any]) -> dict[str, Any]:
    redactor = view.redactor()
    redactor.learn(one.get("args"))
    trace = redactor.text(one.get("traceback"))
    return {
        **one,
        "message": redactor.text(one.get("message")),
        "frames": frames(trace),
        "traceback": trace,
        "args": redactor.payload(one.get("args")),
    }


@deed("/error/ignore", "errors.ignore")
async def ignore(asked: Deed) -> tuple[str, str]:
    cause, span = asked.needed("cause"), asked.text("span")
    if span not in {*IGNORED, "never"}:
        raise InvalidError("Choose for how long.", field="span")
    until = None if span == "never" else asked.view.now + timedelta(hours=IGNORED[span])
    link = asked.text("link") or None
    await search.ignore_cause(
        asked.connection, cause, until=until, by=asked.by, why=asked.text("why"), link=link
    )
    await asked.audit("error.ignore", cause, span=span, why=asked.text("why"), link=link)
    back = asked.view.url("/error", cause=cause)[len(asked.view.base) :]
    return back, "Shown again." if until is None else f"Ignored: {span}."
