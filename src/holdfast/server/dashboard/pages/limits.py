"""The limits page: how many tasks may run at once and how often they may start, and what is in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.engine import limits
from holdfast.engine.limits import LimitRule
from holdfast.formatting import seconds_between
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest


@register_page("/limits", "system.view")
async def list_limits(request: PageRequest) -> DashboardPage:
    rows = await limits.list_limits(request.connection)
    return DashboardPage(
        "limits.html", "Limits", {"rows": [{**row, "state": _get_limit_state(request, row)} for row in rows]}
    )


def _get_limit_state(request: PageRequest, row: Mapping[str, Any]) -> str:
    """Return the state of a limit: `paused`, `full` or `available`.

    A limit per key has no common maximum, so it is never full.
    """
    if (seconds_between(request.now, row["paused_until"]) or 0) > 0:
        return "paused"
    max_running = row["max_running"]
    is_full = max_running is not None and not row["per_key"] and row["running"] >= max_running
    return "full" if is_full else "available"


@register_action("/limits/set", "queue.limit")
async def set_limit(action: ActionRequest) -> tuple[str, str]:
    max_running = action.get_number("max_running")
    limit = LimitRule(
        name=action.get_required_text("name"),
        queue=action.get_text("queue") or None,
        type=action.get_text("type") or None,
        per_key=action.get_text("per_key") == "yes",
        max_running=None if max_running is None else int(max_running),
        rate=action.get_number("rate"),
        burst=action.get_number("burst"),
    )
    await limits.put_limit(action.connection, limit)
    await action.record_audit(
        "limit.set", limit.name, max_running=limit.max_running, rate=limit.rate, queue=limit.queue
    )
    return "/limits", f"Limit {limit.name} saved."


@register_action("/limits/remove", "queue.limit")
async def delete_limit(action: ActionRequest) -> tuple[str, str]:
    name = action.get_required_text("name")
    removed = await limits.delete_limit(action.connection, name)
    await action.record_audit("limit.remove", name, changed=removed)
    return "/limits", f"Limit {name} removed." if removed else f"Limit {name} does not exist."
