"""Build the view of a job for its caller. Users see no traceback and no internal error message.

A task decides what its user reads by raising `PublicError` or `Reject`. For any other error the user learns
that it happened, and the id of the job to ask about.

The SQL functions that users may call apply the same rules (functions/access/user_views.sql). These functions
are for jobs that the application read with the rights of a service.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast.engine.explain import FailedAttempt
from holdfast.model import JobStatus, Json, TaskStatus
from holdfast.server.api.identity import Caller

PUBLIC_ERROR_TYPES = frozenset(
    {"PublicError", "Reject", "Cancel", "Cancelled", "Skipped", "ParentFailed", "Expired"}
)
HIDDEN_ERROR_MESSAGE = "Something went wrong while working on this."
# "TimedOut" is the time limit of an attempt. "TimeoutError" may also come from something the task waited for.
TIMEOUT_ERROR_TYPES = frozenset({"TimedOut", "TimeoutError"})
PUBLIC_TIMEOUT_MESSAGE = "This took too long and was stopped."


class ProgressView(msgspec.Struct, kw_only=True):
    """Reported progress of a job or task."""

    percent: float | None = None
    phase: str | None = None
    message: str | None = None


class ErrorView(msgspec.Struct, kw_only=True):
    """The error of a failed job or task. Users see no traceback and no internal message."""

    type: str
    message: str
    traceback: str | None = None
    task: str | None = None


class TaskView(msgspec.Struct, kw_only=True):
    """A task of a job with its status, progress, output and error."""

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


class TaskCounts(msgspec.Struct, kw_only=True):
    """The number of tasks of a job, in total and for each final status."""

    total: int
    succeeded: int
    failed: int
    cancelled: int
    skipped: int


class JobFileView(msgspec.Struct, kw_only=True):
    """A file that a job has saved. Request a link with its `id`."""

    id: UUID
    name: str
    kind: str
    type: str
    size: int
    expires_at: datetime | None = None


class JobView(msgspec.Struct, kw_only=True):
    """A job with its status, progress, output and error.

    `event_seq` is the number of the last event of the job. Send it as `after` to wait for the next event.
    `tasks` and `artifacts` are there if you read a single job.

    >>> from holdfast.server import JobView, api_operation
    >>> describe = api_operation("Show the newest job", tag="jobs", response=JobView)
    """

    id: UUID
    type: str
    status: JobStatus
    owner: str | None = None
    progress: ProgressView
    counts: TaskCounts
    event_seq: int
    params: Json = None
    labels: Json = None
    output: Json = None
    error: ErrorView | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    tasks: list[TaskView] | None = None
    artifacts: list[JobFileView] | None = None


def redact_job(job: dict[str, Json], caller: Caller) -> dict[str, Json]:
    """Return a job without the parts that the caller may not see. `job` is a result of `holdfast.get_job`.

    >>> from holdfast.server import Caller, redact_job
    >>> job = {"id": "1", "error": {"type": "KeyError", "message": "'password'", "traceback": "..."}}
    >>> assert "password" not in str(redact_job(job, Caller("user", "ann")))
    """
    return job if caller.kind == "service" else _redact_job_for_user(job)


def _redact_job_for_user(job: dict[str, Json]) -> dict[str, Json]:
    redacted = {**job, "error": redact_error(job.get("error"))}
    if job.get("tasks") is not None:
        redacted["tasks"] = [{**task, "error": redact_error(task.get("error"))} for task in job["tasks"]]
    return redacted


def redact_error(error: Json) -> Json:
    """Return an error without its traceback. A public message replaces an internal one.

    >>> from holdfast.server import HIDDEN_ERROR_MESSAGE, redact_error
    >>> error = redact_error({"type": "KeyError", "message": "'password'"})
    >>> assert error == {"type": "Error", "message": HIDDEN_ERROR_MESSAGE}
    """
    if error is None:
        return None
    error_type = str(error.get("type") or "Error")
    if error_type in PUBLIC_ERROR_TYPES:
        redacted = {"type": error_type, "message": str(error.get("message") or "")}
    elif error_type in TIMEOUT_ERROR_TYPES:
        redacted = {"type": "TimedOut", "message": PUBLIC_TIMEOUT_MESSAGE}
    else:
        redacted = {"type": "Error", "message": HIDDEN_ERROR_MESSAGE}
    return {**redacted, "task": error["task"]} if error.get("task") else redacted


def redact_attempt(attempt: FailedAttempt) -> FailedAttempt:
    """Return a failed attempt without the parts that users may not see."""
    error = redact_error({"type": attempt.error_type, "message": attempt.message})
    return msgspec.structs.replace(
        attempt,
        worker=None,
        traceback=None,
        fingerprint=None,
        error_type=error["type"] if attempt.error_type else None,
        message=error["message"] if attempt.error_type else None,
    )


def redact_explanation(explanation: dict[str, Json], caller: Caller) -> dict[str, Json]:
    """Return an explanation of a task's state, without worker names and internal errors for users.

    The SQL function `holdfast.redact_explanation` has the same rules.
    """
    if caller.kind == "service":
        return explanation
    reasons: list[Any] = explanation.get("reasons") or []
    hidden_fields = {"worker", "held_by", "by", "message"}
    return {
        **explanation,
        "reasons": [
            {
                name: redact_error(value) if name == "error" else value
                for name, value in reason.items()
                if name not in hidden_fields
            }
            for reason in reasons
        ],
    }
