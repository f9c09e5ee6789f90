"""The page of one schedule: its next runs in two time zones, its past runs, and who changed it."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from holdfast.engine import audit, schedules, search
from holdfast.formatting import seconds_between
from holdfast.search import quote_search_value
from holdfast.server.dashboard.registry import register_page
from holdfast.server.dashboard.schedule_text import describe_schedule
from holdfast.server.dashboard.site import DashboardPage, PageRequest

PREVIEWED_RUN_COUNT = 10
MAX_PAST_RUNS = 20


@register_page("/schedules/show", "system.view")
async def show_schedule(request: PageRequest) -> DashboardPage:
    connection = request.connection
    schedule = await schedules.get_schedule(connection, request.query.get("name", ""))
    next_runs: list[datetime] = []
    if schedule.paused_at is None:
        next_runs = list(await schedules.preview_schedule(connection, schedule.name, PREVIEWED_RUN_COUNT))
    query = f"tag:{quote_search_value(f'schedule={schedule.name}')}"
    past = await search.search_jobs(connection, query, limit=MAX_PAST_RUNS)
    changes = (
        await audit.list_audit_entries_of_target(connection, "schedule", schedule.name)
        if request.can("audit.view")
        else []
    )
    return DashboardPage(
        "schedule.html",
        f"Schedule {schedule.name}",
        {
            "schedule": schedule,
            "description": describe_schedule(schedule.cron, schedule.every_s),
            "next_runs": [(at, format_zone_time(at, schedule.timezone)) for at in next_runs],
            "past_runs": [
                {**row, "took_s": seconds_between(row.get("started_at"), row.get("finished_at"))}
                for row in past.rows
            ],
            "runs_query": query,
            "changes": changes,
        },
    )


def format_zone_time(at: datetime, timezone: str) -> str:
    """Format a time in the zone of a schedule, with the day of the week and the abbreviation of the zone."""
    return at.astimezone(ZoneInfo(timezone)).strftime("%a %Y-%m-%d %H:%M %Z")
