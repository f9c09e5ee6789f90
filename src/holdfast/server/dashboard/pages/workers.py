"""The worker pages: state, load and version of each worker, and the commands to drain or stop it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from starlette.exceptions import HTTPException

from holdfast.engine import leases
from holdfast.engine import workers as engine_workers
from holdfast.errors import InvalidError
from holdfast.search import quote_search_value
from holdfast.server.dashboard.job_redaction import create_job_redactors
from holdfast.server.dashboard.json_values import object_or_empty
from holdfast.server.dashboard.pages.jobs import redact_progress
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest, build_dashboard_url

MAX_LISTED_WORKER_AGE_S = 40 * 86400
CONFIRMATIONS_BY_WORKER_COMMAND = {
    "drain": "Drain requested.",
    "stop": "Stop requested.",
    "none": "The pending command was withdrawn.",
}


@register_page("/workers", "system.view")
async def list_workers(request: PageRequest) -> DashboardPage:
    workers = [_flatten_worker_report(row) for row in await engine_workers.list_workers(request.connection)]
    live = [worker for worker in workers if worker["state"] in {"live", "quiet"}]
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
        "state": "exited" if row["state"] == "stopped" else row["state"],
        **{name: report.get(name) for name in ("host", "pid", "version", "slots", "processes")},
        "lag_ms": report.get("loop_lag_ms"),
        "rss": report.get("rss"),
        "blocked": report.get("blocked"),
    }


@register_page("/worker", "system.view")
async def show_worker(request: PageRequest) -> DashboardPage:
    name = request.query.get("name", "")
    workers = await engine_workers.list_workers(request.connection, within_s=MAX_LISTED_WORKER_AGE_S)
    row = next((worker for worker in workers if worker["name"] == name), None)
    if row is None:
        raise HTTPException(404, f"Worker {name} does not exist.")
    running = await engine_workers.list_running_tasks_of_worker(request.connection, name)
    redactors = await create_job_redactors(request, (task["job"] for task in running))
    return DashboardPage(
        "worker.html",
        f"Worker {name}",
        {
            "worker": _flatten_worker_report(row),
            "report": row.get("report") or {},
            "running": [{**task, **redact_progress(task, redactors[task["job"]])} for task in running],
            "jobs_query": f"worker:{quote_search_value(name)}",
        },
    )


@register_action("/worker/command", "worker.stop")
async def send_worker_command(action: ActionRequest) -> tuple[str, str]:
    name, command = action.get_required_text("name"), action.get_required_text("command")
    is_alive = await leases.set_worker_command(action.connection, name, _parse_worker_command(command))
    await action.record_audit(f"worker.{command}", name, live=is_alive, reason=action.get_text("reason"))
    message = CONFIRMATIONS_BY_WORKER_COMMAND[command] + (
        "" if is_alive else " The worker sends no heartbeats at the moment."
    )
    return build_dashboard_url("/worker", name=name), message


def _parse_worker_command(text: str) -> Literal["drain", "stop"] | None:
    """Parse a worker command: drain, stop, or None for `none`, which withdraws a pending command."""
    match text:
        case "drain" | "stop":
            return text
        case "none":
            return None
        case _:
            raise InvalidError("Choose drain or stop.", field="command")
