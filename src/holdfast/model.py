"""What Holdfast knows about work, as frozen values: the same nouns and states as in SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, get_args
from uuid import UUID

import msgspec

from holdfast.errors import RefusedError

TaskStatus = Literal["waiting", "scheduled", "ready", "running", "succeeded", "failed", "cancelled"]
JobStatus = Literal["queued", "running", "succeeded", "partial", "failed", "cancelled"]

TASK_STATUSES: Final[tuple[str, ...]] = get_args(TaskStatus)
JOB_STATUSES: Final[tuple[str, ...]] = get_args(JobStatus)
ENDED: Final = frozenset({"succeeded", "partial", "failed", "cancelled"})

MessagePlace = Literal["queue", "archive", "dead"]

B_co = TypeVar("B_co", covariant=True)

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


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs without their tasks, newest first. `partly`: the search ended before the page was full."""

    rows: list[Job]
    next: UUID | None = None
    partly: bool = False


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that are counted together. `then` is the job that followed the last of them."""

    id: UUID
    name: str | None
    owner: str | None
    total: int
    ended: int
    failed: int
    cancelled: int
    closed_at: datetime | None
    finished_at: datetime | None
    then: UUID | None = msgspec.field(default=None, name="callback_job")


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task is not running, or since when it is. `about` has the particulars, named as in SQL."""

    task: str
    task_id: UUID
    status: TaskStatus
    reason: str
    about: dict[str, Any]


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit with what it is used by: `running` over all keys, and the keys that hold the most."""

    name: str
    queue: str | None
    type: str | None
    per_key: bool
    max_running: int | None
    rate: float | None
    burst: float | None
    running: int
    keys: int
    asleep_until: datetime | None
    fullest: list[str] | None


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as the database has it. `next_at` is None while it is paused."""

    name: str
    cron: str | None
    every_s: float | None
    timezone: str
    missed: Literal["skip", "coalesce", "catch_up"]
    most: int
    job: dict[str, Any]
    owner: str | None
    source: str | None
    next_at: datetime | None
    last_at: datetime | None
    last_job: UUID | None
    last_error: str | None
    paused_at: datetime | None
    paused_by: str | None
    created_at: datetime
    did: Literal["created", "changed", "unchanged"] | None = None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a task said. `n` rises within a job, `seq` within an attempt."""

    n: int
    task_id: UUID
    attempt: int
    seq: int
    at: datetime
    level: Literal["debug", "info", "warning", "error"]
    message: str
    fields: dict[str, Any]


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A stored file. `key` is its place in the store, `name` what people call it."""

    id: UUID
    job_id: UUID
    task_id: UUID | None
    owner: str | None
    kind: str
    name: str
    key: str
    content_type: str
    size: int
    sha256: str
    meta: dict[str, Any]
    downloads: int
    created_at: datetime
    expires_at: datetime | None


class Hold(Protocol):
    """What somebody who has read a message can do about it."""

    @property
    def stopped(self) -> str | None: ...
    def done(self, on: object) -> Awaitable[None]: ...


@dataclass(frozen=True, kw_only=True)
class Message(Generic[B_co]):
    """A letter in a queue. `receipt` proves that it was read, and that nobody has read it since.

    `error` is told by `peek`: why it failed the last time, while it is retried or when it is dead.
    """

    id: int
    queue: str
    body: B_co
    headers: Json = None
    reads: int = 0
    sent_at: datetime
    read_at: datetime | None = None
    visible_at: datetime
    receipt: str | None = None
    error: str | None = None
    failed_at: datetime | None = None
    hold: Hold | None = field(default=None, repr=False, compare=False)

    def done(self, on: object) -> Awaitable[None]:
        """Finish it in your own transaction: it is gone if you commit, and here again if you do not.

        With a synchronous connection it has happened when the call returns, and there is no need to await.
        """
        return self._held().done(on)

    def check(self) -> None:
        """Raise CancelledError when the message is no longer ours; plain functions cannot be interrupted."""
        stopped = self._held().stopped
        if stopped is not None:
            raise asyncio.CancelledError(stopped)

    def _held(self) -> Hold:
        if self.hold is None:
            raise RefusedError(
                f"Message {self.id} of queue {self.queue} was looked at, not read.", fix="Read it."
            )
        return self.hold


class MessageQueue(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    partitioned: bool
    unlogged: bool
    created_at: datetime


class MessageMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a queue. `sent` counts all there ever were, also those that were rolled back."""

    queue: str
    total: int
    visible: int
    in_flight: int
    delayed: int
    oldest_age: timedelta | None
    archived: int
    dead: int
    sent: int


class MessagePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to the messages of a queue that fail, and how long its archive lasts (None: for ever)."""

    vt: timedelta
    max_reads: int | None
    backoff: timedelta
    backoff_cap: timedelta
    dead_letters: str | None
    archive_retention: timedelta | None
