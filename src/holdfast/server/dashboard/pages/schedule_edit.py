"""Edit a schedule: its times, its policy for missed runs and its job, with a preview before saving."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.engine import schedules
from holdfast.engine.connection import translate_driver_errors
from holdfast.errors import HoldfastError, InvalidError
from holdfast.model import StoredSchedule
from holdfast.server.dashboard.filters import format_json
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.schedule_text import describe_schedule
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest

PREVIEWED_RUN_COUNT = 5
MAX_SCHEDULE_FIELD_CHARS = 100_000
MISSED_RUN_POLICIES = {
    "coalesce": "Run once",
    "skip": "Skip",
    "catch_up": "Run all",
}
SCHEDULE_FIELDS = ("cron", "every_s", "timezone", "missed", "max_catch_up", "job")
SCHEDULE_FIELD_LABELS = {"every_s": "Interval", "max_catch_up": "Maximum catch-up runs"}


@register_page("/schedules/edit", "schedule.edit", all_shards="one_shard")
async def show_schedule_form(request: PageRequest) -> DashboardPage:
    schedule = await schedules.get_schedule(request.connection, request.query.get("name", ""))
    next_runs = await schedules.preview_schedule(request.connection, schedule.name, PREVIEWED_RUN_COUNT)
    return _build_edit_page(schedule, _get_schedule_form_values(schedule), next_runs)


def _build_edit_page(
    schedule: StoredSchedule,
    values: dict[str, str],
    next_runs: Sequence[datetime],
    error: HoldfastError | None = None,
) -> DashboardPage:
    description = ""
    if error is None:
        description = describe_schedule(
            values["cron"] or None, _parse_positive_number(values["every_s"], "every_s")
        )
    return DashboardPage(
        "schedule_edit.html",
        f"Schedule {schedule.name}",
        {
            "schedule": schedule,
            "values": values,
            "next_runs": next_runs,
            "description": description,
            "missed_run_policies": MISSED_RUN_POLICIES,
            "error": error,
        },
        live=False,
        status=200 if error is None else 422,
    )


def _get_schedule_form_values(schedule: StoredSchedule) -> dict[str, str]:
    return {
        "cron": schedule.cron or "",
        "every_s": "" if schedule.every_s is None else f"{schedule.every_s:g}",
        "timezone": schedule.timezone,
        "missed": schedule.missed,
        "max_catch_up": str(schedule.max_catch_up),
        "job": format_json(schedule.job),
    }


@register_action("/schedules/edit", "schedule.edit")
async def save_schedule(action: ActionRequest) -> tuple[str, str] | DashboardPage:
    """Save a changed schedule. With the form field `preview`, only show its next run times."""
    connection, name = action.connection, action.get_required_text("name")
    schedule = await schedules.get_schedule(connection, name)
    values = {field: action.get_text(field, max_chars=MAX_SCHEDULE_FIELD_CHARS) for field in SCHEDULE_FIELDS}
    is_preview = action.get_text("preview") == "yes"
    try:
        changed = _parse_schedule_form(schedule, values)
        with translate_driver_errors(action.request.site.services.database.url):
            async with connection.transaction():
                next_runs = await schedules.list_next_run_times(
                    connection,
                    cron=changed["cron"],
                    every_s=changed["every_s"],
                    timezone=changed["timezone"],
                    count=PREVIEWED_RUN_COUNT,
                )
                if not is_preview:
                    await schedules.put_schedule(connection, changed)
    except InvalidError as error:
        return _build_edit_page(schedule, values, [], error)
    if is_preview:
        return _build_edit_page(schedule, values, next_runs)
    await action.record_audit(
        "schedule.edit", name, **_build_audit_details(_get_schedule_form_values(schedule), values)
    )
    return "/schedules", f"Schedule {name} saved."


def _parse_schedule_form(schedule: StoredSchedule, values: dict[str, str]) -> dict[str, Any]:
    if bool(values["cron"]) == bool(values["every_s"]):
        raise InvalidError("Enter either a cron expression or an interval, not both.", field="cron")
    try:
        job = msgspec.json.decode(values["job"], type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidError(f"The job is not a valid JSON object: {error}.", field="job") from None
    if values["missed"] not in MISSED_RUN_POLICIES:
        raise InvalidError("Choose what happens to missed runs.", field="missed")
    max_catch_up = _parse_positive_number(values["max_catch_up"], "max_catch_up")
    return {
        "name": schedule.name,
        "owner": schedule.owner,
        "job": job,
        "cron": values["cron"] or None,
        "every_s": _parse_positive_number(values["every_s"], "every_s"),
        "timezone": values["timezone"] or "UTC",
        "missed": values["missed"],
        "max_catch_up": None if max_catch_up is None else int(max_catch_up),
    }


def _parse_positive_number(text: str, field: str) -> float | None:
    try:
        number = float(text) if text else None
    except ValueError:
        number = float("nan")
    if number is not None and not 0 < number < 1e9:
        raise InvalidError(f"{SCHEDULE_FIELD_LABELS[field]} must be a number greater than zero.", field=field)
    return number


def _build_audit_details(before: dict[str, str], after: dict[str, str]) -> dict[str, Any]:
    """Return the changed fields of a schedule for the audit log, without the content of its job."""
    changed = {name: after[name] for name in SCHEDULE_FIELDS if name != "job" and after[name] != before[name]}
    return {**changed, "was": before["cron"] or before["every_s"], "job": after["job"] != before["job"]}
