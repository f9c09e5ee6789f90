"""The error pages. An error group is all failed attempts with the same cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from starlette.exceptions import HTTPException

from holdfast.engine import bulk_actions, error_groups
from holdfast.errors import InvalidError
from holdfast.search import quote_search_value
from holdfast.server.dashboard.flash import ActionResult, UndoAction
from holdfast.server.dashboard.job_redaction import create_job_redactors, redact_error_groups
from holdfast.server.dashboard.pages.job import redact_attempt
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest, build_dashboard_url

ERROR_TIME_RANGES_H = {"1h": 1, "24h": 24, "7d": 168, "30d": 720}
# Values that the form submits, with their labels and their length in hours.
IGNORE_PERIOD_OPTIONS = {
    "1h": ("1 hour", 1),
    "1d": ("1 day", 24),
    "7d": ("7 days", 168),
    "30d": ("30 days", 720),
    "always": ("Always", 24 * 36500),
}


@register_page("/errors", "errors.view", reads_replica=True)
async def list_errors(request: PageRequest) -> DashboardPage:
    time_range = request.query.get("span", "24h")
    hours = ERROR_TIME_RANGES_H.get(time_range, 24)
    show_ignored = request.query.get("ignored") == "yes"
    groups = await error_groups.list_error_groups(
        request.connection,
        since=request.now - timedelta(hours=hours),
        owner=request.tenant,
        ignored=show_ignored,
    )
    return DashboardPage(
        "errors.html",
        "Errors",
        {
            "groups": await redact_error_groups(request, groups),
            "time_ranges": list(ERROR_TIME_RANGES_H),
            "time_range": time_range if time_range in ERROR_TIME_RANGES_H else "24h",
            "show_ignored": show_ignored,
        },
    )


@register_page("/error", "errors.view", reads_replica=True)
async def show_error(request: PageRequest) -> DashboardPage:
    cause = request.query.get("cause", "")
    group = await error_groups.get_error_group(request.connection, cause, owner=request.tenant)
    if group is None:
        raise HTTPException(404, "No attempt failed with this error in the last 7 days.")
    query = f"cause:{quote_search_value(cause)}"
    retryable = await bulk_actions.preview_bulk_action(
        request.connection, "retry", query, owner=request.tenant
    )
    return DashboardPage(
        "error.html",
        group.get("type") or cause,
        {
            "group": (await redact_error_groups(request, [group]))[0],
            "attempts": await _redact_error_samples(request, group["samples"]),
            "retryable": retryable,
            "jobs_query": query,
            "ignore_options": {value: label for value, (label, _) in IGNORE_PERIOD_OPTIONS.items()},
        },
    )


async def _redact_error_samples(
    request: PageRequest, samples: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    redactors = await create_job_redactors(request, (sample["job"] for sample in samples))
    return [
        {
            **redact_attempt(sample, redactors[sample["job"]]),
            "args": redactors[sample["job"]].redact_payload(sample.get("args")),
        }
        for sample in samples
    ]


@register_action("/error/ignore", "errors.ignore")
async def ignore_error(action: ActionRequest) -> ActionResult:
    """Ignore an error group for the chosen period. The choice `never` stops ignoring it."""
    cause, value = action.get_required_text("cause"), action.get_text("span")
    if value not in {*IGNORE_PERIOD_OPTIONS, "never"}:
        raise InvalidError("Choose how long to ignore the error group.", field="span")
    hours = None if value == "never" else IGNORE_PERIOD_OPTIONS[value][1]
    until = None if hours is None else action.request.now + timedelta(hours=hours)
    reason, link = action.get_text("reason"), action.get_text("link") or None
    await error_groups.ignore_error_group(
        action.connection, cause, until=until, by=action.actor_name, reason=reason, link=link
    )
    await action.record_audit("error.ignore", cause, span=value, reason=reason, link=link)
    message = "The error is no longer ignored." if until is None else "The error is ignored."
    undo = None if until is None else UndoAction("/error/ignore", {"cause": cause, "span": "never"})
    return ActionResult(build_dashboard_url("/error", cause=cause), message, undo)
