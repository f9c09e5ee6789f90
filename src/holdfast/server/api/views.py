"""Jobs as callers see them. A service sees all; a user sees no traceback and no message that was not meant
for users.

A task chooses what its user reads by raising `PublicError` (or `Reject`); of any other error a user learns
that it happened and the id to ask about.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from holdfast.engine.insight import Attempt
from holdfast.model import JobStatus, Json, TaskStatus
from holdfast.server.api.identity import Caller

FOR_USERS = frozenset({"PublicError", "Reject", "Cancel", "Cancelled", "Skipped", "ParentFailed", "Expired"})
KEPT_BACK = "Something went wrong while working on this."
# The time limit of an attempt, told by whoever noticed it; and of whatever the task itself waited for.
TIMED_OUT = frozenset({"TimedOut", "TimeoutError"})
TOO_LONG = "This took too long and was stopped."


class ProgressView(msgspec.Struct, kw_only=True):
    percent: float | None = None
    phase: str | None = None
    message: str | None = None


class ErrorView(msgspec.Struct, kw_only=True):
    type: str
    message: str
    traceback: str | None = None
    task: str | None = None


class TaskView(msgspec.Struct, kw_only=True):
    id: UUID
    name: str
    type: str
    queue: str
    status: TaskStatus
    attempt: int
    progress: ProgressView
    output: Json = None
    error: ErrorView | None = None
    due_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class CountsView(msgspec.Struct, kw_only=True):
    total: int
    succeeded: int
    failed: int
    cancelled: int
    skipped: int


class JobView(msgspec.Struct, kw_only=True):
    """A job. `event_seq` is the number of its last event; send it as `after` to wait for the next one."""

    id: UUID
    type: str
    status: JobStatus
    owner: str | None = None
    progress: ProgressView
    counts: CountsView
    event_seq: int
    params: Json = None
    labels: Json = None
    output: Json = None
    error: ErrorView | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    tasks: list[TaskView] | None = None


Viewer = Literal["user", "service"]


def job_view(job: dict[str, Json], caller: Caller) -> dict[str, Json]:
    """The job as this caller may see it."""
    return job if caller.kind == "service" else public_job(job)


def public_job(job: dict[str, Json]) -> dict[str, Json]:
    shown = {**job, "error": public_error(job.get("error"))}
    if job.get("tasks") is not None:
        shown["tasks"] = [{**task, "error": public_error(task.get("error"))} for task in job["tasks"]]
    return shown


def public_error(error: Json) -> Json:
    if error is None:
        return None
    kind = str(error.get("type") or "Error")
    if kind in FOR_USERS:
        shown = {"type": kind, "message": str(error.get("message") or "")}
    elif kind in TIMED_OUT:
        shown = {"type": "TimedOut", "message": TOO_LONG}
    else:
        shown = {"type": "Error", "message": KEPT_BACK}
    return {**shown, "task": error["task"]} if error.get("task") else shown


def public_attempt(attempt: Attempt) -> Attempt:
    shown = public_error({"type": attempt.error_type, "message": attempt.message})
    return msgspec.structs.replace(
        attempt,
        worker=None,
        traceback=None,
        fingerprint=None,
        error_type=shown["type"] if attempt.error_type else None,
        message=shown["message"] if attempt.error_type else None,
    )


def without_traceback(explained: dict[str, Json], caller: Caller) -> dict[str, Json]:
    if caller.kind == "service":
        return explained
    reasons: list[Any] = explained.get("reasons") or []
    hidden = {"worker", "held_by", "by"}
    return {
        **explained,
        "reasons": [
            {
                name: public_error(value) if name == "error" else value
                for name, value in reason.items()
                if name not in hidden
            }
            for reason in reasons
        ],
    }
