"""Explain why the tasks of a job are not running."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from holdfast.engine import explain, jobs
from holdfast.engine.connection import Connection
from holdfast.errors import NotFoundError
from holdfast.formatting import describe_wait_reason

MAX_EXPLAINED_TASKS = 20
UNFINISHED_TASK_STATUSES = {"waiting", "scheduled", "ready", "running"}


async def explain_job(connection: Connection, job_id: UUID) -> list[dict[str, Any]]:
    """Return the reasons why the tasks of a job are not running, one row per reason.

    If all tasks have ended, the rows say so for every task, otherwise for the unfinished tasks only.

    `why` is the reason as a sentence. The other fields are those of `explain_task`.
    """
    job = await jobs.get_job(connection, job_id)
    if job is None:
        raise NotFoundError(f"Job {job_id} does not exist.", field="id")
    tasks = [task for task in job["tasks"] if task["status"] in UNFINISHED_TASK_STATUSES] or list(
        job["tasks"]
    )
    named = [(UUID(task["id"]), task["name"]) for task in tasks[:MAX_EXPLAINED_TASKS]]
    return [
        {
            **reason.details,
            "reason": reason.reason,
            "task": reason.task,
            "id": str(reason.task_id),
            "status": reason.status,
            "why": str(describe_wait_reason({**reason.details, "reason": reason.reason})),
        }
        for reason in await explain.explain_tasks(connection, named)
    ]
