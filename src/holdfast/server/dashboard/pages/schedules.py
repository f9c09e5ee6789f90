"""Schedules: in words, with their next times; run now, pause, resume, delete."""

from __future__ import annotations

from typing import Any

from holdfast.engine import insight, schedules
from holdfast.engine.connection import Connection
from holdfast.model import StoredSchedule
from holdfast.server.dashboard.cronwords import in_words
from holdfast.server.dashboard.registry import deed, screen
from holdfast.server.dashboard.site import Deed, Page, View


@screen("/schedules", "system.view")
async def every(view: View) -> Page:
    found = await schedules.list_schedules(view.connection, after=view.query.get("after"), limit=100)
    rows = [await _row(view.connection, one) for one in found]
    return Page(
        "schedules.html", "Schedules", {"rows": rows, "next": found[-1].name if len(found) == 100 else None}
    )


async def _row(on: Connection, one: StoredSchedule) -> dict[str, Any]:
    last = await insight.job_page(on, one.last_job, most=1) if one.last_job else None
    return {
        "schedule": one,
        "words": in_words(one.cron, one.every_s),
        "last": last,
        "times": await schedules.preview_schedule(on, one.name, 5) if one.paused_at is None else [],
    }


@deed("/schedules/run", "schedule.run")
async def run(asked: Deed) -> tuple[str, str]:
    name = asked.needed("name")
    made = await schedules.run_schedule(asked.connection, name)
    await asked.audit("schedule.run", name, job=str(made.id))
    return f"/jobs/{made.id}", f"{name} runs now."


@deed("/schedules/pause", "schedule.edit")
async def pause(asked: Deed) -> tuple[str, str]:
    name = asked.needed("name")
    done = await schedules.pause_schedule(asked.connection, name, asked.by)
    await asked.audit("schedule.pause", name, changed=done)
    return "/schedules", f"{name} is paused."


@deed("/schedules/resume", "schedule.edit")
async def resume(asked: Deed) -> tuple[str, str]:
    name = asked.needed("name")
    done = await schedules.resume_schedule(asked.connection, name)
    await asked.audit("schedule.resume", name, changed=done)
    return "/schedules", f"{name} is on again."


@deed("/schedules/delete", "schedule.edit")
async def delete(asked: Deed) -> tuple[str, str]:
    name = asked.needed("name")
    done = await schedules.delete_schedule(asked.connection, name)
    await asked.audit("schedule.delete", name, changed=done)
    return "/schedules", f"{name} is deleted."
