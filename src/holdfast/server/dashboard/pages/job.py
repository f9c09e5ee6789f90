"""One job: its timeline and graph, why it does not run, attempts, logs, files, payload, events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from starlette.exceptions import HTTPException

from holdfast.engine import artifacts, insight, jobs, logs
from holdfast.engine.connection import Connection
from holdfast.server.dashboard import timeline
from holdfast.server.dashboard.pages.jobs import shown
from holdfast.server.dashboard.redaction import HIDDEN, Redactor
from holdfast.server.dashboard.registry import deed, screen
from holdfast.server.dashboard.site import Deed, Page, View
from holdfast.server.dashboard.words import between, plural

TABS = ("attempts", "logs", "files", "payload", "events", "tasks")
MOST = 300
EXPLAINED = 5
OURS = ("holdfast/", "asyncio/", "concurrent/", "threading.py", "site-packages/")
Row = Mapping[str, Any]


@screen("/jobs/{id}", "jobs.view")
async def job(view: View) -> Page:
    found = await found_job(view)
    tab = view.query.get("tab", "attempts")
    tab = tab if tab in TABS else "attempts"
    redactor = await _redactor(view, found)
    tasks = [_task(task, redactor) for task in found["tasks"] or ()]
    row = shown(view, found)
    row["progress"]["message"] = redactor.text(found["progress"].get("message"))
    if row["error"]:
        row["error"]["message"] = redactor.text(found["error"].get("message"))
    return Page(
        "job.html",
        f"{found['type']} {str(found['id'])[-5:]}",
        {
            "job": row,
            "tasks": tasks,
            "hidden": found["counts"]["total"] - len(tasks),
            "why": await _why(view, tasks),
            "gantt": timeline.gantt(tasks, found["attempts"], view.now),
            "graph": timeline.graph(tasks, found["edges"]),
            "tab": tab,
            "tabs": TABS,
            "reruns": await insight.job_reruns(view.connection, view.uuid()),
            **await _tab(view, tab, found, tasks, redactor),
        },
    )


async def found_job(view: View) -> dict[str, Any]:
    found = await insight.job_page(view.connection, view.uuid(), most=MOST)
    if found is None or not view.owns(found["owner"]):
        raise HTTPException(404, "There is no such job, or it is not yours to see.")
    return found


async def _redactor(view: View, found: Row) -> Redactor:
    """Knows the secrets in the payload before anything of this job is shown."""
    redactor = view.redactor()
    redactor.learn(found.get("params"))
    for task in (found["tasks"] or ())[:20]:
        if not found["single"] and not redactor.secrets:
            payload = await insight.task_payload(view.connection, UUID(task["id"]))
            redactor.learn(payload["args"] if payload else None)
    return redactor


def _task(task: Row, redactor: Redactor) -> dict[str, Any]:
    error = task.get("error")
    failing = task["failures"] + task["crashes"] > 0
    return {
        **task,
        "state": "retrying" if task["status"] == "scheduled" and failing else task["status"],
        "message": redactor.text(task["message"]),
        "error": {**error, "message": redactor.text(error.get("message"))} if error else None,
    }


async def _why(view: View, tasks: Sequence[Row]) -> list[dict[str, Any]]:
    """Why tasks that could run do not; in sentences, for the first few."""
    said: list[dict[str, Any]] = []
    for task in [t for t in tasks if t["status"] in {"ready", "scheduled", "waiting"}][:EXPLAINED]:
        told = await insight.explain_task(view.connection, UUID(task["id"]))
        said += [{"task": task["name"], **_sentence(reason, told, view)} for reason in told["reasons"] or ()]
    return said


def _sentence(reason: Row, told: Row, view: View) -> dict[str, Any]:
    """One reason as text, with the time it ends and a link where there is one."""
    kind = reason["reason"]
    if kind == "paused":
        why = f" “{reason['why']}”" if reason.get("why") else ""
        text = f"queue {told['queue']} was paused by {reason.get('by') or 'somebody'}{why}"
        return {"text": text, "until": reason.get("until"), "link": view.url("/queue", name=told["queue"])}
    if kind == "no_worker":
        text = f"no live worker serves {reason['type']} on queue {reason['queue']}"
        return {"text": text, "until": None, "link": view.url("/workers")}
    if kind in {"limit", "rate", "asleep"}:
        key = f" for {reason['key']}" if reason.get("key") else ""
        held = f": {reason['running']} of {reason['max_running']} in use" if kind == "limit" else ""
        word = {"limit": "is full", "rate": "is used up", "asleep": "sleeps"}[kind]
        text = f"limit {reason['limit']}{key} {word}{held}"
        found = {"text": text, "until": reason.get("until"), "link": view.url("/limits")}
        return {**found, "holders": reason.get("held_by") or []}
    if kind == "dependency":
        return {
            "text": f"waits for {reason['task']}, which is {reason['status']}",
            "until": None,
            "link": None,
        }
    if kind == "scheduled":
        overdue = (between(reason["until"], view.now) or 0) > 1
        text = "is tried again" if told["attempt"] else "is due"
        text = "fell due, and no worker has taken it up yet" if overdue else text
        return {"text": text, "until": reason["until"], "link": None}
    if kind == "queued":
        text = f"is next: {plural(reason['ahead'], 'task')} ahead of it"
        return {"text": text, "until": None, "link": view.url("/queue", name=told["queue"])}
    return {"text": kind, "until": reason.get("start_before"), "link": None}


async def _tab(view: View, tab: str, found: Row, tasks: Sequence[Row], redactor: Redactor) -> dict[str, Any]:
    on, job_id = view.connection, view.uuid()
    if tab == "attempts":
        return {"attempts": [_attempt(a, redactor) for a in await insight.job_attempts(on, job_id)]}
    if tab == "logs":
        lines = await logs.read_logs(on, job_id, limit=500, newest=True)
        names = {task["id"]: task["name"] for task in tasks}
        return {
            "lines": [
                (
                    line,
                    names.get(str(line.task_id), ""),
                    redactor.text(line.message),
                    redactor.payload(line.fields) if line.fields else None,
                )
                for line in lines
            ]
        }
    if tab == "files":
        return {"files": await artifacts.list_artifacts(on, {"job": str(job_id)}, limit=200)}
    if tab == "events":
        return {"events": [_event(e, redactor) for e in await jobs.job_events(on, job_id, limit=500)]}
    if tab == "payload":
        return {"payloads": await _payloads(on, tasks, redactor)}
    return {}


def _attempt(attempt: Row, redactor: Redactor) -> dict[str, Any]:
    trace = redactor.text(attempt.get("traceback"))
    return {
        **attempt,
        "message": redactor.text(attempt.get("message")),
        "frames": frames(trace),
        "traceback": trace,
    }


def frames(trace: str) -> list[tuple[bool, str]]:
    """A traceback in pieces: (whether it is the user's own code, text). Library frames are folded away."""
    pieces: list[tuple[bool, str]] = []
    for line in trace.splitlines():
        if line.startswith('  File "'):
            pieces.append((not any(part in line for part in OURS), line))
        elif line.startswith("    ") and pieces:
            own, text = pieces[-1]
            pieces[-1] = (own, f"{text}\n{line}")
        else:
            pieces.append((True, line))
    return pieces


def _event(event: jobs.Event, redactor: Redactor) -> dict[str, Any]:
    body = dict(event.body or {})
    if "message" in body:
        body["message"] = redactor.text(body["message"])
    for name in ("output", "result", "error", "args"):
        if name in body:
            body[name] = redactor.payload(body[name])
    return {"seq": event.seq, "at": event.at, "kind": event.kind, "body": body}


async def _payloads(on: Connection, tasks: Sequence[Row], redactor: Redactor) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for task in tasks[:20]:
        payload = await insight.task_payload(on, UUID(task["id"]))
        if payload is None:
            continue
        known = await insight.task_type(on, task["type"])
        schema = known["schema"] if known else None
        redactor.learn(payload["args"], schema)
        found.append(
            {
                "name": task["name"],
                "args": redactor.payload(payload["args"], schema),
                "output": redactor.payload(payload["output"]),
                "hidden": HIDDEN if not redactor.payloads else None,
            }
        )
    return found


async def _owned(asked: Deed) -> UUID:
    """The job of an action, if its visitor may know of it at all."""
    return UUID(str((await found_job(asked.view))["id"]))


@deed("/jobs/{id}/retry", "jobs.retry")
async def retry(asked: Deed) -> tuple[str, str]:
    job_id = await _owned(asked)
    names = [name for name in asked.form.getlist("from") if isinstance(name, str) and name]
    count = await jobs.retry_job(asked.connection, job_id, from_tasks=names or None)
    await asked.audit("job.retry", job_id, tasks=count, reason=asked.text("reason"))
    return f"/jobs/{job_id}", f"{plural(count, 'task')} put back to work." if count else "Nothing to retry."


@deed("/jobs/{id}/cancel", "jobs.cancel")
async def cancel(asked: Deed) -> tuple[str, str]:
    job_id = await _owned(asked)
    told = await jobs.cancel_job(
        asked.connection, job_id, asked.text("reason") or f"Cancelled by {asked.by}."
    )
    await asked.audit("job.cancel", job_id, done=told["cancelled"], reason=asked.text("reason"))
    return f"/jobs/{job_id}", "Cancelled." if told[
        "cancelled"
    ] else f"It had ended already: {told['status']}."
