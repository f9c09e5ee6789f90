"""The context that a worker passes to a running task.

Progress and log lines are buffered here until the worker collects them, so recording them never blocks. Only
the newest progress is sent, and the number of log lines is bounded. Steps, child tasks and files go through
the engine gateway; `assert_lease` and `complete` use the connection of the user.

The host of a task sets `current` while it runs, so that a record of the standard `logging` module or a span
is assigned to the right attempt.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from holdfast.definitions.context import Ctx
from holdfast.definitions.context_types import (
    ArtifactOptions,
    BlockingArtifactReader,
    ChildTaskOptions,
    Content,
    FileReader,
    LogLevel,
    TaskCall,
)
from holdfast.definitions.payloads import encode_payload
from holdfast.engine import fences
from holdfast.engine.caller_connection import is_sync_connection, run_statement_or_defer
from holdfast.engine.leases import Lease
from holdfast.errors import RefusedError
from holdfast.model import Artifact, Progress
from holdfast.worker.blocking_files import open_file_in_thread
from holdfast.worker.child_tasks import ChildTaskSubmitter
from holdfast.worker.gateway import EngineGateway
from holdfast.worker.log_buffer import LogBuffer
from holdfast.worker.steps import StepStore, collect_saved_files, convert_step_result
from holdfast.worker.text_cleaning import clean_text

T = TypeVar("T")

MAX_PROGRESS_TEXT_CHARS: Final = 500
MAX_ITERATION_BEFORE_YIELD_S: Final = (
    0.05  # how long `track` iterates over plain items before it yields to the event loop
)
_NO_PROGRESS: Final = Progress()

current: contextvars.ContextVar[TaskContext | None] = contextvars.ContextVar("holdfast_context", default=None)


class FileGateway(Protocol):
    """Stores and opens the files of running tasks."""

    async def save_file(
        self,
        lease: Lease,
        name: str,
        content: Content,
        content_type: str | None,
        options: ArtifactOptions,
    ) -> Artifact: ...
    def open_file(
        self, lease: Lease, artifact: Artifact | str
    ) -> AbstractAsyncContextManager[FileReader]: ...


class TaskContext(Ctx[Any]):
    """The context that a worker passes to one attempt of a task.

    `on_log` is called from any thread when the first unwritten log line appears. `completed` is True after
    the task called `complete`: if its lease is gone then, the task has succeeded.
    """

    __slots__ = (
        "_child_tasks",
        "_lines",
        "_progress",
        "_reported",
        "_steps",
        "attempt",
        "completed",
        "deadline",
        "files",
        "gateway",
        "job_id",
        "lease",
        "name",
        "on_log",
        "owner",
        "state",
        "stop_reason",
        "task_id",
    )

    task_id: str
    job_id: str
    attempt: int
    deadline: datetime
    owner: str | None
    state: Any

    def __init__(  # noqa: PLR0913  (the fields of the context)
        self,
        *,
        task_id: str,
        job_id: str,
        attempt: int,
        deadline: datetime,
        state: Any = None,
        owner: str | None = None,
        name: str = "",
        lease: Lease | None = None,
        gateway: EngineGateway | None = None,
        files: FileGateway | None = None,
        on_log: Callable[[TaskContext], None] | None = None,
    ) -> None:
        self.task_id = task_id  # pyright: ignore[reportIncompatibleMethodOverride]
        self.job_id = job_id  # pyright: ignore[reportIncompatibleMethodOverride]
        self.attempt = attempt  # pyright: ignore[reportIncompatibleMethodOverride]
        self.deadline = deadline  # pyright: ignore[reportIncompatibleMethodOverride]
        self.state = state
        self.owner = owner  # pyright: ignore[reportIncompatibleMethodOverride]
        self.name = name
        self.lease = lease
        self.gateway = gateway
        self.files = files
        self.on_log = on_log
        self.completed = False
        self.stop_reason: str | None = None
        self._progress = self._reported = _NO_PROGRESS
        self._steps: StepStore | None = None
        self._child_tasks: ChildTaskSubmitter | None = None
        self._lines: LogBuffer | None = None

    # For the worker

    def stop(self, reason: str) -> None:
        """Mark the attempt as stopped, so that `ctx.check()` raises."""
        self.stop_reason = reason

    def get_unreported_progress(self) -> Progress | None:
        """Return the newest progress, or None if the database has it already."""
        return self._progress if self._progress != self._reported else None

    def mark_reported(self, progress: Progress) -> None:
        """Record the progress that the database has accepted."""
        self._reported = progress

    @property
    def log_buffer(self) -> LogBuffer | None:
        """The buffer of unwritten log lines, or None if the task has logged nothing."""
        return self._lines

    # For the task

    @property
    def cancelled(self) -> bool:
        return self.stop_reason is not None

    def check(self) -> None:
        if self.stop_reason is not None:
            raise asyncio.CancelledError(self.stop_reason)

    def _update_progress(
        self, done: float | None, total: float, phase: str | None, message: str | None
    ) -> None:
        self._progress = self._compute_progress(done, total, phase, message)

    async def _store_progress(
        self, done: float | None, total: float, phase: str | None, message: str | None
    ) -> None:
        gateway, lease = self._require_worker("report")
        progress = self._compute_progress(done, total, phase, message)
        # Mark it as reported before it is sent: otherwise the worker would send it too, perhaps after the
        # next one.
        self._reported = self._progress = progress
        await gateway.report_progress(lease, progress.percent, progress.phase, progress.message)

    def _compute_progress(
        self, done: float | None, total: float, phase: str | None, message: str | None
    ) -> Progress:
        before = self._progress
        percent = before.percent
        if done is not None and total > 0:
            percent = max(percent or 0.0, min(100.0, max(0.0, 100.0 * done / total)))
        return Progress(
            percent=percent,
            phase=before.phase if phase is None else clean_text(phase, MAX_PROGRESS_TEXT_CHARS),
            message=before.message if message is None else clean_text(message, MAX_PROGRESS_TEXT_CHARS),
        )

    async def _iterate_items(self, items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
        if isinstance(items, AsyncIterable):
            async for item in items:
                yield item
            return
        clock = asyncio.get_running_loop().time
        resumed_at = clock()
        for item in items:
            yield item
            if clock() - resumed_at > MAX_ITERATION_BEFORE_YIELD_S:
                await asyncio.sleep(0)
                resumed_at = clock()

    def _append_log(self, message: str, level: LogLevel, fields: Mapping[str, Any]) -> None:
        if self._lines is None:
            self._lines = LogBuffer()
        if self._lines.add_line(level, message, fields) and self.on_log is not None:
            self.on_log(self)

    async def _run_step(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        steps = self._get_steps()
        is_stored, value = await steps.load_result(name)
        if not is_stored:
            self.check()
            with collect_saved_files() as file_ids:
                result = await _call_step_function(fn, args, kwargs)
            value = await steps.save_result(name, result, file_ids)
        return convert_step_result(fn, name, value)

    def _run_step_in_thread(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        steps = self._get_steps()
        is_stored, value = self._wait_in_thread(lambda: steps.load_result(name))
        if not is_stored:
            self.check()
            with collect_saved_files() as file_ids:
                result: Any = fn(*args, **kwargs)
                if asyncio.iscoroutine(result):
                    coroutine = result
                    result = self._wait_in_thread(lambda: coroutine)
            value = self._wait_in_thread(lambda: steps.save_result(name, result, file_ids))
        return convert_step_result(fn, name, value)

    async def _submit_child_task(self, call: TaskCall, options: ChildTaskOptions) -> UUID:
        if self._child_tasks is None:
            self._child_tasks = ChildTaskSubmitter(*self._require_worker("submit"), self.name)
        return await self._child_tasks.submit(call, options)

    def _assert_lease(self, on: object) -> Awaitable[None]:
        return run_statement_or_defer(
            on, fences.build_assert_lease_statement(self._require_lease("assert_lease"))
        )

    def _complete_task(self, on: object, output: object) -> Awaitable[None]:
        question = fences.build_complete_task_statement(
            self._require_lease("complete"), encode_payload(output, what="output")
        )
        self.completed = True
        return run_statement_or_defer(on, question)

    async def _save_file(
        self, name: str, content: Content, content_type: str | None, options: ArtifactOptions
    ) -> Artifact:
        files, lease = self._require_files("save")
        return await files.save_file(lease, name, content, content_type, options)

    def _open_file(self, artifact: Artifact | str) -> AbstractAsyncContextManager[FileReader]:
        files, lease = self._require_files("open")
        return files.open_file(lease, artifact)

    def _open_file_in_thread(
        self, artifact: Artifact | str
    ) -> AbstractContextManager[BlockingArtifactReader]:
        return open_file_in_thread(self._open_file(artifact), self._wait_in_thread)

    def _wait_in_thread(self, work: Callable[[], Awaitable[T]], on: object = None) -> T:
        if on is not None and is_sync_connection(on):
            return _get_finished_result(work())
        if self.gateway is None or _is_on_event_loop():
            raise RefusedError(
                "ctx.blocking is for plain functions that a worker runs in threads.",
                fix="Await the method of ctx itself." if self.gateway else "Let a worker run the task.",
            )
        return asyncio.run_coroutine_threadsafe(_await_result(work()), self.gateway.loop).result()

    # What the methods need

    def _get_steps(self) -> StepStore:
        if self._steps is None:
            self._steps = StepStore(*self._require_worker("step"))
        return self._steps

    def _require_worker(self, method: str) -> tuple[EngineGateway, Lease]:
        if self.gateway is None:
            raise RefusedError(
                f"ctx.{method} works only while a worker runs the task.", fix="Let a worker run the task."
            )
        return self.gateway, self._require_lease(method)

    def _require_lease(self, method: str) -> Lease:
        if self.lease is None:
            raise RefusedError(
                f"ctx.{method} needs a lease, and this context has none.", fix="Let a worker run the task."
            )
        return self.lease

    def _require_files(self, method: str) -> tuple[FileGateway, Lease]:
        if self.files is None:
            raise RefusedError(
                "This worker has no object store.", fix="Install holdfast[files] and set storage_url."
            )
        return self.files, self._require_lease(method)


async def _call_step_function(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(fn):
        return await fn(*args, **kwargs)
    result: Any = await asyncio.to_thread(fn, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


async def _await_result(work: Awaitable[T]) -> T:
    return await work


def _get_finished_result(work: Awaitable[T]) -> T:
    """Return the result of an awaitable that is finished already, without an event loop."""
    try:
        next(work.__await__())
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("the work needs an event loop")


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
