"""Run a job again as a new one, with another payload: the old one stays, and both know each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException

from holdfast.engine import insight, jobs, operate
from holdfast.engine.connection import translated
from holdfast.errors import HoldfastError, InvalidError
from holdfast.server.dashboard import forms
from holdfast.server.dashboard.pages.job import found_job
from holdfast.server.dashboard.registry import deed, screen
from holdfast.server.dashboard.site import Deed, Page, View


@screen("/jobs/{id}/rerun", "jobs.edit")
async def rerun(view: View) -> Page:
    return await _page(view, None, None)


async def _page(view: View, typed: dict[str, Any] | None, wrong: HoldfastError | None) -> Page:
    found = await found_job(view)
    if not view.may("payload.view"):
        raise HTTPException(403, "Your role may not see payloads, and so not edit them.")
    body = await operate.submission(view.connection, view.uuid())
    schema = await _schema(view, body)
    shown = view.redactor().payload(_arguments(body), schema)
    values = shown if typed is None else typed
    return Page(
        "rerun.html",
        f"Run {found['type']} again",
        {
            "job": found,
            "fields": forms.fields(schema, values) if "tasks" not in body else None,
            "args": values,
            "several": "tasks" in body,
            "wrong": wrong,
        },
        live=False,
        status=200 if wrong is None else 422,
    )


async def _schema(view: View, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    known = await insight.task_type(view.connection, str(body["type"]))
    return known["schema"] if known else None


def _arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """Of one task its own; of several the arguments of each, by name."""
    if "tasks" in body:
        return {task["name"]: task.get("args") for task in body["tasks"]}
    return body.get("args") or {}


def _with_arguments(body: Mapping[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    if "tasks" not in body:
        return {**body, "args": args}
    unknown = set(args) - {task["name"] for task in body["tasks"]}
    if unknown:
        raise InvalidError(f"The job has no task {min(unknown)!r}.", field="args")
    tasks = [{**task, "args": args.get(task["name"], task.get("args"))} for task in body["tasks"]]
    return {**body, "tasks": tasks}


@deed("/jobs/{id}/rerun", "jobs.edit")
async def again(asked: Deed) -> tuple[str, str] | Page:
    view, on = asked.view, asked.connection
    found = await found_job(view)
    body = await operate.submission(on, view.uuid())
    schema = await _schema(view, body) if "tasks" not in body else None
    typed: dict[str, Any] | None = None
    try:
        typed = forms.typed(asked.form, schema)
        args = forms.unmasked(typed, _arguments(body))
        with translated(view.site.services.database.url):
            async with on.transaction():
                made = await jobs.submit(on, {**_with_arguments(body, args), "check": True})
    except InvalidError as wrong:
        return await _page(view, typed, wrong)
    await insight.link_rerun(on, view.uuid(), made.id, asked.by)
    await asked.audit("job.rerun", made.id, of=str(found["id"]), reason=asked.text("reason"))
    return f"/jobs/{made.id}", f"A new job was made out of {str(found['id'])[:8]}…; the old one is unchanged."
