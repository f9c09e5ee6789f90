"""What a running task is given, as types. The worker provides it: annotate the first parameter with `Ctx`.

Methods that are plain never wait. Those that are awaited reach the database, and refuse once the lease has
passed to someone else. Plain functions, which run in threads, find the awaited ones under `ctx.blocking`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)
from uuid import UUID

from holdfast.model import Artifact

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    # The default must not be Any: mypy would then turn every task into Any.
    State_co = DefaultTypeVar("State_co", covariant=True, default=None)
else:
    State_co = TypeVar("State_co", covariant=True)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

LogLevel = Literal["debug", "info", "warning", "error"]
Content: TypeAlias = "bytes | Path | AsyncIterable[bytes] | BinaryIO"


class AnyCall(Protocol):
    """A task with its arguments: `screenshot(url)`."""

    @property
    def args(self) -> Mapping[str, Any]: ...
    def use(self) -> None: ...


class ChildSay(TypedDict, total=False):
    """What may be said about work that a task submits.

    `key` names it: the same key is the same child, also in a later attempt. Without one its arguments do.
    `after` are ids that this context gave out, its own `task_id`, or names of tasks of the job: the child
    waits for them. `detached` makes it a job of its own, which outlives this one, whatever happens to it.
    `owner` and `labels` are for detached ones; children share what their job has.
    """

    key: str | None
    after: Iterable[UUID | str]
    detached: bool
    delay: timedelta | None
    run_at: datetime | None
    priority: int | None
    weight: float
    owner: str | None
    labels: dict[str, str] | None


class SaveSay(TypedDict, total=False):
    """What may be said about a file: what it is for, how long it is kept, and notes about it."""

    kind: str
    ttl: timedelta | None
    meta: dict[str, Any] | None


class Reading(Protocol):
    """A stored file being read: in pieces, or at once."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def read(self) -> bytes: ...


class BlockingReading(Protocol):
    def __iter__(self) -> Iterator[bytes]: ...
    def read(self) -> bytes: ...


class BlockingCtx(Protocol):
    """The same for plain functions: each call returns when it is done."""

    def track(
        self, items: Iterable[T], total: float | None = None, *, phase: str | None = None
    ) -> Iterator[T]: ...
    def report(
        self,
        done: float | None = None,
        total: float = 100,
        *,
        phase: str | None = None,
        message: str | None = None,
    ) -> None: ...
    def step(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def submit(self, call: AnyCall, **say: Unpack[ChildSay]) -> UUID: ...
    def assert_lease(self, on: object) -> None: ...
    def complete(self, on: object, output: object = None) -> None: ...
    def save(
        self,
        name: str,
        content: Content,
        type: str | None = None,  # noqa: A002
        **say: Unpack[SaveSay],
    ) -> Artifact: ...
    def open(self, artifact: Artifact | str) -> AbstractContextManager[BlockingReading]: ...


class Ctx(Protocol[State_co]):
    """What a running task is given. The worker provides it; annotate the first parameter with it."""

    @property
    def state(self) -> State_co:
        """What the worker's lifespan made: a browser, a client, a model."""
        ...

    @property
    def task_id(self) -> str:
        """The id of this task: the same for every attempt."""
        ...

    @property
    def job_id(self) -> str:
        """The job it belongs to."""
        ...

    @property
    def owner(self) -> str | None:
        """Whose job it is."""
        ...

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        ...

    @property
    def deadline(self) -> datetime:
        """When this attempt is stopped at the latest."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether it should stop: the job was cancelled, the lease lost, or the worker is going."""
        ...

    @property
    def idempotency_key(self) -> str:
        """For services that take one: the same for every attempt, and for no other task."""
        ...

    @property
    def blocking(self) -> BlockingCtx:
        """What is awaited here, for plain functions."""
        ...

    def progress(
        self,
        done: float | None = None,
        total: float = 100,
        *,
        phase: str | None = None,
        message: str | None = None,
    ) -> None:
        """How far it is. Kept in memory; the newest is written a few times a second at most."""
        ...

    async def report(
        self,
        done: float | None = None,
        total: float = 100,
        *,
        phase: str | None = None,
        message: str | None = None,
    ) -> None:
        """`progress` that is stored when this returns: stages are seen however soon the next one comes."""
        ...

    def check(self) -> None:
        """Stop here if it should stop. For plain functions and long loops, which nobody can interrupt."""
        ...

    def track(
        self,
        items: Iterable[T] | AsyncIterable[T],
        total: float | None = None,
        *,
        phase: str | None = None,
    ) -> AsyncIterator[T]:
        """The items one by one, with progress, stopping when the attempt should."""
        ...

    def log(self, message: str, /, *, level: LogLevel = "info", **fields: Any) -> None:
        """Kept with the attempt. Never waits and never fails."""
        ...

    @overload
    async def step(
        self, name: str, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def step(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, name: str, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run it once and remember what it returned: a later attempt is given that instead."""
        ...

    async def submit(self, call: AnyCall, **say: Unpack[ChildSay]) -> UUID:
        """Add work: a child of this job, or with `detached=True` a job of its own.

        Said again by a later attempt, it is there once.
        """
        ...

    def assert_lease(self, on: object) -> Awaitable[None]:
        """In your own transaction: go on only while this attempt holds the task; held until you commit."""
        ...

    def complete(self, on: object, output: object = None) -> Awaitable[None]:
        """In your own transaction: the task has succeeded if you commit, and has not if you do not."""
        ...

    async def save(
        self,
        name: str,
        content: Content,
        type: str | None = None,  # noqa: A002
        **say: Unpack[SaveSay],
    ) -> Artifact:
        """Store a file. Others see it when this attempt has succeeded, and not at all otherwise."""
        ...

    def open(self, artifact: Artifact | str) -> AbstractAsyncContextManager[Reading]:
        """Read a file of this job: one that it saved, or one of a task before it."""
        ...
