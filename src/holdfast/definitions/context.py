"""The context of a running task: `Ctx` for async functions, `ctx.blocking` for plain functions.

Every public method is declared once, here. `Ctx` calls an internal method for each, which the worker
implements (`holdfast.worker.context`). `BlockingCtx` derives its methods from those of `Ctx`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sized,
)
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    Unpack,
    overload,
)
from uuid import UUID

from holdfast.definitions.context_types import (
    ArtifactOptions,
    BlockingArtifactReader,
    ChildTaskOptions,
    Content,
    FileReader,
    LogLevel,
    TaskCall,
)
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


class Ctx(ABC, Generic[State_co]):
    """The context of a running task. Annotate the first parameter of a task with it; the worker passes it.

    Methods that are not awaited return immediately. Awaited methods reach the database and raise
    LeaseLostError when another worker holds the task. Plain functions, which run in threads, use
    `ctx.blocking` instead.

    >>> from holdfast import Ctx, task
    >>> async def download(url: str) -> str:
    ...     return "content of " + url
    >>> @task
    ... async def copy(ctx: Ctx, url: str) -> str:
    ...     ctx.progress(0, 2, phase="download")
    ...     text = await ctx.step("download", download, url)
    ...     file = await ctx.save("copy.txt", text.encode())
    ...     return file.key
    """

    __slots__ = ()

    @property
    @abstractmethod
    def state(self) -> State_co:
        """The value that the worker's lifespan yielded, such as a browser or a connection pool."""

    @property
    @abstractmethod
    def task_id(self) -> str:
        """The id of this task. It is the same in every attempt."""

    @property
    @abstractmethod
    def job_id(self) -> str:
        """The id of the job that the task belongs to."""

    @property
    @abstractmethod
    def owner(self) -> str | None:
        """The owner of the job."""

    @property
    @abstractmethod
    def attempt(self) -> int:
        """The number of this attempt, from 1."""

    @property
    @abstractmethod
    def deadline(self) -> datetime:
        """The time at which this attempt reaches its time limit."""

    @property
    @abstractmethod
    def cancelled(self) -> bool:
        """Whether the attempt must stop: job cancelled, lease lost, time limit reached, or worker stopped."""

    @property
    def idempotency_key(self) -> str:
        """A key that is unique to this task and the same in every attempt, for idempotent requests."""
        return self.task_id

    @property
    def blocking(self) -> BlockingCtx:
        """The same methods without `await`, for plain (synchronous) functions."""
        return BlockingCtx(self)

    @abstractmethod
    def check(self) -> None:
        """Raise CancelledError if the attempt must stop. Call it in long loops of plain functions."""

    def progress(
        self,
        done: float | None = None,
        total: float = 100,
        *,
        phase: str | None = None,
        message: str | None = None,
    ) -> None:
        """Record progress: `done` of `total`. The percentage never decreases within one attempt.

        The newest value is stored a few times per second. Use `report` to store every value.
        """
        self._update_progress(done, total, phase, message)

    async def report(
        self,
        done: float | None = None,
        total: float = 100,
        *,
        phase: str | None = None,
        message: str | None = None,
    ) -> None:
        """Record progress and wait until it is stored, so that watchers see each stage."""
        self.check()
        await self._store_progress(done, total, phase, message)

    async def track(
        self,
        items: Iterable[T] | AsyncIterable[T],
        total: float | None = None,
        *,
        phase: str | None = None,
    ) -> AsyncIterator[T]:
        """Iterate over items and record progress after each. Raise CancelledError if the attempt must stop.

        `total` is the number of items (default: `len(items)` if it has a length).
        """
        tracker = _ProgressTracker(self, items, total, phase)
        async for item in self._iterate_items(items):
            self.check()
            yield item
            tracker.advance()
        self.check()

    def log(self, message: str, /, *, level: LogLevel = "info", **fields: Any) -> None:
        """Store a log line with the attempt. Never blocks and never raises."""
        self._append_log(message, level, fields)

    @overload
    async def step(
        self, name: str, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def step(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, name: str, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call a function once per task and store its result; later attempts return the stored result.

        If the worker dies after the function returns and before its result is stored, the function runs
        again. Plain functions run in a thread.
        """
        return await self._run_step(name, fn, args, kwargs)

    async def submit(self, call: TaskCall, **options: Unpack[ChildTaskOptions]) -> UUID:
        """Submit a child task of this job, or a separate job with `detached=True`. Return its id.

        A later attempt that submits the same work adds nothing.
        """
        return await self._submit_child_task(call, options)

    def assert_lease(self, on: object) -> Awaitable[None]:
        """Lock the lease of this task in your own transaction. Raise LeaseLostError if the lease is lost.

        `on` is your connection. Raise LeaseLostError if another worker holds the task. With a synchronous
        connection the check has happened when the call returns, and you need not await it.
        """
        return self._assert_lease(on)

    def complete(self, on: object, output: object = None) -> Awaitable[None]:
        """Complete the task in your own transaction. The task succeeds only if you commit.

        `on` is your connection, `output` the result of the task. With a synchronous connection you need not
        await the call.
        """
        return self._complete_task(on, output)

    async def save(
        self,
        name: str,
        content: Content,
        type: str | None = None,  # noqa: A002
        **options: Unpack[ArtifactOptions],
    ) -> Artifact:
        """Store a file. It becomes visible when this attempt succeeds; otherwise it is deleted.

        `type` is the media type (default: from the name).
        """
        self.check()
        return await self._save_file(name, content, type, options)

    def open(self, artifact: Artifact | str) -> AbstractAsyncContextManager[FileReader]:
        """Open a file of this job for reading: an artifact, or the name of a file that a task saved."""
        return self._open_file(artifact)

    # Implemented by the worker

    @abstractmethod
    def _update_progress(
        self, done: float | None, total: float, phase: str | None, message: str | None
    ) -> None: ...
    @abstractmethod
    async def _store_progress(
        self, done: float | None, total: float, phase: str | None, message: str | None
    ) -> None: ...
    @abstractmethod
    def _iterate_items(self, items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]: ...
    @abstractmethod
    def _append_log(self, message: str, level: LogLevel, fields: Mapping[str, Any]) -> None: ...
    @abstractmethod
    async def _run_step(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...
    @abstractmethod
    def _run_step_in_thread(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...
    @abstractmethod
    async def _submit_child_task(self, call: TaskCall, options: ChildTaskOptions) -> UUID: ...
    @abstractmethod
    def _assert_lease(self, on: object) -> Awaitable[None]: ...
    @abstractmethod
    def _complete_task(self, on: object, output: object) -> Awaitable[None]: ...
    @abstractmethod
    async def _save_file(
        self, name: str, content: Content, content_type: str | None, options: ArtifactOptions
    ) -> Artifact: ...
    @abstractmethod
    def _open_file(self, artifact: Artifact | str) -> AbstractAsyncContextManager[FileReader]: ...
    @abstractmethod
    def _open_file_in_thread(
        self, artifact: Artifact | str
    ) -> AbstractContextManager[BlockingArtifactReader]: ...
    @abstractmethod
    def _wait_in_thread(self, work: Callable[[], Awaitable[T]], on: object = None) -> T:
        """Run a coroutine on the worker's event loop and wait for its result.

        Work on a synchronous connection `on` runs here instead: the connection belongs to this thread.
        """


class _ProgressTracker:
    def __init__(self, context: Ctx[Any], items: object, total: float | None, phase: str | None) -> None:
        self._context = context
        self._total = len(items) if total is None and isinstance(items, Sized) else total
        self._done = 0
        self._report(phase)

    def advance(self) -> None:
        self._done += 1
        self._report(None)

    def _report(self, phase: str | None) -> None:
        self._context.progress(self._done if self._total else None, self._total or 0, phase=phase)


class BlockingMethod(Generic[P, R]):
    """Descriptor: a method of `BlockingCtx` that calls the async method of `Ctx` and waits for its result.

    With `uses_connection` the first argument is the user's own connection.
    """

    def __init__(
        self, method: Callable[Concatenate[Ctx[Any], P], Awaitable[R]], *, uses_connection: bool = False
    ) -> None:
        self._method = method
        self._uses_connection = uses_connection
        self.__doc__ = method.__doc__
        self.__wrapped__ = method

    def __get__(self, blocking: BlockingCtx, _: type[BlockingCtx]) -> Callable[P, R]:
        context = blocking.context

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            on = kwargs.get("on", args[0] if args else None) if self._uses_connection else None
            wait = context._wait_in_thread  # pyright: ignore[reportPrivateUsage]
            return wait(lambda: self._method(context, *args, **kwargs), on)

        return call


class BlockingCtx:
    """The async methods of `Ctx` as blocking methods, for plain (synchronous) functions."""

    __slots__ = ("context",)

    def __init__(self, context: Ctx[Any]) -> None:
        self.context = context

    report = BlockingMethod(Ctx.report)
    submit = BlockingMethod(Ctx.submit)
    save = BlockingMethod(Ctx.save)
    assert_lease = BlockingMethod(Ctx.assert_lease, uses_connection=True)
    complete = BlockingMethod(Ctx.complete, uses_connection=True)

    # The types of the following three differ from those of `Ctx` in more than the missing `await`.

    def track(
        self, items: Iterable[T], total: float | None = None, *, phase: str | None = None
    ) -> Iterator[T]:
        """Like `Ctx.track`, for a `for` loop."""
        context = self.context
        tracker = _ProgressTracker(context, items, total, phase)
        for item in items:
            context.check()
            yield item
            tracker.advance()
        context.check()

    def step(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Like `Ctx.step`. The function runs in the calling thread."""
        run_step = self.context._run_step_in_thread  # pyright: ignore[reportPrivateUsage]
        result: R = run_step(name, fn, args, kwargs)
        return result

    def open(self, artifact: Artifact | str) -> AbstractContextManager[BlockingArtifactReader]:
        """Like `Ctx.open`, for a `with` statement."""
        return self.context._open_file_in_thread(artifact)  # pyright: ignore[reportPrivateUsage]
