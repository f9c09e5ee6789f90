"""The database page: schema version, table sizes, retention, problems, and what delays clean-up."""

from __future__ import annotations

from holdfast.engine import overview, schema
from holdfast.formatting import seconds_between
from holdfast.server.dashboard.registry import register_page
from holdfast.server.dashboard.site import DashboardPage, PageRequest


@register_page("/database", "system.view")
async def show_database(request: PageRequest) -> DashboardPage:
    health = await overview.get_database_health(request.connection)
    installed = max((migration["version"] for migration in health["migrations"] or ()), default=0)
    return DashboardPage(
        "database.html",
        "Database",
        {
            "health": health,
            "maintenance_problems": await overview.list_maintenance_problems(request.connection),
            "installed_version": installed,
            "expected_version": schema.load_packaged_schema().latest_version,
            "clock_difference_s": seconds_between(request.now, health["clock"]),
        },
    )
