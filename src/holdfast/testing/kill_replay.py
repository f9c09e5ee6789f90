"""Prove that a task may be killed anywhere: kill it after each await, discard it, and run it again.

The coroutine of the task is driven step by step. After its k-th suspension it is discarded where it stands,
as if the process had been killed there: the awaited operation has happened, the next one has not, and no
`finally` block ran. Its open transactions are ended, as the database does when a client disconnects, and
its lease expires. Then the next attempt runs to the end. It must leave the same state behind as an attempt
that was not killed.
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

StateProbe: TypeAlias = Callable[[], Any]
COROUTINE_CLOSE_TIMEOUT_S: Final = 1.0


class SimulatedKill(BaseException):
    """Kills an attempt at a chosen await."""


@dataclass(frozen=True)
class ReplayResult:
    """The result of `hf.replay`: how often and where the task was killed, and its result."""

    kills: int
    output: Any
    places: list[str] = field(default_factory=list[str])


class KillableCoroutine:
    """Runs a coroutine and kills it after its k-th suspension, or never if `k` is 0."""

    def __init__(self, inner: Coroutine[Any, Any, Any], code: CodeType, k: int) -> None:
        self.inner = inner
        self.suspensions = 0
        self.place = "?"
        self._code = code
        self._k = k
        self._steps = inner.__await__()

    async def close(self) -> None:
        """Run the `finally` blocks of the killed coroutine.

        This happens long after the states were compared.
        """
        self._k = 0
        with contextlib.suppress(BaseException):
            async with asyncio.timeout(COROUTINE_CLOSE_TIMEOUT_S):
                await self._cancel_coroutine()

    @types.coroutine
    def _cancel_coroutine(self) -> Generator[Any, Any, None]:
        to_throw: BaseException | None = asyncio.CancelledError("killed")
        while True:
            try:
                awaited = next(self._steps) if to_throw is None else self._steps.throw(to_throw)
            except StopIteration:
                return
            to_throw = None
            try:
                yield awaited
            except BaseException as error:
                to_throw = error

    def __await__(self) -> Generator[Any, Any, Any]:
        to_throw: BaseException | None = None
        while True:
            try:
                awaited = next(self._steps) if to_throw is None else self._steps.throw(to_throw)
            except StopIteration as stop:
                return stop.value
            self.suspensions += 1
            self.place = self._get_code_location()
            to_throw = None
            try:
                yield awaited
            except BaseException as error:  # a cancellation, as by the timeout: the task handles it
                to_throw = error
                continue
            if self.suspensions == self._k:
                raise SimulatedKill(self.place)

    def _get_code_location(self) -> str:
        """Return the file and line that the task's function has reached."""
        frame = getattr(self.inner, "cr_frame", None)
        return f"{self._code.co_name}:{frame.f_lineno}" if frame is not None else self._code.co_name


async def call_state_probe(probe: StateProbe | None) -> Any:
    """Call a probe, await it if it is asynchronous, and return its value."""
    if probe is None:
        return None
    value = probe()
    return await value if inspect.isawaitable(value) else value


def check_task_is_async(call: Call[Any]) -> None:
    """Raise `InvalidError` if the task is not asynchronous."""
    if not call.task.is_async:
        raise InvalidError(
            f"Task {call.task.name} is a plain function, which cannot be stopped in the middle.",
            fix="Replay asynchronous tasks only.",
            field="call",
        )


def check_same_result(place: str, expected: dict[str, Any], actual: dict[str, Any]) -> None:
    """Raise `AssertionError` if the run that was killed at `place` left another state behind."""
    for what, value in expected.items():
        if actual[what] != value:
            raise AssertionError(
                f"Killed after the await in {place} and run again, the {what} differs:\n"
                f"  undisturbed: {value!r}\n"
                f"  replayed:    {actual[what]!r}"
            )


async def close_killed_coroutines(
    killed: list[KillableCoroutine], tasks_before: set[asyncio.Task[Any]]
) -> None:
    """Close the discarded coroutines and cancel the asyncio tasks that they started."""
    for task in asyncio.all_tasks() - tasks_before:
        if task is not asyncio.current_task():
            task.cancel()
    await asyncio.gather(*(each.close() for each in killed), return_exceptions=True)


def make_killable(task: Task[..., Any], k: int, runs: list[KillableCoroutine]) -> Task[..., Any]:
    """Return a copy of the task whose function is killed after its k-th suspension.

    Each run is added to `runs`.
    """
    function = task.function

    @functools.wraps(function)
    async def run_attempt_until_kill(*args: Any, **kwargs: Any) -> Any:
        run = KillableCoroutine(function(*args, **kwargs), function.__code__, k)
        runs.append(run)
        return await run

    return replace(task, function=run_attempt_until_kill)
