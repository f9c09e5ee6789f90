"""Queues of tasks: depth, pace, pauses, limits, and how many workers they could use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from starlette.exceptions import HTTPException

from holdfast.engine import insight, limits, operate
from holdfast.errors import InvalidError
from holdfast.server.dashboard import charts
from holdfast.server.dashboard.registry import deed, screen
from holdfast.server.dashboard.site import Deed, Page, View

PAUSES = {"15m": 0.25, "1h": 1, "4h": 4, "1d": 24, "until resumed": None}
Row = Mapping[str, Any]


@screen("/queues", "system.view")
async def queues(view: View) -> Page:
    found = await operate.task_queues(view.connection)
    by_type = await insight.type_figures(view.connection, 6)
    return Page(
        "queues.html",
        "Queues",
        {"queues": [{**q, **pace(by_type, q["queue"])} for q in found], "pauses": PAUSES},
    )


def pace(by_type: Sequence[Row], queue: str) -> dict[str, Any]:
    """What ended in a queue within six hours: how many failed, how long they waited, and the trend."""
    mine = [row for row in by_type if row["queue"] == queue]
    ended = sum(row["succeeded"] + row["failed"] for row in mine)
    trend: dict[str, float] = {}
    for row in mine:
        for at, succeeded, failed in row["trend"]:
            trend[at] = trend.get(at, 0) + succeeded + failed
    return {
        "ended": ended,
        "fail_share": sum(row["failed"] for row in mine) / ended if ended else None,
        "wait_p95": max((row["wait_p95"] for row in mine if row["wait_p95"] is not None), default=None),
        "trend": [trend[at] for at in sorted(trend)][-12:],
    }


@screen("/queue", "system.view")
async def queue(view: View) -> Page:
    name = view.query.get("name", "")
    found = await operate.task_queues(view.connection, name)
    if not found:
        raise HTTPException(404, "There is no such queue.")
    hours = {"1h": 1, "6h": 6, "24h": 24, "7d": 168}.get(view.query.get("span", "1h"), 1)
    figures = await insight.figures(view.connection, hours, queue=name)
    workers = [w for w in await operate.list_workers(view.connection) if name in (w["queues"] or ())]
    return Page(
        "queue.html",
        f"Queue {name}",
        {
            "queue": found[0],
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
            "types": [t for t in await insight.type_figures(view.connection, 24) if t["queue"] == name],
            "workers": workers,
            "limits": [r for r in await operate.list_limits(view.connection) if r["queue"] in (None, name)],
            "desired": await operate.desired_workers(view.connection, name),
            "pauses": PAUSES,
            "spans": ["1h", "6h", "24h", "7d"],
            "span": view.query.get("span", "1h"),
        },
    )


def _back(asked: Deed, name: str) -> str:
    return asked.view.url("/queue", name=name)[len(asked.view.base) :]


@deed("/queue/pause", "queue.pause")
async def pause(asked: Deed) -> tuple[str, str]:
    name, span = asked.needed("name"), asked.text("span")
    if span not in PAUSES:
        raise InvalidError("Choose for how long.", field="span")
    hours = PAUSES[span]
    until = None if hours is None else asked.view.now + timedelta(hours=hours)
    await insight.pause_queue_until(asked.connection, name, until, why=asked.text("why") or None, by=asked.by)
    await asked.audit("queue.pause", name, until=until.isoformat() if until else None, why=asked.text("why"))
    return _back(asked, name), f"{name} is paused."


@deed("/queue/resume", "queue.pause")
async def resume(asked: Deed) -> tuple[str, str]:
    name = asked.needed("name")
    done = await limits.resume_queue(asked.connection, name)
    await asked.audit("queue.resume", name, changed=done)
    return _back(asked, name), f"{name} goes on." if done else f"{name} was not paused."
