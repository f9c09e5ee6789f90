"""The page of charts: ended tasks by queue, task type, worker or owner, and those of one name."""

from __future__ import annotations

from typing import Any, Final

from holdfast.engine.overview import SampledKind
from holdfast.search import quote_search_value
from holdfast.server.dashboard import named_charts
from holdfast.server.dashboard.registry import register_page
from holdfast.server.dashboard.site import DashboardPage, PageRequest, build_dashboard_url
from holdfast.server.dashboard.time_ranges import parse_time_range

# The value of `by` in the address, with the kind of samples, the word for one and the field of the search.
CHART_KINDS: Final[dict[str, tuple[SampledKind, str, str]]] = {
    "queue": ("queue", "Queue", "queue"),
    "task": ("type", "Task", "task"),
    "worker": ("worker", "Worker", "worker"),
    "owner": ("owner", "Owner", "owner"),
}
DEFAULT_CHART_KIND: Final = "queue"
# Kinds that have a page of their own, which shows more than a chart.
DETAIL_PATHS: Final = {"queue": "/queue", "task": "/task", "worker": "/worker"}


@register_page("/charts", "system.view", reads_replica=True, all_shards="merged")
async def show_charts(request: PageRequest) -> DashboardPage:
    by = request.query.get("by", DEFAULT_CHART_KIND)
    by = by if by in CHART_KINDS else DEFAULT_CHART_KIND
    kind, noun, search_field = CHART_KINDS[by]
    # A user who sees the jobs of one owner only does not see the names of others.
    name = request.tenant if by == "owner" and request.tenant else request.query.get("name") or None
    time_range = parse_time_range(request)
    stats = await named_charts.load_named_stats(request, time_range, kind, name)
    title = f"{noun} {name}" if name else f"Charts by {noun.lower()}"
    values: dict[str, Any] = {
        "title_text": title,
        "missing_shards": stats.missing_shards,
        "by": by,
        "kinds": {key: word for key, (_, word, _) in CHART_KINDS.items()},
        "noun": noun,
        "name": name,
        "rows": [] if name else [_add_links(row, by, search_field) for row in stats.rows],
        "has_run_times": kind in {"worker", "owner"},
        "jobs_query": f"{search_field}:{quote_search_value(name)}" if name else "",
        "detail_link": build_dashboard_url(DETAIL_PATHS[by], name=name)
        if name and by in DETAIL_PATHS
        else "",
        "time_range": time_range,
        "main_chart": named_charts.build_outcome_chart(stats)
        if name
        else named_charts.build_throughput_chart_by_name(stats, f"Throughput by {noun.lower()}"),
        "run_time_chart": named_charts.build_run_time_chart(stats, is_wide=not name),
    }
    return DashboardPage("charts.html", title, values)


def _add_links(row: dict[str, Any], by: str, search_field: str) -> dict[str, Any]:
    """Add the place of a name and the search for its jobs. The rest of the names has none."""
    name = row["name"]
    return {
        **row,
        "path": DETAIL_PATHS.get(by, "/charts") if name else "",
        "jobs_query": f"{search_field}:{quote_search_value(name)}" if name else "",
    }
