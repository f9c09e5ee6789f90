"""The limits page: how many tasks may run at once and how often they may start, and what is in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.definitions.validation import format_name_suggestion
from holdfast.engine import audit, limits
from holdfast.engine.limits import LimitRule
from holdfast.errors import NotFoundError
from holdfast.formatting import seconds_between
from holdfast.server.dashboard.flash import ActionResult, UndoAction
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest

_LIMIT_FIELDS = ("name", "queue", "type", "max_running", "rate", "burst")


@register_page("/limits", "system.view")
async def list_limits(request: PageRequest) -> DashboardPage:
    rows = await limits.list_limits(request.connection)
    name = request.query.get("history", "")
    changes = (
        await audit.list_audit_entries_of_target(request.connection, "limit", name)
        if name and request.can("audit.view")
        else []
    )
    values = {
        "rows": [{**row, "state": _get_limit_state(request, row)} for row in rows],
        "history_name": name if request.can("audit.view") else "",
        "changes": changes,
    }
    return DashboardPage("limits.html", "Limits", values)


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
async def set_limit(action: ActionRequest) -> ActionResult:
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
    rows = await limits.list_limits(action.connection)
    before = next((row for row in rows if row["name"] == limit.name), None)
    if action.get_text("allow_new") != "yes":
        fix = "Choose “Accept names that do not exist yet” to declare a limit before its first task."
        await limits.require_names_of_limit(action.connection, limit, fix=fix)
    await limits.put_limit(action.connection, limit)
    await action.record_audit(
        "limit.set",
        limit.name,
        max_running=limit.max_running,
        rate=limit.rate,
        burst=limit.burst,
        queue=limit.queue,
        type=limit.type,
    )
    undo = _build_undo(before) if before is not None else None
    return ActionResult("/limits", f"Limit {limit.name} saved.", undo)


def _build_undo(limit: Mapping[str, Any]) -> UndoAction:
    """Return the form that stores a limit again as it was."""
    fields = {field: str(limit[field]) for field in _LIMIT_FIELDS if limit.get(field) is not None}
    fields["allow_new"] = "yes"  # as it was, whatever exists by now
    return UndoAction("/limits/set", fields | ({"per_key": "yes"} if limit["per_key"] else {}))


@register_action("/limits/remove", "queue.limit")
async def delete_limit(action: ActionRequest) -> ActionResult:
    name = action.get_required_text("name")
    rows = await limits.list_limits(action.connection)
    limit = next((row for row in rows if row["name"] == name), None)
    if limit is None:
        suggestion = format_name_suggestion(name, [row["name"] for row in rows])
        raise NotFoundError(f"Limit {name!r} does not exist{suggestion}", field="name")
    await limits.delete_limit(action.connection, name)
    await action.record_audit("limit.remove", name, changed=True)
    return ActionResult("/limits", f"Limit {name} removed.", _build_undo(limit))
