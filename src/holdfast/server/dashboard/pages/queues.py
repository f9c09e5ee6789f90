"""The queue pages: backlog, throughput, pauses, limits, and how many workers a queue needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from starlette.exceptions import HTTPException

from holdfast.engine import limits, overview, queues
from holdfast.engine import workers as engine_workers
from holdfast.errors import InvalidError
from holdfast.server.dashboard.flash import ActionResult, UndoAction
from holdfast.server.dashboard.pages.shard_queues import (
    PAUSE_LABELS,
    PAUSE_PERIOD_OPTIONS,
    build_queue_header,
    build_queues_header,
    change_queue_on_all_shards,
)
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest, build_dashboard_url
from holdfast.server.dashboard.throughput_charts import build_throughput_chart, build_wait_chart
from holdfast.server.dashboard.time_ranges import load_chart_stats, parse_time_range

ASSUMED_SLOTS_PER_WORKER = 10
TREND_POINT_COUNT = 12
Row = Mapping[str, Any]


@register_page("/queues", "system.view", reads_replica=True, build_shard_header=build_queues_header)
async def list_queues(request: PageRequest) -> DashboardPage:
    task_queues = await queues.list_task_queues(request.connection)
    type_stats = await overview.get_task_type_stats(request.connection, 6)
    rows = [{**queue, **summarize_queue(type_stats, queue["queue"])} for queue in task_queues]
    return DashboardPage("queues.html", "Queues", {"queues": rows})


def summarize_queue(type_stats: Sequence[Row], queue: str) -> dict[str, Any]:
    """Return failures, wait time and trend of a queue's tasks that ended in the last six hours."""
    rows = [row for row in type_stats if row["queue"] == queue]
    ended = sum(row["succeeded"] + row["failed"] for row in rows)
    trend: dict[str, float] = {}
    for row in rows:
        for at, succeeded, failed in row["trend"]:
            trend[at] = trend.get(at, 0) + succeeded + failed
    return {
        "ended": ended,
        "fail_share": sum(row["failed"] for row in rows) / ended if ended else None,
        "wait_p95": max((row["wait_p95"] for row in rows if row["wait_p95"] is not None), default=None),
        "trend": [trend[at] for at in sorted(trend)][-TREND_POINT_COUNT:],
    }


@register_page("/queue", "system.view", build_shard_header=build_queue_header)
async def show_queue(request: PageRequest) -> DashboardPage:
    name, connection = request.query.get("name", ""), request.connection
    task_queues = await queues.list_task_queues(connection, name)
    if not task_queues:
        raise HTTPException(404, f"Queue {name} does not exist.")
    types: list[str] = task_queues[0]["types"] or []
    time_range = parse_time_range(request)
    stats, day_before = await load_chart_stats(request, time_range, queue=name)
    workers = await engine_workers.list_workers(connection)
    type_stats = await overview.get_task_type_stats(connection, 24)
    return DashboardPage(
        "queue.html",
        f"Queue {name}",
        {
            "queue": task_queues[0],
            "throughput_chart": build_throughput_chart(stats, day_before),
            "wait_chart": build_wait_chart(stats, day_before),
            "task_types": [row for row in type_stats if row["queue"] == name],
            "workers": [worker for worker in workers if name in (worker["queues"] or ())],
            "limits": [
                limit
                for limit in await limits.list_limits(connection)
                if limit["queue"] in (None, name) and limit["type"] in (None, *types)
            ],
            "desired_workers": await engine_workers.count_desired_workers(
                connection, name, per_worker=ASSUMED_SLOTS_PER_WORKER
            ),
            "slots_per_worker": ASSUMED_SLOTS_PER_WORKER,
            "pause_options": PAUSE_LABELS,
            "time_range": time_range,
        },
    )


@register_action("/queue/pause", "queue.pause")
async def pause_queue(action: ActionRequest) -> ActionResult:
    name, value = action.get_required_text("name"), action.get_text("span")
    if value not in PAUSE_PERIOD_OPTIONS:
        raise InvalidError("Choose how long to pause the queue.", field="span")
    hours = PAUSE_PERIOD_OPTIONS[value][1]
    until = None if hours is None else action.request.now + timedelta(hours=hours)
    undo = UndoAction("/queue/resume", {"name": name})

    async def pause(own: ActionRequest) -> bool:
        reason, end = own.get_text("reason"), until.isoformat() if until else None
        await queues.pause_queue_until(own.connection, name, until, reason=reason or None, by=own.actor_name)
        await own.record_audit("queue.pause", name, until=end, reason=reason)
        return True

    if action.request.site.shard_sites:
        return await change_queue_on_all_shards(action, name, pause, ("paused", ""), undo)
    await queues.require_queue_name(action.connection, name)
    await pause(action)
    return ActionResult(build_dashboard_url("/queue", name=name), f"Queue {name} paused.", undo)


@register_action("/queue/resume", "queue.pause")
async def resume_queue(action: ActionRequest) -> ActionResult:
    name = action.get_required_text("name")
    undo = UndoAction("/queue/pause", {"name": name, "span": "until resumed"})

    async def resume(own: ActionRequest) -> bool:
        resumed = await limits.resume_queue(own.connection, name)
        await own.record_audit("queue.resume", name, changed=resumed)
        return resumed

    if action.request.site.shard_sites:
        words = ("resumed", "was not paused")
        return await change_queue_on_all_shards(action, name, resume, words, undo)
    await queues.require_queue_name(action.connection, name)
    resumed = await resume(action)
    message = f"Queue {name} resumed." if resumed else f"Queue {name} was not paused."
    return ActionResult(build_dashboard_url("/queue", name=name), message, undo if resumed else None)
