"""The overview: what needs attention, the current totals, and the throughput."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from holdfast.engine import (
    error_groups as engine_error_groups,
)
from holdfast.engine import overview
from holdfast.engine import (
    queues as engine_queues,
)
from holdfast.engine import (
    workers as engine_workers,
)
from holdfast.engine.messages import queues
from holdfast.server.dashboard.attention import load_attention_items
from holdfast.server.dashboard.job_redaction import redact_error_groups
from holdfast.server.dashboard.pages.shard_overview import build_shard_overview, count_worker_slots
from holdfast.server.dashboard.registry import register_page
from holdfast.server.dashboard.site import DashboardPage, PageRequest
from holdfast.server.dashboard.throughput_charts import build_overview_charts
from holdfast.server.dashboard.time_ranges import TimeRange, load_chart_stats, parse_time_range

MAX_ATTENTION_ITEMS = 20


@register_page("/", "jobs.view", reads_replica=True, all_shards="merged")
async def show_overview(request: PageRequest) -> DashboardPage:
    if request.site.shard_sites:
        return await build_shard_overview(request, MAX_ATTENTION_ITEMS)
    time_range = parse_time_range(request)
    values = await _load_overview_values(request, time_range)
    return DashboardPage(
        "overview.html",
        "Overview",
        {
            **values,
            "time_range": time_range,
            "max_attention_items": MAX_ATTENTION_ITEMS,
            "attention_items": await load_attention_items(request, values["error_groups"]),
        },
    )


async def _load_overview_values(request: PageRequest, time_range: TimeRange) -> dict[str, Any]:
    values, task_values = await request.read_together(
        lambda own: _load_chart_values(own, time_range), _load_task_values
    )
    return {**values, **task_values}


async def _load_chart_values(request: PageRequest, time_range: TimeRange) -> dict[str, Any]:
    connection = request.connection
    stats, day_before = await load_chart_stats(request, time_range)
    groups = await engine_error_groups.list_error_groups(connection, owner=request.tenant, limit=20)
    return {
        **build_overview_charts(stats, day_before),
        "error_groups": sorted(
            await redact_error_groups(request, groups), key=lambda group: -group["attempts"]
        ),
        "message_queues": await queues.list_message_metrics(connection)
        if request.can("message.view")
        else [],
    }


async def _load_task_values(request: PageRequest) -> dict[str, Any]:
    """Load what the overview shows of queues, task types and workers."""
    connection = request.connection
    type_stats = await overview.get_task_type_stats(connection, 6)
    task_queues = await engine_queues.list_task_queues(connection)
    workers = await engine_workers.list_workers(connection)
    live_workers = [worker for worker in workers if worker["state"] == "live"]
    return {
        "busiest_queues": sorted(task_queues, key=lambda q: -(q["ready"] + q["running"]))[:6],
        "slowest_tasks": sorted((t for t in type_stats if t["run_p95"]), key=lambda t: -t["run_p95"])[:6],
        "live_workers": len(live_workers),
        "slots": sum(count_worker_slots(worker) for worker in live_workers),
        "unresponsive_workers": sum(worker["state"] == "unresponsive" for worker in workers),
        "totals": await overview.count_problems(connection, request.now - timedelta(hours=24)),
        "ready": engine_queues.sum_task_counts(task_queues, "ready"),
        "running": engine_queues.sum_task_counts(task_queues, "running"),
        "task_queues": task_queues,
    }
