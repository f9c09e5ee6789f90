"""One job: timeline, dependency graph, why it is not running, attempts, logs, files, payload and events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from starlette.exceptions import HTTPException

from holdfast.engine import artifacts, explain, job_detail, jobs, logs, task_types
from holdfast.engine.connection import Connection
from holdfast.formatting import describe_wait_reason, format_count
from holdfast.model import LogLine, TaskExplanation
from holdfast.server.dashboard import timeline
from holdfast.server.dashboard.flash import ActionResult, UndoAction
from holdfast.server.dashboard.job_attempts import group_log_lines, list_all_attempts
from holdfast.server.dashboard.job_redaction import create_job_redactor
from holdfast.server.dashboard.pages.jobs import redact_job_row, redact_progress
from holdfast.server.dashboard.redaction import PayloadRedactor
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.site import (
    ActionRequest,
    DashboardPage,
    PageRequest,
    parse_uuid_or_404,
)
from holdfast.server.dashboard.task_graph import draw_task_graph

JOB_TABS = {
    "attempts": "Attempts",
    "logs": "Logs",
    "files": "Files",
    "payload": "Payload",
    "events": "Events",
    "tasks": "Tasks",
}
MAX_SHOWN_TASKS = 1000
MAX_DRAWN_GRAPH_TASKS = 300
MAX_SHOWN_ATTEMPTS = 100
MAX_LOG_LINES_PER_ATTEMPT = 20
MAX_EXPLAINED_TASKS = 5
MAX_TASKS_WITH_PAYLOAD = 20
MAX_SHOWN_LOG_LINES = 500
MAX_SEARCHED_LOG_LINES = 5000
LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_SHOWN_EVENTS = 500
MAX_SHOWN_FILES = 200
LIBRARY_PATH_PARTS = ("holdfast/", "asyncio/", "concurrent/", "threading.py", "site-packages/")
EVENT_PAYLOAD_FIELDS = ("output", "result", "error", "args")
EVENT_TEXT_FIELDS = ("message", "phase", "reason")
Row = Mapping[str, Any]


@register_page("/jobs/{id}", "jobs.view")
async def show_job(request: PageRequest) -> DashboardPage:
    detail = await get_job_or_404(request)
    tab = request.query.get("tab", "attempts")
    tab = tab if tab in JOB_TABS else "attempts"
    redactor = await create_job_redactor(request, detail)
    tasks = [_redact_task(task, redactor) for task in detail["tasks"] or ()]
    job = redact_job_row(detail, redactor, request.now)
    return DashboardPage(
        "job.html",
        f"{detail['type']} {str(detail['id'])[-5:]}",
        {
            "job": job,
            "tasks": tasks,
            "omitted_tasks": detail["counts"]["total"] - len(tasks),
            "reasons": await _explain_tasks(request, tasks),
            "timeline": timeline.build_timeline(detail["created_at"], tasks, detail["attempts"], request.now),
            "task_graph": draw_task_graph(tasks[:MAX_DRAWN_GRAPH_TASKS], detail["edges"]),
            "tab": tab,
            "tabs": JOB_TABS,
            "reruns": await job_detail.get_rerun_links(request.connection, request.parse_id()),
            **await _load_tab_values(request, tab, tasks, redactor),
        },
    )


async def get_job_or_404(request: PageRequest) -> dict[str, Any]:
    """Return the job of a request. Respond with 404 if it does not exist or the user may not see it."""
    detail = await job_detail.get_job_detail(
        request.connection, request.parse_id(), max_tasks=MAX_SHOWN_TASKS
    )
    if detail is None or not request.can_see_owner(detail["owner"]):
        raise HTTPException(404, f"Job {request.parse_id()} does not exist, or you do not have access to it.")
    return detail


def _redact_task(task: Row, redactor: PayloadRedactor) -> dict[str, Any]:
    error = task.get("error")
    has_failed = task["failures"] + task["crashes"] > 0
    return {
        **task,
        "state": "retrying" if task["status"] == "scheduled" and has_failed else task["status"],
        **redact_progress(task, redactor),
        "error": {**error, "message": redactor.redact_text(error.get("message"))} if error else None,
    }


async def _explain_tasks(request: PageRequest, tasks: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the reasons why the first unfinished tasks of a job are not running."""
    waiting = [task for task in tasks if task["status"] in {"ready", "scheduled", "waiting"}]
    named = [(UUID(task["id"]), str(task["name"])) for task in waiting[:MAX_EXPLAINED_TASKS]]
    return [
        {
            "task": reason.task,
            # The page shows the error elsewhere, redacted.
            "description": describe_wait_reason(
                {**reason.details, "reason": reason.reason, "error": None}, request.now
            ),
            "link": _find_reason_link(reason, request),
        }
        for reason in await explain.explain_tasks(request.connection, named)
    ]


def _find_reason_link(reason: TaskExplanation, request: PageRequest) -> tuple[str, str] | None:
    """Return a link (label, URL) to the page where the user can resolve a reason, or None."""
    if reason.reason in {"paused", "queued"}:
        return "Queue", request.build_url("/queue", name=reason.details["queue"])
    if reason.reason == "no_worker":
        return "Workers", request.build_url("/workers")
    if reason.reason in {"limit", "rate", "asleep"}:
        return "Limits", request.build_url("/limits")
    return None


async def _load_tab_values(
    request: PageRequest, tab: str, tasks: Sequence[Row], redactor: PayloadRedactor
) -> dict[str, Any]:
    connection, job_id = request.connection, request.parse_id()
    if tab == "attempts":
        return await _load_attempts(request, tasks, redactor)
    if tab == "logs":
        return await _load_log_values(request, tasks, redactor)
    if tab == "files":
        return {
            "files": await artifacts.list_artifacts(connection, {"job": str(job_id)}, limit=MAX_SHOWN_FILES)
        }
    if tab == "events":
        events = await jobs.list_job_events(connection, job_id, limit=MAX_SHOWN_EVENTS)
        return {"events": [_redact_event(event, redactor) for event in events]}
    if tab == "payload":
        return {"payloads": await _load_task_payloads(connection, tasks, redactor)}
    return {}


async def _load_log_values(
    request: PageRequest, tasks: Sequence[Row], redactor: PayloadRedactor
) -> dict[str, Any]:
    """Return the newest log lines that match the filters of the page, and the filters."""
    level = request.query.get("level", "debug")
    level = level if level in LOG_LEVELS else "debug"
    task = request.query.get("task")
    task_id = parse_uuid_or_404(task) if task else None
    attempt, words = request.query.get("attempt", ""), request.query.get("find", "").strip()[:200]
    rows = await logs.read_logs(
        request.connection,
        request.parse_id(),
        limit=MAX_SEARCHED_LOG_LINES if words or attempt else MAX_SHOWN_LOG_LINES,
        level=level,
        task_id=task_id,
        newest=True,
    )
    lines = [
        line
        for line in load_log_lines(rows, tasks, redactor)
        if (not attempt or str(line["attempt"]) == attempt)
        and words.lower() in f"{line['message']} {line['fields'] or ''}".lower()
    ]
    return {
        "log_lines": lines[-MAX_SHOWN_LOG_LINES:],
        "log_is_truncated": len(rows) >= MAX_SHOWN_LOG_LINES,
        "log_level": level,
        "log_levels": LOG_LEVELS,
        "log_search": words,
        "log_task": task or "",
        "log_attempt": attempt,
    }


def load_log_lines(
    rows: Iterable[LogLine], tasks: Sequence[Row], redactor: PayloadRedactor
) -> list[dict[str, Any]]:
    """Return log lines with the names of their tasks, without values that the user may not see."""
    names = {task["id"]: task["name"] for task in tasks}
    return [
        {
            "at": line.at,
            "level": line.level,
            "task_id": str(line.task_id),
            "task": names.get(str(line.task_id), ""),
            "attempt": line.attempt,
            "message": redactor.redact_text(line.message),
            "fields": redactor.redact_payload(line.fields) if line.fields else None,
        }
        for line in rows
    ]


async def _load_attempts(
    request: PageRequest, tasks: Sequence[Row], redactor: PayloadRedactor
) -> dict[str, Any]:
    connection, job_id = request.connection, request.parse_id()
    stored = await job_detail.list_job_attempts(connection, job_id)
    lines = await logs.read_logs(connection, job_id, limit=MAX_SHOWN_LOG_LINES, newest=True)
    attempts = list_all_attempts(tasks, [redact_attempt(attempt, redactor) for attempt in stored])
    return {
        "attempts": attempts[:MAX_SHOWN_ATTEMPTS],
        "omitted_attempts": max(len(attempts) - MAX_SHOWN_ATTEMPTS, 0),
        "log_lines_by_attempt": group_log_lines(
            load_log_lines(lines, tasks, redactor), max_lines_per_attempt=MAX_LOG_LINES_PER_ATTEMPT
        ),
    }


def redact_attempt(attempt: Row, redactor: PayloadRedactor) -> dict[str, Any]:
    """Return an attempt without values that the user may not see, with its traceback split into frames."""
    traceback = redactor.redact_text(attempt.get("traceback"))
    return {
        **attempt,
        "message": redactor.redact_text(attempt.get("message")),
        "frames": split_traceback(traceback),
        "traceback": traceback,
    }


def split_traceback(traceback: str) -> list[tuple[bool, str]]:
    """Split a traceback into frames: pairs of (is application code, text)."""
    frames: list[tuple[bool, str]] = []
    for line in traceback.splitlines():
        if line.startswith('  File "'):
            frames.append((not any(path in line for path in LIBRARY_PATH_PARTS), line))
        elif line.startswith("    ") and frames:
            is_application, text = frames[-1]
            frames[-1] = (is_application, f"{text}\n{line}")
        else:
            frames.append((True, line))
    return frames


def _redact_event(event: jobs.JobEvent, redactor: PayloadRedactor) -> dict[str, Any]:
    """Return an event without values that the user may not see. Names, numbers and states stay visible."""
    body = dict(event.body or {})
    for name, value in body.items():
        if isinstance(value, (dict, list)) or name in EVENT_PAYLOAD_FIELDS:
            body[name] = redactor.redact_payload(value)
        elif isinstance(value, str) and (redactor.can_view_payloads or name in EVENT_TEXT_FIELDS):
            body[name] = redactor.redact_text(value)
    return {"seq": event.seq, "at": event.at, "kind": event.kind, "body": body}


async def _load_task_payloads(
    connection: Connection, tasks: Sequence[Row], redactor: PayloadRedactor
) -> list[dict[str, Any]]:
    payloads: list[dict[str, Any]] = []
    for task in tasks[:MAX_TASKS_WITH_PAYLOAD]:
        payload = await job_detail.get_task_payload(connection, UUID(task["id"]))
        if payload is None:
            continue
        task_type = await task_types.get_task_type(connection, task["type"])
        schema = task_type["schema"] if task_type else None
        redactor.collect_secrets(payload["args"], schema)
        payloads.append(
            {
                "name": task["name"],
                "args": redactor.redact_payload(payload["args"], schema),
                "output": redactor.redact_payload(payload["output"]),
            }
        )
    return payloads


async def _get_visible_job_id(action: ActionRequest) -> UUID:
    return UUID(str((await get_job_or_404(action.request))["id"]))


@register_action("/jobs/{id}/retry", "jobs.retry")
async def retry_job(action: ActionRequest) -> tuple[str, str]:
    job_id = await _get_visible_job_id(action)
    names = [name for name in action.form.getlist("from") if isinstance(name, str) and name]
    count = await jobs.retry_job(action.connection, job_id, from_tasks=names or None)
    await action.record_audit("job.retry", job_id, tasks=count, reason=action.get_text("reason"))
    message = f"{format_count(count, 'task')} will run again." if count else "There is nothing to retry."
    return f"/jobs/{job_id}", message


@register_action("/jobs/{id}/cancel", "jobs.cancel")
async def cancel_job(action: ActionRequest) -> ActionResult:
    job_id = await _get_visible_job_id(action)
    reason = action.get_text("reason") or f"Cancelled by {action.actor_name}."
    result = await jobs.cancel_job(action.connection, job_id, reason)
    await action.record_audit(
        "job.cancel", job_id, done=result["cancelled"], reason=action.get_text("reason")
    )
    if not result["cancelled"]:
        return ActionResult(f"/jobs/{job_id}", f"The job has already ended: {result['status']}.")
    undo = UndoAction(f"/jobs/{job_id}/retry", {"reason": "The cancellation was undone."})
    can_undo = action.request.can("jobs.retry")
    return ActionResult(f"/jobs/{job_id}", "Job cancelled.", undo if can_undo else None)
