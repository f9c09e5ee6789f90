"""The values that a client reads: jobs, tasks, files, messages and schedules. Frozen, and named as in SQL."""

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
ENDED_STATUSES: Final = frozenset({"succeeded", "partial", "failed", "cancelled"})

MessagePlace = Literal["queue", "archive", "dead"]

B_co = TypeVar("B_co", covariant=True)

Json = Any
"""A JSON value. The signature of a task narrows the type where there is one."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a task or job. `percent` is None while the percentage is unknown.

    >>> from holdfast import Progress
    >>> Progress(percent=50, phase="render").phase
    'render'
    """

    percent: float | None = None
    phase: str | None = None
    message: str | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The error of an attempt that failed.

    >>> from holdfast import Failure
    >>> Failure(type="ValueError", message="no such page").type
    'ValueError'
    """

    type: str
    message: str
    traceback: str | None = None


class JobTask(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a job, as it is stored.

    >>> from holdfast import Client, JobTask, task
    >>> client = Client()
    >>> @task
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> async def main() -> None:
    ...     job = await (await client.submit(double(21))).get()
    ...     tasks: tuple[JobTask, ...] = job.tasks
    ...     print([(task.name, task.status) for task in tasks])
    """

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
    """A job, as it is stored. `tasks` is empty in lists of jobs.

    >>> from holdfast import Client, Job, task
    >>> client = Client()
    >>> @task
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> async def main() -> None:
    ...     job: Job = await (await client.submit(double(21))).get()
    ...     print(job.type, job.status, job.ended)
    """

    id: UUID
    type: str
    status: JobStatus
    owner: str | None = None
    progress: Progress = Progress()
    tasks: tuple[JobTask, ...] = ()
    output: Json = None
    error: Failure | None = None
    created_at: datetime
    finished_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether the job has succeeded, failed, ended in part or was cancelled."""
        return self.status in ENDED_STATUSES


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a search for jobs, newest first. The jobs have no tasks.

    `next` is the `before=` of the next page, or None. `truncated` says that the search stopped at its row
    limit before the page was full. `missing_shards` are the shards that did not answer.

    >>> from holdfast import Client, JobPage
    >>> client = Client()
    >>> async def main() -> None:
    ...     page: JobPage = await client.search_jobs("state:failed", limit=10)
    ...     print(len(page.rows), page.next)
    """

    rows: list[Job]
    next: UUID | None = None
    truncated: bool = False
    missing_shards: tuple[int, ...] = ()


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A group of jobs with common counts. `then` is the id of the follow-up job, once it is submitted.

    >>> from holdfast import Batch, Client
    >>> client = Client()
    >>> async def main() -> None:
    ...     handle = await client.batches.open("pages")
    ...     batch: Batch = await handle.close()
    ...     print(batch.total, batch.ended, batch.failed)
    """

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


class TaskExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task is not running, or since when it is running. `details` depend on the reason.

    >>> from holdfast import Client, TaskExplanation, task
    >>> client = Client()
    >>> @task
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> async def main() -> None:
    ...     reasons: list[TaskExplanation] = await (await client.submit(double(21))).explain()
    ...     print([(each.task, each.reason) for each in reasons])
    """

    task: str
    task_id: UUID
    status: TaskStatus
    reason: str
    details: dict[str, Any]


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A concurrency or rate limit and its current use: `running` tasks over all keys, and the `fullest` keys.

    >>> from holdfast import Client, Limit
    >>> client = Client()
    >>> async def main() -> None:
    ...     await client.limits.put("captions", type="caption", max_running=4)
    ...     limits: list[Limit] = await client.limits.list()
    ...     print(limits[0].name, limits[0].running)
    """

    name: str
    queue: str | None
    type: str | None
    per_key: bool
    max_running: int | None
    rate: float | None
    burst: float | None
    running: int
    keys: int
    paused_until: datetime | None
    fullest: list[str] | None


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, as it is stored. `next_at` is None while the schedule is paused.

    `change` says what `client.schedules.put` did.

    >>> from holdfast import Client, StoredSchedule, task
    >>> client = Client()
    >>> @task
    ... def tidy() -> None: ...
    >>> async def main() -> None:
    ...     stored: StoredSchedule = await client.schedules.put(tidy(), cron="@daily")
    ...     print(stored.name, stored.next_at)
    """

    name: str
    cron: str | None
    every_s: float | None
    timezone: str
    missed: Literal["skip", "coalesce", "catch_up"]
    max_catch_up: int
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
    change: Literal["created", "changed", "unchanged"] | None = None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A log line of a task. `n` numbers the lines of a job, `seq` the lines of an attempt.

    >>> from holdfast import Client, LogLine, task
    >>> client = Client()
    >>> @task
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> async def main() -> None:
    ...     lines: list[LogLine] = await (await client.submit(double(21))).logs()
    ...     print([line.message for line in lines])
    """

    n: int
    task_id: UUID
    attempt: int
    seq: int
    at: datetime
    level: Literal["debug", "info", "warning", "error"]
    message: str
    fields: dict[str, Any]


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A stored file. `name` is its file name, `key` the key of its content in the object store.

    `key` is empty if the file was read with the rights of an end user.

    >>> from holdfast import Artifact, Client
    >>> client = Client()
    >>> async def main() -> None:
    ...     file: Artifact = await client.files.put("hello.txt", b"hello", owner="ann")
    ...     print(file.size, file.content_type)
    """

    id: UUID
    job_id: UUID
    task_id: UUID | None
    owner: str | None
    kind: str
    name: str
    key: str = ""
    content_type: str
    size: int
    sha256: str
    meta: dict[str, Any]
    downloads: int
    created_at: datetime
    expires_at: datetime | None


class MessageLeaseHandle(Protocol):
    """What a message needs from the worker that leased it. `stop_reason` says why the lease was lost."""

    @property
    def stop_reason(self) -> str | None: ...
    def done(self, on: object) -> Awaitable[None]: ...


@dataclass(frozen=True, kw_only=True)
class Message(Generic[B_co]):
    """A message of a queue. `receipt` is valid until another reader reads the message.

    `peek` fills `error`: why the last attempt failed, for a message that is retried or in the dead letters.

    >>> from holdfast import Client, Message
    >>> client = Client()
    >>> async def main() -> None:
    ...     await client.queues.create("letters")
    ...     await client.queues.send("letters", {"to": "ann"})
    ...     messages: list[Message[dict[str, str]]] = await client.queues.read("letters", type=dict[str, str])
    ...     await client.queues.archive("letters", messages)
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
    lease: MessageLeaseHandle | None = field(default=None, repr=False, compare=False)

    def done(self, on: object) -> Awaitable[None]:
        """Archive the message in your own transaction, if you commit.

        With a synchronous connection the message is finished when the call returns; you need not await it.
        """
        return self._get_lease().done(on)

    def check(self) -> None:
        """Raise CancelledError if another reader has the message now.

        Call it in long loops of plain functions, which cannot be interrupted.
        """
        stop_reason = self._get_lease().stop_reason
        if stop_reason is not None:
            raise asyncio.CancelledError(stop_reason)

    def _get_lease(self) -> MessageLeaseHandle:
        if self.lease is None:
            raise RefusedError(
                f"Message {self.id} of queue {self.queue} was not read.",
                fix="Get it with read() instead of peek() or pop().",
            )
        return self.lease


class MessageQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A message queue.

    >>> from holdfast import Client, MessageQueue
    >>> client = Client()
    >>> async def main() -> None:
    ...     queues: list[MessageQueue] = await client.queues.list()
    ...     print([queue.name for queue in queues])
    """

    name: str
    partitioned: bool
    unlogged: bool
    created_at: datetime


class MessageMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of a message queue. `sent` counts all messages ever sent, including rolled-back ones.

    >>> from holdfast import Client, MessageMetrics
    >>> client = Client()
    >>> async def main() -> None:
    ...     await client.queues.create("letters")
    ...     metrics: MessageMetrics = await client.queues.metrics("letters")
    ...     print(metrics.visible, metrics.in_flight)
    """

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
    """Retry and retention settings of a message queue. `archive_retention` None keeps the archive for ever.

    >>> from holdfast import Client, MessagePolicy
    >>> client = Client()
    >>> async def main() -> None:
    ...     await client.queues.create("letters")
    ...     policy: MessagePolicy = await client.queues.put_policy("letters", max_reads=5)
    ...     print(policy.vt, policy.max_reads)
    """

    vt: timedelta
    max_reads: int | None
    backoff: timedelta
    backoff_cap: timedelta
    dead_letters: str | None
    archive_retention: timedelta | None
