"""The task type pages: what workers can run, how long it takes, and a form to submit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException

from holdfast.engine import (
    jobs,
    limits,
    overview,
    schedules,
    task_types,
)
from holdfast.engine import (
    queues as engine_queues,
)
from holdfast.engine import (
    workers as engine_workers,
)
from holdfast.engine.connection import translate_driver_errors
from holdfast.errors import HoldfastError, InvalidError
from holdfast.server.dashboard import charts, forms
from holdfast.server.dashboard.json_values import object_or_empty
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest
from holdfast.server.dashboard.time_ranges import load_chart_stats, parse_time_range

TREND_POINT_COUNT = 12
Row = Mapping[str, Any]


@register_page("/tasks", "system.view", reads_replica=True)
async def list_task_types(request: PageRequest) -> DashboardPage:
    registered = {row["name"]: row for row in await task_types.list_task_types(request.connection)}
    stats = await overview.get_task_type_stats(request.connection, 24)
    workers = await engine_workers.list_workers(request.connection)
    names = {row["type"] for row in stats} | set(registered)
    for queue in await engine_queues.list_task_queues(request.connection):
        names |= set(queue["types"] or ())
    rows = [_summarize_task_type(name, registered.get(name), stats, workers) for name in sorted(names)]
    return DashboardPage("tasks.html", "Tasks", {"rows": rows})


def _summarize_task_type(
    name: str, registered: Row | None, all_stats: Sequence[Row], workers: Sequence[Row]
) -> dict[str, Any]:
    stats = [row for row in all_stats if row["type"] == name]
    ended = sum(row["succeeded"] + row["failed"] for row in stats)
    queue = registered["queue"] if registered else (stats[0]["queue"] if stats else None)
    serving = [worker for worker in workers if _has_live_worker(worker, name, queue)]
    versions = {
        worker["report"]["version"]
        for worker in serving
        if object_or_empty(worker.get("report")).get("version")
    }
    slowest = max(stats, key=lambda row: row["run_p95"] or 0, default=None)
    doc = (registered["doc"] or "").strip() if registered else ""
    return {
        "name": name,
        "queue": queue,
        "doc": doc.splitlines()[0] if doc else "",
        "is_registered": registered is not None,
        "run_p50": slowest["run_p50"] if slowest else None,
        "run_p95": slowest["run_p95"] if slowest else None,
        "ended": ended,
        "fail_share": sum(row["failed"] for row in stats) / ended if ended else None,
        "trend": [ok + failed for _, ok, failed in stats[0]["trend"]][-TREND_POINT_COUNT:] if stats else [],
        "last_ok_at": max((row["last_ok_at"] for row in stats if row["last_ok_at"]), default=None),
        "versions": sorted(versions)
        or ([registered["version"]] if registered and registered["version"] else []),
        "workers": len(serving),
    }


def _has_live_worker(worker: Row, task_type: str, queue: str | None) -> bool:
    """Return whether a live worker runs tasks of a type.

    A worker without a list of types runs every type.
    """
    if worker["state"] != "live":
        return False
    if worker["types"] is not None:
        return task_type in worker["types"]
    return queue in (worker["queues"] or ())


@register_page("/task", "system.view", reads_replica=True)
async def show_task_type(request: PageRequest) -> DashboardPage:
    return await _build_task_type_page(request, request.query.get("name", ""), {}, None)


async def _build_task_type_page(
    request: PageRequest, name: str, arguments: dict[str, Any], error: HoldfastError | None
) -> DashboardPage:
    connection = request.connection
    registered = await task_types.get_task_type(connection, name)
    stats = [row for row in await overview.get_task_type_stats(connection, 24) if row["type"] == name]
    queues = [q for q in await engine_queues.list_task_queues(connection) if name in (q["types"] or ())]
    if registered is None and not stats and not queues:
        raise HTTPException(404, f"Task type {name} does not exist.")
    time_range = parse_time_range(request)
    chart_stats, day_before = await load_chart_stats(request, time_range, task_type=name)
    all_schedules = await schedules.list_schedules(connection, limit=500)
    return DashboardPage(
        "task.html",
        f"Task {name}",
        {
            "name": name,
            "registered": registered,
            "stats": stats,
            "queues": [q["queue"] for q in queues] or ([registered["queue"]] if registered else []),
            "throughput_chart": charts.build_chart(
                chart_stats,
                "Throughput",
                [("succeeded", "success", "succeeded"), ("failed", "danger", "failed")],
                day_before=day_before,
            ),
            "run_chart": charts.build_chart(
                chart_stats,
                "Run time",
                [("p50", "p50", "run_p50"), ("p95", "p95", "run_p95")],
                day_before=day_before,
            ),
            "time_range": time_range,
            "limits": [limit for limit in await limits.list_limits(connection) if limit["type"] == name],
            "schedules": [schedule for schedule in all_schedules if schedule.job.get("type") == name],
            "fields": forms.build_form_fields(registered["schema"], arguments) if registered else None,
            "args": arguments,
            "error": error,
        },
        live=error is None,
        status=200 if error is None else 422,
    )


@register_action("/task/submit", "jobs.submit")
async def submit_task(action: ActionRequest) -> tuple[str, str] | DashboardPage:
    request, connection, name = action.request, action.connection, action.get_required_text("name")
    registered = await task_types.get_task_type(connection, name)
    arguments: dict[str, Any] = {}
    try:
        arguments = forms.parse_form_arguments(action.form, registered["schema"] if registered else None)
        body: dict[str, Any] = {"type": name, "args": arguments, "check": True}
        body |= _parse_submit_options(action, registered)
        with translate_driver_errors(request.site.services.database.url):
            async with connection.transaction():
                submitted = await jobs.submit(connection, body)
    except InvalidError as error:
        return await _build_task_type_page(request, name, arguments, error)
    await action.record_audit("job.submit", submitted.id, type=name, key=action.get_text("key"))
    message = (
        "Job submitted." if submitted.created else "A job with this key already exists. This is that job."
    )
    return f"/jobs/{submitted.id}", message


def _parse_submit_options(action: ActionRequest, registered: Row | None) -> dict[str, Any]:
    options: dict[str, Any] = dict((registered or {}).get("options") or {})
    options["queue"] = action.get_text("queue") or (registered["queue"] if registered else "default")
    for name in ("key", "owner"):
        if action.get_text(name):
            options[name] = action.get_text(name)
    for name in ("delay_s", "priority"):
        number = action.get_number(name)
        if number is not None:
            options[name] = number
    return options
