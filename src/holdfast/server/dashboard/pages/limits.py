"""Limits: how many at once and how often, and who holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.engine import limits, operate
from holdfast.engine.limits import Limit
from holdfast.errors import InvalidError
from holdfast.server.dashboard.registry import deed, screen
from holdfast.server.dashboard.site import Deed, Page, View
from holdfast.server.dashboard.words import between


@screen("/limits", "system.view")
async def every(view: View) -> Page:
    found = await operate.list_limits(view.connection)
    return Page("limits.html", "Limits", {"rows": [{**row, "state": _state(view, row)} for row in found]})


def _state(view: View, row: Mapping[str, Any]) -> str:
    if (between(view.now, row["asleep_until"]) or 0) > 0:
        return "asleep"
    most = row["max_running"]
    return "full" if most is not None and not row["per_key"] and row["running"] >= most else "free"


def _number(asked: Deed, name: str) -> float | None:
    text = asked.text(name)
    try:
        return float(text) if text else None
    except ValueError:
        raise InvalidError(f"{name} must be a number.", field=name) from None


@deed("/limits/set", "queue.limit")
async def put(asked: Deed) -> tuple[str, str]:
    most = _number(asked, "max_running")
    limit = Limit(
        name=asked.needed("name"),
        queue=asked.text("queue") or None,
        type=asked.text("type") or None,
        per_key=asked.text("per_key") == "yes",
        max_running=None if most is None else int(most),
        rate=_number(asked, "rate"),
        burst=_number(asked, "burst"),
    )
    await limits.put_limit(asked.connection, limit)
    await asked.audit(
        "limit.set", limit.name, max_running=limit.max_running, rate=limit.rate, queue=limit.queue
    )
    return "/limits", f"{limit.name} is set."


@deed("/limits/remove", "queue.limit")
async def remove(asked: Deed) -> tuple[str, str]:
    name = asked.needed("name")
    done = await limits.remove_limit(asked.connection, name)
    await asked.audit("limit.remove", name, changed=done)
    return "/limits", f"{name} is removed." if done else f"There is no limit {name}."
