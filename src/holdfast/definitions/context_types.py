"""Types of the arguments and results of a task's context (`Ctx`)."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, TypeAlias, TypedDict
from uuid import UUID

LogLevel = Literal["debug", "info", "warning", "error"]
Content: TypeAlias = "bytes | Path | AsyncIterable[bytes] | BinaryIO"


class TaskCall(Protocol):
    """A task with its arguments: `screenshot(url)`."""

    @property
    def args(self) -> Mapping[str, Any]: ...
    def mark_used(self) -> None: ...


class ChildTaskOptions(TypedDict, total=False):
    """Options of `ctx.submit`, for child tasks and detached jobs.

    key: name of the child; submitting the same key again adds nothing (default: from the arguments)
    after: tasks that must finish first, as ids that `submit` returned, `ctx.task_id`, or names in the job
    detached: submit a separate job, which continues when this job fails or is cancelled (default: False)
    delay, run_at: when to start at the earliest (default: at once)
    priority: higher runs first (default: the priority of the task type)
    weight: share of the child in the progress of the job (default: 1.0)
    owner, labels: only with `detached`; children use those of their job

    >>> from holdfast import ChildTaskOptions, Ctx, task
    >>> later: ChildTaskOptions = {"detached": True, "priority": 5}
    >>> @task
    ... def resize(key: str) -> str:
    ...     return key
    >>> @task
    ... async def upload(ctx: Ctx, key: str) -> None:
    ...     await ctx.submit(resize(key), **later)
    """

    key: str | None
    after: Iterable[UUID | str]
    detached: bool
    delay: timedelta | float | None
    run_at: datetime | None
    priority: int | None
    weight: float
    owner: str | None
    labels: dict[str, str] | None


class ArtifactOptions(TypedDict, total=False):
    """Options of `ctx.save`, for files that a task stores.

    kind: what the file is for (default: "file")
    ttl: how long it is kept (default: as long as its job)
    meta: JSON metadata to store with it

    >>> from datetime import timedelta
    >>> from holdfast import ArtifactOptions, Ctx, task
    >>> preview: ArtifactOptions = {"kind": "preview", "ttl": timedelta(days=7)}
    >>> @task
    ... async def render(ctx: Ctx, page: int) -> str:
    ...     return (await ctx.save("page.txt", b"hello", **preview)).key
    """

    kind: str
    ttl: timedelta | float | None
    meta: dict[str, Any] | None


class FileReader(Protocol):
    """A stored file that is open for reading: iterate over its chunks, or read all of it."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def read(self) -> bytes: ...


class BlockingArtifactReader(Protocol):
    """A stored file that is open for reading in a plain function."""

    def __iter__(self) -> Iterator[bytes]: ...
    def read(self) -> bytes: ...
