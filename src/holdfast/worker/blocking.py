"""The context for plain functions, which run in threads: each call returns when it is done.

What must reach the database is done by the worker's event loop; the thread waits for it. A plain function
given to `step` runs here, in the thread that asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack
from uuid import UUID

from holdfast.definitions.context import AnyCall, BlockingReading, ChildSay, Content, Reading, SaveSay
from holdfast.engine.borrowed import is_sync
from holdfast.errors import RefusedError
from holdfast.model import Artifact
from holdfast.worker.steps import collecting, revive

if TYPE_CHECKING:
    from holdfast.worker.context import Context

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Blocking:
    def __init__(self, context: Context) -> None:
        self._context = context

    def track(
        self, items: Iterable[T], total: float | None = None, *, phase: str | None = None
    ) -> Iterator[T]:
        context = self._context
        size = getattr(items, "__len__", None)
        total = total if total is not None or size is None else size()
        context.progress(0 if total else None, total or 0, phase=phase)
        for done, item in enumerate(items, 1):
            context.check()
            yield item
            context.progress(done if total else None, total or 0)
        context.check()

    def report(
        self,
        done: float | None = None,
        total: float = 100,
        *,
        phase: str | None = None,
        message: str | None = None,
    ) -> None:
        self.wait(self._context.report(done, total, phase=phase, message=message))

    def step(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        steps = self._context.steps()
        known, value = self.wait(steps.recall(name))
        if not known:
            self._context.check()
            with collecting() as files:
                made: Any = fn(*args, **kwargs)
                made = self.wait(made) if asyncio.iscoroutine(made) else made
            value = self.wait(steps.keep(name, made, files))
        done: R = revive(fn, name, value)
        return done

    def submit(self, call: AnyCall, **say: Unpack[ChildSay]) -> UUID:
        return self.wait(self._context.submit(call, **say))

    def assert_lease(self, on: object) -> None:
        self._on(on, lambda: self._context.assert_lease(on))

    def complete(self, on: object, output: object = None) -> None:
        self._on(on, lambda: self._context.complete(on, output))

    def save(
        self,
        name: str,
        content: Content,
        type: str | None = None,  # noqa: A002
        **say: Unpack[SaveSay],
    ) -> Artifact:
        return self.wait(self._context.save(name, content, type, **say))

    def open(self, artifact: Artifact | str) -> AbstractContextManager[BlockingReading]:
        return self._opened(artifact)

    @contextmanager
    def _opened(self, artifact: Artifact | str) -> Generator[BlockingReading]:
        opened = self._context.open(artifact)
        reading = self.wait(_entered(opened.__aenter__))
        try:
            yield Pieces(self, reading)
        finally:
            self.wait(_entered(lambda: opened.__aexit__(None, None, None)))

    def _on(self, on: object, ask: Callable[[], Any]) -> None:
        """A synchronous connection belongs to this thread; any other to the loop."""
        if is_sync(on):
            ask()
        else:
            self.wait(_entered(ask))

    def wait(self, doing: Coroutine[Any, Any, T]) -> T:
        """Let the worker's loop do it."""
        desk = self._context.desk
        if desk is None or _has_loop():
            doing.close()
            raise RefusedError(
                "ctx.blocking is for plain functions that a worker runs in threads.",
                fix="Await the method of ctx itself." if desk else "Run the task by a worker.",
            )
        return asyncio.run_coroutine_threadsafe(doing, desk.loop).result()


class Pieces:
    """A stored file, read piece by piece from a thread."""

    def __init__(self, blocking: Blocking, reading: Reading) -> None:
        self._blocking = blocking
        self._reading = reading

    def __iter__(self) -> Iterator[bytes]:
        pieces = aiter(self._reading)
        while (piece := self._blocking.wait(_next(pieces))) is not None:
            yield piece

    def read(self) -> bytes:
        return self._blocking.wait(self._reading.read())


async def _next(pieces: Any) -> bytes | None:
    piece: bytes | None = await anext(pieces, None)
    return piece


async def _entered(ask: Callable[[], Any]) -> Any:
    return await ask()


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
