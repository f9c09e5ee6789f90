"""Run the lifespan of an application: open it before the first claim, close it after the last task.

Errors in it are reported in one sentence that names the line in the user's code. The state is compared with
the type that tasks declare before anything is claimed, so that a mismatch does not become a series of failed
attempts.
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
from typing import Any, Final, cast

from holdfast.definitions.context import Ctx
from holdfast.definitions.lifespan import Lifespan, lifespan
from holdfast.definitions.tasks import Task
from holdfast.errors import InvalidError, LifespanError

__all__ = ["Lifespan", "StoppedBeforeStart", "lifespan", "open_lifespan"]

AnyTask = Task[..., Any]
_LIFESPAN_FIX: Final = 'Write it as "async def name() -> AsyncIterator[State]: ... yield state".'


class StoppedBeforeStart(Exception):  # noqa: N818  (an event, not a fault)
    """The worker was stopped while its lifespan was still opening."""


@asynccontextmanager
async def open_lifespan(
    span: Lifespan[Any] | None,
    tasks: Iterable[AnyTask] = (),
    *,
    state: Any = None,
    stop: asyncio.Event | None = None,
) -> AsyncGenerator[Any]:
    """Open the lifespan and yield its state. Without a lifespan, yield `state`.

    Raises StoppedBeforeStart when `stop` is set while the lifespan opens.
    """
    manager = _create_lifespan_manager(span) if span is not None else contextlib.nullcontext(state)
    try:
        state = await _enter_lifespan(manager, stop)
    except StoppedBeforeStart:
        raise
    except Exception as error:
        raise _build_lifespan_error(span, "did not start", error) from error
    try:
        check_state_types(span, state, tasks)
        yield state
    finally:
        try:
            await manager.__aexit__(None, None, None)
        except Exception as error:
            raise _build_lifespan_error(span, "did not close", error) from error


async def _enter_lifespan(manager: AbstractAsyncContextManager[Any], stop: asyncio.Event | None) -> Any:
    if stop is None:
        return await manager.__aenter__()
    loop = asyncio.get_running_loop()
    stop_watcher = loop.create_task(stop.wait())
    interruption = asyncio.timeout(None)
    try:
        # The manager is entered in this task because it is left in this task. A timeout that expires when
        # `stop` is set can interrupt it here.
        async with interruption:
            stop_watcher.add_done_callback(
                lambda _: None if stop_watcher.cancelled() else interruption.reschedule(loop.time())
            )
            return await manager.__aenter__()
    except TimeoutError:
        if interruption.expired():
            raise StoppedBeforeStart from None
        raise
    finally:
        stop_watcher.cancel()


def _create_lifespan_manager(span: Lifespan[Any]) -> AbstractAsyncContextManager[Any]:
    function = span.function
    if inspect.isasyncgenfunction(function):
        return asynccontextmanager(function)()
    if inspect.isgeneratorfunction(function):
        return _SyncLifespanManager(contextlib.contextmanager(function)())
    try:
        manager = function()
    except Exception as error:
        raise _build_lifespan_error(span, "did not start", error) from error
    if isinstance(manager, AbstractAsyncContextManager):
        return cast("AbstractAsyncContextManager[Any]", manager)
    if isinstance(manager, AbstractContextManager):
        return _SyncLifespanManager(cast("AbstractContextManager[Any]", manager))
    if inspect.iscoroutine(manager):
        manager.close()
    raise LifespanError(f"The lifespan {span.name} does not yield a state.", fix=_LIFESPAN_FIX)


class _SyncLifespanManager(AbstractAsyncContextManager[Any]):
    """Adapts a synchronous context manager to `async with`.

    It is entered on the event loop, on which nothing else runs yet.
    """

    def __init__(self, inner: AbstractContextManager[Any]) -> None:
        self._inner = inner

    async def __aenter__(self) -> Any:
        return self._inner.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self._inner.__exit__(None, None, None)


def _build_lifespan_error(span: Lifespan[Any] | None, event: str, error: Exception) -> LifespanError:
    if isinstance(error, LifespanError):
        return error
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name != "contextlib.py"
    ]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""
    cause = f"{place}{type(error).__name__}: {error}".rstrip(": .")
    is_misspelt = "didn't yield" in str(error) or "didn't stop" in str(error)
    return LifespanError(
        f"The lifespan {span.name if span else '?'} {event}: {cause}.",
        fix=_LIFESPAN_FIX if is_misspelt else None,
    )


def check_state_types(span: Lifespan[Any] | None, state: object, tasks: Iterable[AnyTask]) -> None:
    """Raise InvalidError if a task declares another type of `ctx.state` than the lifespan yields."""
    for task in tasks:
        expected = find_state_type(task)
        if expected is None or isinstance(state, expected):
            continue
        if span is None:
            raise InvalidError(
                f"Task {task.name} declares ctx.state as {expected.__qualname__}, but there is no lifespan.",
                fix="Add an @lifespan function that yields it to the same module.",
                field="state",
            )
        raise InvalidError(
            f"Task {task.name} declares ctx.state as {expected.__qualname__}; "
            f"the lifespan {span.name} yields {type(state).__qualname__}.",
            field="state",
        )


def find_state_type(task: AnyTask) -> type | None:
    """Return the state class in a task's `Ctx[State]` annotation, or None if it cannot be checked."""
    hint = task.context_hint
    if typing.get_origin(hint) is not Ctx:
        return None
    (state_type,) = typing.get_args(hint)
    state_type = typing.get_origin(state_type) or state_type
    if not isinstance(state_type, type) or state_type in (type(None), object, Any):
        return None
    is_protocol = getattr(state_type, "_is_protocol", False)
    return None if is_protocol and not getattr(state_type, "_is_runtime_protocol", False) else state_type
