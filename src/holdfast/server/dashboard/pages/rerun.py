"""Run a job again as a new job with changed arguments. The original stays, and the two link to each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException

from holdfast.engine import job_detail, jobs, task_types
from holdfast.engine.connection import translate_driver_errors
from holdfast.errors import HoldfastError, InvalidError
from holdfast.formatting import shorten_id
from holdfast.server.dashboard import forms
from holdfast.server.dashboard.job_redaction import create_job_redactor
from holdfast.server.dashboard.pages.job import get_job_or_404
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest


@register_page("/jobs/{id}/rerun", "jobs.edit")
async def show_rerun_form(request: PageRequest) -> DashboardPage:
    return await _build_rerun_page(request, None, None)


async def _build_rerun_page(
    request: PageRequest, edited: dict[str, Any] | None, error: HoldfastError | None
) -> DashboardPage:
    job = await get_job_or_404(request)
    if not request.can("payload.view"):
        raise HTTPException(403, "Your role may not view payloads, so it cannot edit them.")
    body = await job_detail.build_job_resubmission(request.connection, request.parse_id())
    schema = await _fetch_arguments_schema(request, body)
    redactor = await create_job_redactor(request, job)
    original = redactor.redact_payload(_get_job_arguments(body), schema)
    if isinstance(original, str):
        raise HTTPException(403, f"Your role may not see secrets: {original}")
    arguments = original if edited is None else edited
    return DashboardPage(
        "rerun.html",
        f"Run {job['type']} again",
        {
            "job": job,
            "fields": forms.build_form_fields(schema, arguments) if "tasks" not in body else None,
            "args": arguments,
            "has_several_tasks": "tasks" in body,
            "error": error,
        },
        live=False,
        status=200 if error is None else 422,
    )


async def _fetch_arguments_schema(request: PageRequest, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    task_type = await task_types.get_task_type(request.connection, str(body["type"]))
    return task_type["schema"] if task_type else None


def _get_job_arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a job's single task, or the arguments of its tasks by task name."""
    if "tasks" in body:
        return {task["name"]: task.get("args") for task in body["tasks"]}
    return body.get("args") or {}


def _replace_job_arguments(body: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    if "tasks" not in body:
        return {**body, "args": arguments}
    unknown = set(arguments) - {task["name"] for task in body["tasks"]}
    if unknown:
        raise InvalidError(f"The job has no task {min(unknown)!r}.", field="args")
    tasks = [{**task, "args": arguments.get(task["name"], task.get("args"))} for task in body["tasks"]]
    return {**body, "tasks": tasks}


@register_action("/jobs/{id}/rerun", "jobs.edit")
async def submit_rerun(action: ActionRequest) -> tuple[str, str] | DashboardPage:
    request, connection = action.request, action.connection
    job = await get_job_or_404(request)
    body = await job_detail.build_job_resubmission(connection, request.parse_id())
    schema = await _fetch_arguments_schema(request, body) if "tasks" not in body else None
    edited: dict[str, Any] | None = None
    try:
        edited = forms.parse_form_arguments(action.form, schema)
        arguments = forms.restore_masked_values(edited, _get_job_arguments(body))
        with translate_driver_errors(request.site.services.database.url):
            async with connection.transaction():
                submitted = await jobs.submit(
                    connection, {**_replace_job_arguments(body, arguments), "check": True}
                )
    except InvalidError as error:
        return await _build_rerun_page(request, edited, error)
    await job_detail.record_job_rerun(connection, request.parse_id(), submitted.id, action.actor_name)
    await action.record_audit("job.rerun", submitted.id, of=str(job["id"]), reason=action.get_text("reason"))
    return f"/jobs/{submitted.id}", f"New job submitted. Job {shorten_id(job['id'])} is unchanged."
