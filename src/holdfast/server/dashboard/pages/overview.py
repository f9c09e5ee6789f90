"""Overview: is it healthy, and if not, where do I click."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from holdfast.engine import insight, operate, schedules, search, webhooks
from holdfast.engine.messages import queues
from holdfast.engine.search import Bulk
from holdfast.engine.webhooks import Webhook
from holdfast.model import MessageMetrics, StoredSchedule
from holdfast.search import quoted
from holdfast.server.dashboard import charts
from holdfast.server.dashboard.pages.webhooks import address, state_of
from holdfast.server.dashboard.registry import screen
from holdfast.server.dashboard.site import Page, View
from holdfast.server.dashboard.words import between, clip, compact, plural, seconds

SPANS = {"1h": 1, "6h": 6, "24h": 24, "7d": 168}
OLD_SECONDS = 60.0
LATE_SECONDS = 120.0
Row = Mapping[str, Any]
Item = dict[str, Any]


@screen("/", "jobs.view")
async def overview(view: View) -> Page:
    span = view.query.get("span", "1h")
    hours = SPANS.get(span, 1)
    found = await _figures(view, hours)
    return Page(
        "overview.html",
        "Overview",
        {
            **found,
            "spans": list(SPANS),
            "span": span if span in SPANS else "1h",
            "attention": list(_attention(view, found)),
        },
    )


async def _figures(view: View, hours: float) -> dict[str, Any]:
    on = view.connection
    figures = await insight.figures(on, hours)
    by_type = await insight.type_figures(on, 6)
    task_queues = await operate.task_queues(on)
    groups = await search.error_groups(on, owner=view.tenant, limit=20)
    return {
        "throughput": charts.from_figures(
            figures,
            "Throughput",
            [
                ("succeeded", "ok", "succeeded"),
                ("failed", "bad", "failed"),
                ("cancelled", "mute", "cancelled"),
            ],
        ),
        "waits": charts.from_figures(
            figures, "Wait to start", [("p50", "p50", "wait_p50"), ("p95", "p95", "wait_p95")]
        ),
        "depth": charts.from_figures(
            figures, "Depth", [("ready", "pale", "ready"), ("running", "busy", "running")], width=1320
        ),
        "queues": sorted(task_queues, key=lambda q: -(q["ready"] + q["running"]))[:6],
        "slowest": sorted((t for t in by_type if t["run_p95"]), key=lambda t: -t["run_p95"])[:6],
        "workers": await operate.list_workers(on),
        "troubles": await insight.troubles(on, view.now - timedelta(hours=24)),
        "groups": groups,
        "messages": await queues.metrics(on) if view.may("message.view") else [],
        "schedules": await schedules.list_schedules(on, limit=200) if view.may("system.view") else [],
        "bulks": await search.list_bulk(on, limit=20) if view.may("bulk.run") else [],
        "webhooks": await webhooks.list_webhooks(on) if view.may("system.view") else [],
        "ready": sum(q["ready"] for q in task_queues),
        "ready_exact": all(q["ready_exact"] for q in task_queues),
        "running": sum(q["running"] for q in task_queues),
        "all_queues": task_queues,
    }


def _attention(view: View, found: Mapping[str, Any]) -> Iterator[Item]:
    """What somebody should look at, worst first."""
    yield from _stuck(view, found["all_queues"])
    yield from _failing(view, found["groups"])
    yield from _lost(view, found["workers"])
    yield from _late(view, found["schedules"])
    yield from _dead(view, found["messages"])
    yield from _halted(view, found["bulks"])
    yield from _unheard(view, found["webhooks"])


def _stuck(view: View, found: Sequence[Row]) -> Iterator[Item]:
    for queue in found:
        oldest, link = queue["oldest_s"] or 0, view.url("/queue", name=queue["queue"])
        if queue["ready"] and queue.get("paused_at"):
            why = f" “{clip(queue['paused_why'], 60)}”" if queue.get("paused_why") else ""
            text = f"paused by {queue['paused_by']}{why}, {plural(queue['ready'], 'task')} waiting"
            yield {"tone": "warn", "what": queue["queue"], "text": text, "links": [("queue", link)]}
        elif queue["ready"] and oldest > OLD_SECONDS and not queue["workers"]:
            text = f"oldest ready {seconds(oldest)}, no live worker serves it"
            waiting = view.url("/jobs", q=f"state:ready queue:{quoted(queue['queue'])}")
            yield {
                "tone": "bad",
                "what": queue["queue"],
                "text": text,
                "links": [("jobs", waiting), ("queue", link)],
            }
        elif queue["ready"] and oldest > 10 * OLD_SECONDS:
            text = f"oldest ready {seconds(oldest)}, {plural(queue['ready'], 'task')} waiting"
            yield {"tone": "warn", "what": queue["queue"], "text": text, "links": [("queue", link)]}


def _failing(view: View, groups: Sequence[Row]) -> Iterator[Item]:
    for group in groups[:5]:
        age = between(group["last_at"], view.now)
        if group["attempts"] >= 3 and age is not None and age < 3600:
            tasks = ", ".join(group.get("tasks") or [])[:80]
            more = "" if group["exact"] else "more than "
            yield {
                "tone": "bad",
                "what": group.get("type") or group["cause"],
                "text": f"{more}{compact(group['attempts'])} failed attempts in 24 h"
                + (f" in {tasks}" if tasks else ""),
                "links": [("group", view.url("/error", cause=group["cause"]))],
            }


def _lost(view: View, workers: Sequence[Row]) -> Iterator[Item]:
    for worker in workers:
        if worker["state"] == "lost":
            held = f", held {plural(worker['running'], 'task')}" if worker["running"] else ""
            yield {
                "tone": "warn",
                "what": worker["name"],
                "text": f"worker lost: no sign of life for {seconds(worker['seen_s'])}{held}",
                "links": [("worker", view.url("/worker", name=worker["name"]))],
            }


def _late(view: View, found: Sequence[StoredSchedule]) -> Iterator[Item]:
    for one in found:
        late = between(one.next_at, view.now)
        link = [("schedule", view.url("/schedules") + "#" + one.name)]
        if one.last_error:
            text = f"could not be submitted: {clip(one.last_error, 120)}"
            yield {"tone": "bad", "what": one.name, "text": text, "links": link}
        elif late is not None and late > LATE_SECONDS:
            yield {"tone": "warn", "what": one.name, "text": f"is {seconds(late)} late", "links": link}


def _dead(view: View, found: Sequence[MessageMetrics]) -> Iterator[Item]:
    for one in found:
        if one.dead:
            link = view.url("/messages", queue=one.queue, place="dead")
            yield {
                "tone": "warn",
                "what": one.queue,
                "text": plural(one.dead, "dead letter"),
                "links": [("open", link)],
            }


def _halted(view: View, found: Sequence[Bulk]) -> Iterator[Item]:
    for one in found:
        if one.status == "stopped" and one.stopped_why and "hand" not in one.stopped_why:
            text = f"bulk {one.verb} stopped by itself: {one.stopped_why}"
            link = view.url(f"/bulk/{one.id}")
            yield {"tone": "warn", "what": one.search or "all jobs", "text": text, "links": [("open", link)]}


def _unheard(view: View, found: Sequence[Webhook]) -> Iterator[Item]:
    for one in found:
        if not view.owns(one.owner) or state_of(one) == "on" or not (one.off_why or one.last_error):
            continue
        text = f"switched off: {one.off_why}" if not one.active else f"fails: {one.last_error}"
        yield {
            "tone": "warn",
            "what": "webhook",
            "text": f"{address(one.url)} {clip(text, 160)}",
            "links": [("open", view.url("/webhooks"))],
        }
