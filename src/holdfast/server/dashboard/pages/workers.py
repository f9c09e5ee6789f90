"""The worker pages: state, load and version of each worker, and the commands to drain or stop it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from starlette.exceptions import HTTPException

from holdfast.engine import leases
from holdfast.engine import workers as engine_workers
from holdfast.errors import InvalidError
from holdfast.formatting import format_size, truncate_text
from holdfast.search import quote_search_value
from holdfast.server.dashboard import named_charts
from holdfast.server.dashboard.flash import ActionResult, UndoAction
from holdfast.server.dashboard.job_redaction import create_job_redactors
from holdfast.server.dashboard.json_values import object_or_empty
from holdfast.server.dashboard.pages.jobs import redact_progress
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest, build_dashboard_url
from holdfast.server.dashboard.time_ranges import parse_time_range

MAX_LISTED_WORKER_AGE_S = 40 * 86400
CONFIRMATIONS_BY_WORKER_COMMAND = {
    "drain": "Drain requested.",
    "stop": "Stop requested.",
    "none": "The pending command was withdrawn.",
}


@register_page("/workers", "system.view", reads_replica=True)
async def list_workers(request: PageRequest) -> DashboardPage:
    workers = [_flatten_worker_report(row) for row in await engine_workers.list_workers(request.connection)]
    live = [worker for worker in workers if worker["state"] in {"live", "draining", "unresponsive"}]
    newest = max((worker["version"] or "" for worker in live), default="")
    return DashboardPage(
        "workers.html",
        "Workers",
        {
            "live_workers": live,
            "former_workers": [worker for worker in workers if worker not in live],
            "newest_version": newest,
        },
    )


def _flatten_worker_report(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a worker row with the fields of its `report` object merged in."""
    report = object_or_empty(row.get("report"))
    return {
        **row,
        **{name: report.get(name) for name in ("host", "pid", "version", "slots", "processes")},
        "lag_ms": report.get("loop_lag_ms"),
        "rss": report.get("rss"),
        "blocked": report.get("blocked"),
    }


def _describe_worker_report(row: Mapping[str, Any]) -> dict[str, str]:
    """Return what a worker reports about itself, as labels and texts."""
    report = object_or_empty(row.get("report"))
    described = {
        "Host": report.get("host"),
        "Process ID": report.get("pid"),
        "Version": report.get("version"),
        "Slots": report.get("slots"),
        "Processes": report.get("processes"),
        "Memory": format_size(report["rss"]) if isinstance(report.get("rss"), int) else None,
        "Loop lag": f"{report['loop_lag_ms']} ms" if report.get("loop_lag_ms") is not None else None,
        "Blocked by": report.get("blocked"),
    }
    return {label: truncate_text(value, 120) for label, value in described.items() if value not in (None, "")}


@register_page("/worker", "system.view")
async def show_worker(request: PageRequest) -> DashboardPage:
    name = request.query.get("name", "")
    workers = await engine_workers.list_workers(request.connection, within_s=MAX_LISTED_WORKER_AGE_S)
    row = next((worker for worker in workers if worker["name"] == name), None)
    if row is None:
        raise HTTPException(404, f"Worker {name} does not exist.")
    running = await engine_workers.list_running_tasks_of_worker(request.connection, name)
    redactors = await create_job_redactors(request, (task["job"] for task in running))
    time_range = parse_time_range(request)
    stats = await named_charts.load_named_stats(request, time_range, "worker", name)
    return DashboardPage(
        "worker.html",
        f"Worker {name}",
        {
            "worker": _flatten_worker_report(row),
            "report": _describe_worker_report(row),
            "running": [{**task, **redact_progress(task, redactors[task["job"]])} for task in running],
            "jobs_query": f"worker:{quote_search_value(name)}",
            "time_range": time_range,
            "throughput_chart": named_charts.build_outcome_chart(stats),
            "run_time_chart": named_charts.build_run_time_chart(stats),
        },
    )


@register_action("/worker/command", "worker.stop")
async def send_worker_command(action: ActionRequest) -> ActionResult:
    name, command = action.get_required_text("name"), action.get_required_text("command")
    is_alive = await leases.set_worker_command(action.connection, name, _parse_worker_command(command))
    await action.record_audit(f"worker.{command}", name, live=is_alive, reason=action.get_text("reason"))
    message = CONFIRMATIONS_BY_WORKER_COMMAND[command] + (
        "" if is_alive else " The worker sends no heartbeats at the moment."
    )
    undo = None if command == "none" else UndoAction("/worker/command", {"name": name, "command": "none"})
    return ActionResult(build_dashboard_url("/worker", name=name), message, undo)


def _parse_worker_command(text: str) -> Literal["drain", "stop"] | None:
    """Parse a worker command: drain, stop, or None for `none`, which withdraws a pending command."""
    match text:
        case "drain" | "stop":
            return text
        case "none":
            return None
        case _:
            raise InvalidError("Choose drain or stop.", field="command")
