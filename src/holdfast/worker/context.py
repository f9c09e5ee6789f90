"""What a running task is given: who it is, how long it may take, and what it can say and ask.

Saying never waits: progress and log lines are kept here until the worker collects them, so a task may say as
much as it likes. Only the newest progress travels, and log lines are bounded. Asking (steps, children, files)
goes through the desk, and the fence for the user's own transaction through the user's own connection.

Whoever runs user code makes it current with `running(context)`; a record of the standard `logging` module, or
a span, then knows which attempt it belongs to.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sized
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, TypeVar, Unpack
from uuid import UUID

from holdfast.definitions.context import AnyCall, ChildSay, Content, LogLevel, Reading, SaveSay
from holdfast.definitions.payloads import to_json
from holdfast.engine import fences
from holdfast.engine.borrowed import ask_now
from holdfast.engine.leases import Lease
from holdfast.errors import RefusedError
from holdfast.model import Artifact, Progress
from holdfast.worker.blocking import Blocking
from holdfast.worker.children import Children
from holdfast.worker.desk import Desk
from holdfast.worker.lines import Lines
from holdfast.worker.steps import Steps, collecting, revive

T = TypeVar("T")

MESSAGE_CHARACTERS: Final = 500
YIELD_EVERY: Final = 0.05  # seconds that `track` may go over plain items before others on the loop get a turn
_NOTHING: Final = Progress()

current: contextvars.ContextVar[Context | None] = contextvars.ContextVar("holdfast_context", default=None)


class Files(Protocol):
    """Where `save` and `open` go; one for all contexts of a worker."""

    async def save(
        self,
        context: Context,
        name: str,
        content: Content,
        type: str | None,  # noqa: A002
        *,
        kind: str,
        ttl: timedelta | None,
        meta: dict[str, Any] | None,
    ) -> Artifact: ...
    def open(self, context: Context, artifact: Artifact | str) -> AbstractAsyncContextManager[Reading]: ...


@dataclass(eq=False, slots=True)
class Context:
    task_id: str
    job_id: str
    attempt: int
    deadline: datetime
    state: Any = None
    owner: str | None = None
    name: str = ""
    """Of the task within its job."""
    lease: Lease | None = None
    desk: Desk | None = None
    files: Files | None = None
    said: Callable[[Context], None] | None = None
    """Called when there is a line to write and there was none before, from any thread."""
    completed: bool = False
    """The task called `complete`: when its lease is gone, that is because it has succeeded."""
    _progress: Progress = _NOTHING
    _reported: Progress = _NOTHING
    _stop_reason: str | None = None
    _steps: Steps | None = None
    _children: Children | None = None
    _lines: Lines | None = None

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this task: hand it to services that support one."""
        return self.task_id

    @property
    def cancelled(self) -> bool:
        return self._stop_reason is not None

    @property
    def stop_reason(self) -> str | None:
        return self._stop_reason

    @property
    def blocking(self) -> Blocking:
        return Blocking(self)

    def check(self) -> None:
        """Raise CancelledError when this attempt should stop; plain functions cannot be interrupted."""
        if self._stop_reason is not None:
            raise asyncio.CancelledError(self._stop_reason)

    def progress(
        self,
        done: float | None = None,
        total: float = 100,
        *,
        phase: str | None = None,
        message: str | None = None,
    ) -> None:
        """`done` of `total`; the bar never runs backwards within one attempt."""
        self._progress = self._after(done, total, phase, message)

    async def report(
        self,
        done: float | None = None,
        total: float = 100,
        *,
        phase: str | None = None,
        message: str | None = None,
    ) -> None:
        """Progress that is stored when this returns, so that watchers see every stage."""
        self.check()
        desk, lease = self._reach("report")
        now = self._after(done, total, phase, message)
        # Reported before it is sent: otherwise the worker would send it too, perhaps after the next one.
        self._reported = self._progress = now
        await desk.report(lease, now.percent, now.phase, now.message)

    def _after(self, done: float | None, total: float, phase: str | None, message: str | None) -> Progress:
        before = self._progress
        percent = before.percent
        if done is not None and total > 0:
            percent = max(percent or 0.0, min(100.0, max(0.0, 100.0 * done / total)))
        return Progress(
            percent=percent,
            phase=_clean(phase) if phase is not None else before.phase,
            message=_clean(message) if message is not None else before.message,
        )

    async def track(
        self,
        items: Iterable[T] | AsyncIterable[T],
        total: float | None = None,
        *,
        phase: str | None = None,
    ) -> AsyncIterator[T]:
        """The items one by one, with progress, stopping when the attempt should."""
        total = len_of(items) if total is None else total
        done = 0
        self.progress(0 if total else None, total or 0, phase=phase)
        async for item in _each(items):
            self.check()
            yield item
            done += 1
            self.progress(done if total else None, total or 0)
        self.check()

    def log(self, message: str, /, *, level: LogLevel = "info", **fields: Any) -> None:
        """Kept with the attempt. Never waits and never fails."""
        if self._lines is None:
            self._lines = Lines()
        if self._lines.add(level, message, fields) and self.said is not None:
            self.said(self)

    async def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """What `fn(*args)` answers, or answered in an earlier attempt. Plain functions run in a thread."""
        steps = self.steps()
        known, value = await steps.recall(name)
        if not known:
            self.check()
            with collecting() as files:
                made = await _done(fn, args, kwargs)
            value = await steps.keep(name, made, files)
        return revive(fn, name, value)

    async def submit(self, call: AnyCall, **say: Unpack[ChildSay]) -> UUID:
        """Add work: a child of this job, or with `detached=True` a job of its own."""
        if self._children is None:
            desk, lease = self._reach("submit")
            self._children = Children(desk, lease, self.name)
        return await self._children.submit(call, **say)

    def assert_lease(self, on: object) -> Awaitable[None]:
        """In your own transaction: go on only while this attempt holds the task; held until you commit.

        On a synchronous connection it has happened when this returns, and there is no need to await.
        """
        return ask_now(on, fences.asserting(self._held("assert_lease")))

    def complete(self, on: object, output: object = None) -> Awaitable[None]:
        """In your own transaction: the task has succeeded if you commit, and has not if you do not."""
        question = fences.completing(self._held("complete"), to_json(output, what="output"))
        self.completed = True
        return ask_now(on, question)

    async def save(
        self,
        name: str,
        content: Content,
        type: str | None = None,  # noqa: A002
        **say: Unpack[SaveSay],
    ) -> Artifact:
        """Store a file. Others see it when this attempt has succeeded, and not at all otherwise."""
        self.check()
        return await self._files().save(
            self,
            name,
            content,
            type,
            kind=say.get("kind", "file"),
            ttl=say.get("ttl"),
            meta=say.get("meta"),
        )

    def open(self, artifact: Artifact | str) -> AbstractAsyncContextManager[Reading]:
        """A stored file, by what `save` answered or by its name in this job."""
        return self._files().open(self, artifact)

    def stop(self, reason: str) -> None:
        """Called by the worker: the lease is lost, the job was cancelled, or the time is over."""
        self._stop_reason = reason

    def unreported(self) -> Progress | None:
        """The newest progress, if it has not been collected yet."""
        return self._progress if self._progress != self._reported else None

    def reported(self, progress: Progress) -> None:
        """What the database has accepted."""
        self._reported = progress

    @property
    def lines(self) -> Lines | None:
        """What was said and is not written yet; None when nothing ever was."""
        return self._lines

    def steps(self) -> Steps:
        if self._steps is None:
            self._steps = Steps(*self._reach("step"))
        return self._steps

    def _reach(self, what: str) -> tuple[Desk, Lease]:
        if self.desk is None:
            raise RefusedError(
                f"{what} needs a worker, and this context has none.", fix="Run the task by a worker."
            )
        return self.desk, self._held(what)

    def _held(self, what: str) -> Lease:
        if self.lease is None:
            raise RefusedError(
                f"{what} needs a lease, and this context has none.", fix="Run the task by a worker."
            )
        return self.lease

    def _files(self) -> Files:
        if self.files is None:
            raise RefusedError(
                "This worker has no place for files.", fix="Install holdfast[files] and set storage_url."
            )
        return self.files


async def _done(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(fn):
        return await fn(*args, **kwargs)
    made: Any = await asyncio.to_thread(fn, *args, **kwargs)
    return await made if inspect.isawaitable(made) else made


def len_of(items: object) -> int | None:
    return len(items) if isinstance(items, Sized) else None


async def _each(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
        return
    clock = asyncio.get_running_loop().time
    turn = clock()
    for item in items:
        yield item
        if clock() - turn > YIELD_EVERY:
            await asyncio.sleep(0)
            turn = clock()


def _clean(text: str) -> str:
    """Progress must never be the reason a task fails: cut it, and drop what PostgreSQL cannot keep."""
    return text[:MESSAGE_CHARACTERS].replace("\0", "").encode("utf-8", "replace").decode()
