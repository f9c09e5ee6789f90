"""What Holdfast knows about work, as frozen values: the same nouns and states as in SQL."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal, get_args
from uuid import UUID

import msgspec

TaskStatus = Literal["waiting", "scheduled", "ready", "running", "succeeded", "failed", "cancelled"]
JobStatus = Literal["queued", "running", "succeeded", "partial", "failed", "cancelled"]

TASK_STATUSES: Final[tuple[str, ...]] = get_args(TaskStatus)
JOB_STATUSES: Final[tuple[str, ...]] = get_args(JobStatus)
ENDED: Final = frozenset({"succeeded", "partial", "failed", "cancelled"})

Json = Any
"""Anything JSON can say; narrowed by the task's signature where there is one."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far something is. `percent` is None while nobody can tell."""

    percent: float | None = None
    phase: str | None = None
    message: str | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt did not succeed."""

    type: str
    message: str
    traceback: str | None = None


class Task(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    name: str
    type: str
    queue: str
    status: TaskStatus
    attempt: int = 0
    progress: Progress = Progress()
    output: Json = None
    error: Failure | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    type: str
    status: JobStatus
    owner: str | None = None
    progress: Progress = Progress()
    tasks: tuple[Task, ...] = ()
    output: Json = None
    error: Failure | None = None
    created_at: datetime
    finished_at: datetime | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED
