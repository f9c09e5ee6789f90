"""The overview: what needs attention, the current totals, and the throughput."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, cast

from holdfast.engine import (
    bulk_actions as engine_bulk_actions,
)
from holdfast.engine import (
    error_groups as engine_error_groups,
)
from holdfast.engine import overview, schedules, webhooks
from holdfast.engine import (
    queues as engine_queues,
)
from holdfast.engine import (
    workers as engine_workers,
)
from holdfast.engine.bulk_actions import BulkAction
from holdfast.engine.messages import queues
from holdfast.engine.webhooks import Webhook
from holdfast.formatting import (
    format_compact_number,
    format_count,
    format_long_duration,
    seconds_between,
    truncate_text,
)
from holdfast.model import MessageMetrics, StoredSchedule
from holdfast.search import quote_search_value
from holdfast.server.dashboard import charts
from holdfast.server.dashboard.job_redaction import redact_error_groups
from holdfast.server.dashboard.pages.webhooks import get_webhook_state, remove_query_string
from holdfast.server.dashboard.registry import register_page
from holdfast.server.dashboard.site import DashboardPage, PageRequest

CHART_TIME_RANGES_H = {"1h": 1, "6h": 6, "24h": 24, "7d": 168}
MAX_ATTENTION_ITEMS = 20
MAX_UNSERVED_QUEUE_WAIT_S = 60.0
MAX_BACKLOG_WAIT_S = 600.0
MAX_SCHEDULE_DELAY_S = 120.0
MIN_FAILED_ATTEMPTS_TO_REPORT = 3
RECENT_FAILURE_PERIOD_S = 3600
Row = Mapping[str, Any]


@dataclass(frozen=True)
class AttentionItem:
    """A problem that needs an operator: its subject, a sentence, and links as (label, URL)."""

    tone: Literal["danger", "warning"]
    subject: str
    text: str
    links: Sequence[tuple[str, str]]


@register_page("/", "jobs.view")
async def show_overview(request: PageRequest) -> DashboardPage:
    time_range = request.query.get("span", "1h")
    values = await _load_overview_values(request, CHART_TIME_RANGES_H.get(time_range, 1))
    return DashboardPage(
        "overview.html",
        "Overview",
        {
            **values,
            "time_ranges": list(CHART_TIME_RANGES_H),
            "time_range": time_range if time_range in CHART_TIME_RANGES_H else "1h",
            "max_attention_items": MAX_ATTENTION_ITEMS,
            "attention_items": list(_find_attention_items(request, values)),
        },
    )


async def _load_overview_values(request: PageRequest, hours: float) -> dict[str, Any]:
    connection = request.connection
    stats = await overview.get_throughput_chart(connection, hours)
    type_stats = await overview.get_task_type_stats(connection, 6)
    task_queues = await engine_queues.list_task_queues(connection)
    workers = await engine_workers.list_workers(connection)
    live_workers = [worker for worker in workers if worker["state"] == "live"]
    return {
        "throughput_chart": build_throughput_chart(stats),
        "wait_chart": build_wait_chart(stats),
        "backlog_chart": charts.build_chart(
            stats,
            "Backlog",
            [("ready", "pale", "ready"), ("running", "active", "running")],
            width=charts.WIDE_CHART_WIDTH_PX,
        ),
        "busiest_queues": sorted(task_queues, key=lambda q: -(q["ready"] + q["running"]))[:6],
        "slowest_tasks": sorted((t for t in type_stats if t["run_p95"]), key=lambda t: -t["run_p95"])[:6],
        "workers": workers,
        "live_workers": len(live_workers),
        "slots": sum(_count_worker_slots(worker) for worker in live_workers),
        "unresponsive_workers": sum(worker["state"] == "quiet" for worker in workers),
        "totals": await overview.count_problems(connection, request.now - timedelta(hours=24)),
        "error_groups": await redact_error_groups(
            request,
            await engine_error_groups.list_error_groups(connection, owner=request.tenant, limit=20),
        ),
        "message_queues": await queues.list_message_metrics(connection)
        if request.can("message.view")
        else [],
        "schedules": await schedules.list_schedules(connection, limit=200)
        if request.can("system.view")
        else [],
        "bulk_actions": await engine_bulk_actions.list_bulk_actions(connection, limit=20)
        if request.can("bulk.run")
        else [],
        "webhooks": await webhooks.list_webhooks(connection) if request.can("system.view") else [],
        "ready": sum(q["ready"] for q in task_queues),
        "ready_exact": all(q["ready_exact"] for q in task_queues),
        "running": sum(q["running"] for q in task_queues),
        "task_queues": task_queues,
    }


def build_throughput_chart(stats: Row) -> charts.Chart:
    """Build the chart of finished tasks over time, by outcome."""
    return charts.build_chart(
        stats,
        "Throughput",
        [
            ("succeeded", "success", "succeeded"),
            ("failed", "danger", "failed"),
            ("cancelled", "muted", "cancelled"),
        ],
    )


def build_wait_chart(stats: Row) -> charts.Chart:
    """Build the chart of wait times of tasks: from due to started."""
    return charts.build_chart(stats, "Wait time", [("p50", "p50", "wait_p50"), ("p95", "p95", "wait_p95")])


def _find_attention_items(request: PageRequest, values: Mapping[str, Any]) -> Iterator[AttentionItem]:
    """Yield the problems that need an operator, the worst first."""
    yield from _find_blocked_queues(request, values["task_queues"])
    yield from _find_failing_tasks(request, values["error_groups"])
    yield from _find_lost_workers(request, values["workers"])
    yield from _find_late_schedules(request, values["schedules"])
    yield from _find_dead_letters(request, values["message_queues"])
    yield from _find_stopped_bulk_actions(request, values["bulk_actions"])
    yield from _find_failing_webhooks(request, values["webhooks"])


def _find_blocked_queues(request: PageRequest, task_queues: Sequence[Row]) -> Iterator[AttentionItem]:
    for queue in task_queues:
        name, oldest_s = queue["queue"], queue["oldest_s"] or 0
        queue_link = ("Queue", request.build_url("/queue", name=name))
        waiting = f"{format_count(queue['ready'], 'task')} waiting"
        age = format_long_duration(oldest_s)
        if queue["ready"] and queue.get("paused_at"):
            why = f" (“{truncate_text(queue['paused_reason'], 60)}”)" if queue.get("paused_reason") else ""
            text = f"is paused by {queue['paused_by']}{why}, {waiting}"
            yield AttentionItem("warning", name, text, [queue_link])
        elif queue["ready"] and oldest_s > MAX_UNSERVED_QUEUE_WAIT_S and not queue["workers"]:
            text = f"has no live worker, {waiting}, the oldest for {age}"
            jobs_link = (
                "Jobs",
                request.build_url("/jobs", q=f"state:ready queue:{quote_search_value(name)}"),
            )
            yield AttentionItem("danger", name, text, [jobs_link, queue_link])
        elif queue["ready"] and oldest_s > MAX_BACKLOG_WAIT_S:
            yield AttentionItem("warning", name, f"has {waiting}, the oldest for {age}", [queue_link])


def _find_failing_tasks(request: PageRequest, error_groups: Sequence[Row]) -> Iterator[AttentionItem]:
    for group in error_groups[:5]:
        age_s = seconds_between(group["last_at"], request.now)
        if (
            group["attempts"] >= MIN_FAILED_ATTEMPTS_TO_REPORT
            and age_s is not None
            and age_s < RECENT_FAILURE_PERIOD_S
        ):
            tasks = ", ".join(group.get("tasks") or [])[:80]
            bound = "" if group["exact"] else "more than "
            text = f"{bound}{format_compact_number(group['attempts'])} failed attempts in the last 24 hours"
            link = ("Error", request.build_url("/error", cause=group["cause"]))
            subject = group.get("type") or group["cause"]
            yield AttentionItem("danger", subject, text + (f" in {tasks}" if tasks else ""), [link])


def _find_lost_workers(request: PageRequest, workers: Sequence[Row]) -> Iterator[AttentionItem]:
    for worker in workers:
        if worker["state"] == "lost":
            held = f"; it was running {format_count(worker['running'], 'task')}" if worker["running"] else ""
            text = f"is lost: no heartbeat for {format_long_duration(worker['seen_s'])}{held}"
            link = ("Worker", request.build_url("/worker", name=worker["name"]))
            yield AttentionItem("warning", worker["name"], text, [link])


def _find_late_schedules(
    request: PageRequest, stored_schedules: Sequence[StoredSchedule]
) -> Iterator[AttentionItem]:
    for schedule in stored_schedules:
        late_s = seconds_between(schedule.next_at, request.now)
        link = ("Schedule", request.build_url("/schedules") + "#" + schedule.name)
        if schedule.last_error:
            text = f"could not submit its job: {truncate_text(schedule.last_error, 120)}"
            yield AttentionItem("danger", schedule.name, text, [link])
        elif late_s is not None and late_s > MAX_SCHEDULE_DELAY_S:
            yield AttentionItem("warning", schedule.name, f"is {format_long_duration(late_s)} late", [link])


def _find_dead_letters(
    request: PageRequest, message_queues: Sequence[MessageMetrics]
) -> Iterator[AttentionItem]:
    for queue in message_queues:
        if queue.dead:
            link = ("Messages", request.build_url("/messages", queue=queue.queue, place="dead"))
            text = f"has {format_count(queue.dead, 'dead letter')}"
            yield AttentionItem("warning", queue.queue, text, [link])


def _find_stopped_bulk_actions(
    request: PageRequest, bulk_actions: Sequence[BulkAction]
) -> Iterator[AttentionItem]:
    for bulk in bulk_actions:
        if bulk.status == "stopped" and "failed again" in (bulk.stop_reason or ""):
            text = f"bulk {bulk.verb} stopped automatically: {bulk.stop_reason}"
            link = ("Bulk action", request.build_url(f"/bulk/{bulk.id}"))
            yield AttentionItem("warning", bulk.search or "all jobs", text, [link])


def _find_failing_webhooks(request: PageRequest, all_webhooks: Sequence[Webhook]) -> Iterator[AttentionItem]:
    for webhook in all_webhooks:
        if not request.can_see_owner(webhook.owner) or get_webhook_state(webhook) == "active":
            continue
        if webhook.disabled_reason or webhook.last_error:
            state = (
                f"is disabled: {webhook.disabled_reason}"
                if not webhook.active
                else f"fails: {webhook.last_error}"
            )
            text = f"{remove_query_string(webhook.url)} {truncate_text(state, 160)}"
            link = ("Webhooks", request.build_url("/webhooks"))
            yield AttentionItem("warning", "Webhook", text, [link])


def _count_worker_slots(worker: dict[str, Any]) -> int:
    status = cast("dict[str, Any]", worker.get("report") or {})
    return int(status.get("slots") or 0)
