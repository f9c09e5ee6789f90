"""Runs the lifespan of an application: opened before the first claim, closed after the last task.

Whatever goes wrong in it is said in one sentence that names the user's own line. The state is compared with
what the tasks say they want before anything is claimed, so that a mismatch is no row of failed attempts.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import traceback
import typing
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

from holdfast.definitions.context import Ctx
from holdfast.definitions.lifespan import Lifespan, lifespan
from holdfast.definitions.tasks import Task
from holdfast.errors import InvalidError, LifespanError

__all__ = ["Lifespan", "StoppedEarly", "lifespan", "started"]

AnyTask = Task[..., Any]
_SPELT = 'Write it as "async def name() -> AsyncIterator[State]: ... yield state".'


class StoppedEarly(Exception):  # noqa: N818  (an event, not a fault)
    """The worker was told to stop while its lifespan was still opening."""


@asynccontextmanager
async def started(
    span: Lifespan[Any] | None,
    tasks: Iterable[AnyTask] = (),
    *,
    state: Any = None,
    stop: asyncio.Event | None = None,
) -> AsyncGenerator[Any]:
    """The state, while it is open; without a lifespan the one that is given. Gives up when `stop` is set."""
    manager = _manager(span) if span is not None else contextlib.nullcontext(state)
    try:
        state = await _opened(manager, stop)
    except StoppedEarly:
        raise
    except Exception as problem:
        raise _failed(span, "did not start", problem) from problem
    try:
        check(span, state, tasks)
        yield state
    finally:
        try:
            await manager.__aexit__(None, None, None)
        except Exception as problem:
            raise _failed(span, "did not close", problem) from problem


async def _opened(manager: AbstractAsyncContextManager[Any], stop: asyncio.Event | None) -> Any:
    if stop is None:
        return await manager.__aenter__()
    loop = asyncio.get_running_loop()
    watching = loop.create_task(stop.wait())
    patience = asyncio.timeout(None)
    try:
        # Entered in this task, because it will be left in this task; so it is interrupted by a time limit.
        async with patience:
            watching.add_done_callback(
                lambda _: None if watching.cancelled() else patience.reschedule(loop.time())
            )
            return await manager.__aenter__()
    except TimeoutError:
        if patience.expired():
            raise StoppedEarly from None
        raise
    finally:
        watching.cancel()


def _manager(span: Lifespan[Any]) -> AbstractAsyncContextManager[Any]:
    function = span.function
    if inspect.isasyncgenfunction(function):
        return asynccontextmanager(function)()
    if inspect.isgeneratorfunction(function):
        return _Plain(contextlib.contextmanager(function)())
    try:
        made = function()
    except Exception as problem:
        raise _failed(span, "did not start", problem) from problem
    if isinstance(made, AbstractAsyncContextManager):
        return cast("AbstractAsyncContextManager[Any]", made)
    if isinstance(made, AbstractContextManager):
        return _Plain(cast("AbstractContextManager[Any]", made))
    if inspect.iscoroutine(made):
        made.close()
    raise LifespanError(f"The lifespan {span.name} yields nothing.", fix=_SPELT)


class _Plain(AbstractAsyncContextManager[Any]):
    """A plain context manager, entered on the loop: there is nobody to wait for it yet."""

    def __init__(self, inner: AbstractContextManager[Any]) -> None:
        self._inner = inner

    async def __aenter__(self) -> Any:
        return self._inner.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self._inner.__exit__(None, None, None)


def _failed(span: Lifespan[Any] | None, what: str, problem: Exception) -> LifespanError:
    if isinstance(problem, LifespanError):
        return problem
    frames = [
        f for f in traceback.extract_tb(problem.__traceback__) if Path(f.filename).name != "contextlib.py"
    ]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""
    said = f"{where}{type(problem).__name__}: {problem}".rstrip(": .")
    return LifespanError(f"The lifespan {span.name if span else '?'} {what}: {said}.", fix=_fix(problem))


def _fix(problem: Exception) -> str | None:
    return _SPELT if "didn't yield" in str(problem) or "didn't stop" in str(problem) else None


def check(span: Lifespan[Any] | None, state: object, tasks: Iterable[AnyTask]) -> None:
    """Every task that says what its state is must be given that."""
    for task in tasks:
        wanted = state_of(task)
        if wanted is None or isinstance(state, wanted):
            continue
        if span is None:
            raise InvalidError(
                f"Task {task.name} wants a {wanted.__qualname__} as ctx.state, and there is no lifespan.",
                fix="Add an @lifespan function that yields it to the same module.",
                field="state",
            )
        raise InvalidError(
            f"Task {task.name} wants a {wanted.__qualname__} as ctx.state; "
            f"the lifespan {span.name} yields a {type(state).__qualname__}.",
            field="state",
        )


def state_of(task: AnyTask) -> type | None:
    """The class in `Ctx[State]` of a task, when it is one that can be compared with."""
    if not task.wants_context:
        return None
    first = next(iter(inspect.signature(task.function).parameters))
    hint = task.hints.get(first)
    if typing.get_origin(hint) is not Ctx:
        return None
    (wanted,) = typing.get_args(hint)
    wanted = typing.get_origin(wanted) or wanted
    if not isinstance(wanted, type) or wanted in (type(None), object, Any):
        return None
    protocol = getattr(wanted, "_is_protocol", False) and not getattr(wanted, "_is_runtime_protocol", False)
    return None if protocol else wanted
