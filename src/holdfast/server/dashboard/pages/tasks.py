"""Tasks: the catalogue of what workers can run, with a form to run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException

from holdfast.engine import catalogue, insight, jobs, operate, schedules
from holdfast.engine.connection import translated
from holdfast.errors import HoldfastError, InvalidError
from holdfast.server.dashboard import charts, forms
from holdfast.server.dashboard.registry import deed, screen
from holdfast.server.dashboard.shapes import mapped
from holdfast.server.dashboard.site import Deed, Page, View

Row = Mapping[str, Any]


@screen("/tasks", "system.view")
async def tasks(view: View) -> Page:
    known = {row["name"]: row for row in await catalogue.list_types(view.connection)}
    figures = await insight.type_figures(view.connection, 24)
    workers = await operate.list_workers(view.connection)
    seen = {row["type"] for row in figures}
    for queue in await operate.task_queues(view.connection):
        seen |= set(queue["types"] or ())
    rows = [_row(name, known.get(name), figures, workers) for name in sorted(seen | set(known))]
    return Page("tasks.html", "Tasks", {"rows": rows})


def _row(name: str, known: Row | None, figures: Sequence[Row], workers: Sequence[Row]) -> dict[str, Any]:
    mine = [row for row in figures if row["type"] == name]
    ended = sum(row["succeeded"] + row["failed"] for row in mine)
    queue = known["queue"] if known else (mine[0]["queue"] if mine else None)
    serving = [
        w
        for w in workers
        if w["state"] == "live"
        and (name in w["types"] if w["types"] is not None else queue in (w["queues"] or ()))
    ]
    versions = {w["about"]["version"] for w in serving if mapped(w.get("about")).get("version")}
    slow = max(mine, key=lambda row: row["run_p95"] or 0, default=None)
    return {
        "name": name,
        "queue": queue,
        "doc": (known["doc"] or "").strip().splitlines()[0] if known and (known["doc"] or "").strip() else "",
        "known": known is not None,
        "run_p50": slow["run_p50"] if slow else None,
        "run_p95": slow["run_p95"] if slow else None,
        "ended": ended,
        "fail_share": sum(row["failed"] for row in mine) / ended if ended else None,
        "trend": [ok + bad for _, ok, bad in mine[0]["trend"]][-12:] if mine else [],
        "last_ok_at": max((row["last_ok_at"] for row in mine if row["last_ok_at"]), default=None),
        "versions": sorted(versions) or ([known["version"]] if known and known["version"] else []),
        "workers": len(serving),
    }


@screen("/task", "system.view")
async def task(view: View) -> Page:
    return await _page(view, view.query.get("name", ""), {}, None)


async def _page(view: View, name: str, values: dict[str, Any], wrong: HoldfastError | None) -> Page:
    on = view.connection
    known = await insight.task_type(on, name)
    figures = [row for row in await insight.type_figures(on, 24) if row["type"] == name]
    queues = [q for q in await operate.task_queues(on) if name in (q["types"] or ())]
    if known is None and not figures and not queues:
        raise HTTPException(404, "There is no such task.")
    drawn = await insight.figures(on, 24, kind=name)
    rules = [r for r in await operate.list_limits(on) if r["type"] == name]
    used_by = [s for s in await schedules.list_schedules(on, limit=500) if s.job.get("type") == name]
    return Page(
        "task.html",
        f"Task {name}",
        {
            "name": name,
            "known": known,
            "figures": figures,
            "queues": [q["queue"] for q in queues] or ([known["queue"]] if known else []),
            "throughput": charts.from_figures(
                drawn, "Throughput", [("succeeded", "ok", "succeeded"), ("failed", "bad", "failed")]
            ),
            "runs": charts.from_figures(
                drawn, "Run time", [("p50", "p50", "run_p50"), ("p95", "p95", "run_p95")]
            ),
            "limits": rules,
            "schedules": used_by,
            "fields": forms.fields(known["schema"], values) if known else None,
            "args": values,
            "wrong": wrong,
        },
        live=wrong is None,
        status=200 if wrong is None else 422,
    )


@deed("/task/submit", "jobs.submit")
async def submit(asked: Deed) -> tuple[str, str] | Page:
    view, on, name = asked.view, asked.connection, asked.needed("name")
    known = await insight.task_type(on, name)
    args: dict[str, Any] = {}
    try:
        args = forms.typed(asked.form, known["schema"] if known else None)
        body: dict[str, Any] = {"type": name, "args": args, "check": True}
        body |= _options(asked, known)
        with translated(view.site.services.database.url):
            async with on.transaction():
                made = await jobs.submit(on, body)
    except InvalidError as wrong:
        return await _page(view, name, args, wrong)
    await asked.audit("job.submit", made.id, type=name, key=asked.text("key"))
    return f"/jobs/{made.id}", "Submitted." if made.created else "A job with this key was there already."


def _options(asked: Deed, known: Row | None) -> dict[str, Any]:
    found: dict[str, Any] = dict((known or {}).get("options") or {})
    found["queue"] = asked.text("queue") or (known["queue"] if known else "default")
    for name in ("key", "owner"):
        if asked.text(name):
            found[name] = asked.text(name)
    for name in ("delay_s", "priority"):
        text = asked.text(name)
        if text:
            try:
                found[name] = float(text)
            except ValueError:
                raise InvalidError(f"{name} must be a number.", field=name) from None
    return found
