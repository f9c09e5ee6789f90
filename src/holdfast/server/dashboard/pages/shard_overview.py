"""The overview of all shards: what needs attention anywhere, sums, charts, and one line for each shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

from holdfast.client.shard_merging import add_up
from holdfast.engine import error_groups, overview, queues, shards, workers
from holdfast.engine.messages.queues import list_message_metrics
from holdfast.model import MessageMetrics
from holdfast.server.dashboard.attention import AttentionItem, load_attention_items, sort_attention_items
from holdfast.server.dashboard.job_redaction import redact_error_groups
from holdfast.server.dashboard.shard_charts import add_up_charts, load_shard_charts
from holdfast.server.dashboard.shard_pages import read_all_shards
from holdfast.server.dashboard.site import DashboardPage, PageRequest
from holdfast.server.dashboard.throughput_charts import build_overview_charts
from holdfast.server.dashboard.time_ranges import TimeRange, parse_time_range

MAX_ERROR_GROUPS_PER_SHARD = 20


@dataclass(frozen=True)
class ShardSummary:
    """The state of one shard. Counts of tasks are pairs: the count, and whether it is exact."""

    is_draining: bool
    ready: tuple[int, bool]
    running: tuple[int, bool]
    oldest_s: float | None
    totals: Mapping[str, Any]
    live_workers: int
    unresponsive_workers: int
    slots: int
    message_queues: list[MessageMetrics]
    attention_items: list[AttentionItem]
    charts: list[Mapping[str, Any]]


async def build_shard_overview(request: PageRequest, max_attention_items: int) -> DashboardPage:
    """Build the overview of all shards. A shard that does not answer is named and not counted."""
    time_range = parse_time_range(request)
    summaries, missing = await read_all_shards(request, lambda own: _load_summary(own, time_range))
    rows = list(summaries.values())
    items = [
        replace(item, subject=f"Shard {number}: {item.subject}")
        for number, summary in summaries.items()
        for item in summary.attention_items
    ]
    return DashboardPage(
        "overview_shards.html",
        "Overview",
        {
            **build_overview_charts(*map(add_up_charts, zip(*(row.charts for row in rows), strict=True))),
            "time_range": time_range,
            "missing_shards": missing,
            "shard_rows": {number: summaries.get(number) for number in request.site.shard_sites},
            "attention_items": sort_attention_items(items),
            "max_attention_items": max_attention_items,
            "ready": _add_counts([row.ready for row in rows]),
            "running": _add_counts([row.running for row in rows]),
            "totals": add_up([dict(row.totals) for row in rows]),
            "message_queues": [queue for row in rows for queue in row.message_queues],
            "live_workers": sum(row.live_workers for row in rows),
            "unresponsive_workers": sum(row.unresponsive_workers for row in rows),
            "slots": sum(row.slots for row in rows),
        },
    )


async def _load_summary(request: PageRequest, time_range: TimeRange) -> ShardSummary:
    connection = request.connection
    task_queues = await queues.list_task_queues(connection)
    all_workers = await workers.list_workers(connection)
    live = [worker for worker in all_workers if worker["state"] == "live"]
    groups = await error_groups.list_error_groups(
        connection, owner=request.tenant, limit=MAX_ERROR_GROUPS_PER_SHARD
    )
    waits = [queue["oldest_s"] for queue in task_queues if queue["oldest_s"] is not None]
    return ShardSummary(
        is_draining=(await shards.get_shard(connection)).draining,
        ready=queues.sum_task_counts(task_queues, "ready"),
        running=queues.sum_task_counts(task_queues, "running"),
        oldest_s=max(waits, default=None),
        totals=await overview.count_problems(connection, request.now - timedelta(hours=24)),
        live_workers=len(live),
        unresponsive_workers=sum(worker["state"] == "unresponsive" for worker in all_workers),
        slots=sum(map(count_worker_slots, live)),
        message_queues=await list_message_metrics(connection) if request.can("message.view") else [],
        attention_items=await load_attention_items(request, await redact_error_groups(request, groups)),
        charts=await load_shard_charts(request, time_range),
    )


def _add_counts(counts: list[tuple[int, bool]]) -> tuple[int, bool]:
    return sum(count for count, _ in counts), all(exact for _, exact in counts)


def count_worker_slots(worker: dict[str, Any]) -> int:
    """Return how many tasks a worker runs at once, as its last report says."""
    status = cast("dict[str, Any]", worker.get("report") or {})
    return int(status.get("slots") or 0)
