"""The schedule list: when each schedule runs; run now, pause, resume and delete."""

from __future__ import annotations

from typing import Any

from holdfast.engine import job_detail, schedules
from holdfast.engine.connection import Connection
from holdfast.model import StoredSchedule
from holdfast.server.dashboard.flash import ActionResult, UndoAction
from holdfast.server.dashboard.pages.schedule_detail import format_zone_time
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.schedule_text import describe_schedule
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest

SCHEDULES_PER_PAGE = 100
PREVIEWED_RUN_COUNT = 5


@register_page("/schedules", "system.view")
async def list_schedules(request: PageRequest) -> DashboardPage:
    page = await schedules.list_schedules(
        request.connection, after=request.query.get("after"), limit=SCHEDULES_PER_PAGE
    )
    rows = [await _build_schedule_row(request.connection, schedule) for schedule in page]
    next_name = page[-1].name if len(page) == SCHEDULES_PER_PAGE else None
    return DashboardPage("schedules.html", "Schedules", {"rows": rows, "next": next_name})


async def _build_schedule_row(connection: Connection, schedule: StoredSchedule) -> dict[str, Any]:
    last_job = (
        await job_detail.get_job_detail(connection, schedule.last_job, max_tasks=1)
        if schedule.last_job
        else None
    )
    next_runs = (
        await schedules.preview_schedule(connection, schedule.name, PREVIEWED_RUN_COUNT)
        if schedule.paused_at is None
        else []
    )
    return {
        "schedule": schedule,
        "description": describe_schedule(schedule.cron, schedule.every_s),
        "last_job": last_job,
        "next_runs": [(at, format_zone_time(at, schedule.timezone)) for at in next_runs],
    }


@register_action("/schedules/run", "schedule.run")
async def run_schedule(action: ActionRequest) -> tuple[str, str]:
    name = action.get_required_text("name")
    submitted = await schedules.run_schedule(action.connection, name)
    await action.record_audit("schedule.run", name, job=str(submitted.id))
    return f"/jobs/{submitted.id}", f"Job of schedule {name} submitted."


@register_action("/schedules/pause", "schedule.edit")
async def pause_schedule(action: ActionRequest) -> ActionResult:
    name = action.get_required_text("name")
    changed = await schedules.pause_schedule(action.connection, name, action.actor_name)
    await action.record_audit("schedule.pause", name, changed=changed)
    undo = UndoAction("/schedules/resume", {"name": name}) if changed else None
    return ActionResult("/schedules", f"Schedule {name} paused.", undo)


@register_action("/schedules/resume", "schedule.edit")
async def resume_schedule(action: ActionRequest) -> ActionResult:
    name = action.get_required_text("name")
    changed = await schedules.resume_schedule(action.connection, name)
    await action.record_audit("schedule.resume", name, changed=changed)
    undo = UndoAction("/schedules/pause", {"name": name}) if changed else None
    return ActionResult("/schedules", f"Schedule {name} resumed.", undo)


@register_action("/schedules/delete", "schedule.edit")
async def delete_schedule(action: ActionRequest) -> tuple[str, str]:
    name = action.get_required_text("name")
    deleted = await schedules.delete_schedule(action.connection, name)
    await action.record_audit("schedule.delete", name, changed=deleted)
    return "/schedules", f"Schedule {name} deleted."
