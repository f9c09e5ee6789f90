"""Proves that a task may be killed anywhere: stops it after each await, forgets it, and runs it again.

The coroutine is driven by hand. After its k-th suspension is over, it is dropped where it stands, as if the
process had been killed there: what it awaited has happened, what comes next has not, and no `finally` ran.
Transactions that it left open are ended, as the database does when a client is gone, and its lease runs out.
Then the next attempt runs to the end, and must leave the same behind as one that nobody disturbed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Final, TypeAlias

from holdfast.definitions.tasks import Call, Task
from holdfast.errors import InvalidError

Probe: TypeAlias = Callable[[], Any]
LEAVE_SECONDS: Final = 1.0


class Killed(BaseException):
    """The attempt was stopped here, on purpose."""


@dataclass(frozen=True)
class Replayed:
    """At how many places the task was killed, and what it returned every time."""

    kills: int
    output: Any
    places: list[str] = field(default_factory=list[str])


class Stopped:
    """Awaits a coroutine, and drops it after its k-th suspension. `k` 0 never does."""

    def __init__(self, inner: Coroutine[Any, Any, Any], code: CodeType, k: int) -> None:
        self.inner = inner
        self.suspensions = 0
        self.place = "?"
        self._code = code
        self._k = k
        self._steps = inner.__await__()

    async def leave(self) -> None:
        """Long after: it may tidy up, on a loop and with an end, where nobody sees the effect any more."""
        self._k = 0
        with contextlib.suppress(BaseException):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._cancelled()

    @types.coroutine
    def _cancelled(self) -> Generator[Any, Any, None]:
        thrown: BaseException | None = asyncio.CancelledError("killed")
        while True:
            try:
                awaited = next(self._steps) if thrown is None else self._steps.throw(thrown)
            except StopIteration:
                return
            thrown = None
            try:
                yield awaited
            except BaseException as problem:
                thrown = problem

    def __await__(self) -> Generator[Any, Any, Any]:
        thrown: BaseException | None = None
        while True:
            try:
                awaited = next(self._steps) if thrown is None else self._steps.throw(thrown)
            except StopIteration as ended:
                return ended.value
            self.suspensions += 1
            self.place = self._where()
            thrown = None
            try:
                yield awaited
            except BaseException as problem:  # cancelled, as by its time limit: its to deal with
                thrown = problem
                continue
            if self.suspensions == self._k:
                raise Killed(self.place)

    def _where(self) -> str:
        """The line of the task's own function."""
        frame = getattr(self.inner, "cr_frame", None)
        return f"{self._code.co_name}:{frame.f_lineno}" if frame is not None else self._code.co_name


async def ask(probe: Probe | None) -> Any:
    if probe is None:
        return None
    answer = probe()
    return await answer if inspect.isawaitable(answer) else answer


def check_call(call: Call[Any]) -> None:
    if not call.task.is_async:
        raise InvalidError(
            f"{call.task.name} is a plain function, which cannot be stopped in the middle.",
            fix="Replay asynchronous tasks; of plain ones test the parts.",
            field="call",
        )


def compare(place: str, expected: dict[str, Any], found: dict[str, Any]) -> None:
    for what, value in expected.items():
        if found[what] != value:
            raise AssertionError(
                f"Killed after the await in {place} and run again, the {what} differs:\n"
                f"  undisturbed: {value!r}\n"
                f"  replayed:    {found[what]!r}"
            )


async def abandon(stopped: list[Stopped], before: set[asyncio.Task[Any]]) -> None:
    """After all comparisons: lets go of what was dropped, and of what it had started."""
    for task in asyncio.all_tasks() - before:
        if task is not asyncio.current_task():
            task.cancel()
    await asyncio.gather(*(each.leave() for each in stopped), return_exceptions=True)


def stoppable(task: Task[..., Any], k: int, made: list[Stopped]) -> Task[..., Any]:
    """The same task, whose runs are dropped after their k-th suspension."""
    function = task.function

    @functools.wraps(function)
    async def stopped(*args: Any, **kwargs: Any) -> Any:
        run = Stopped(function(*args, **kwargs), function.__code__, k)
        made.append(run)
        return await run

    return replace(task, function=stopped)
