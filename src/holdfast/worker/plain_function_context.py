"""The context of a plain function: its asynchronous methods raise instead of returning a coroutine.

A plain function cannot await. Without this, `ctx.save(...)` in it would return a coroutine that nobody runs:
the task would succeed without its file, and only a warning in the log would tell.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from holdfast.errors import RefusedError
from holdfast.worker.context import TaskContext

ASYNCHRONOUS_METHODS = ("open", "report", "save", "step", "submit", "track")


def mark_plain_function(context: TaskContext) -> None:
    """Make the asynchronous methods of a context raise. Those of `ctx.blocking` keep working."""
    context.__class__ = _build_plain_function_class(type(context))


@cache
def _build_plain_function_class(context_class: type[TaskContext]) -> type[TaskContext]:
    class PlainFunctionContext(context_class):  # type: ignore[misc,valid-type]  # a class per kind of context
        __slots__ = ()

    for name in ASYNCHRONOUS_METHODS:
        setattr(PlainFunctionContext, name, _build_refusing_method(name))
    return PlainFunctionContext


def _build_refusing_method(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RefusedError(
            f"ctx.{name} is asynchronous, and this task is a plain function.",
            fix=f"Write ctx.blocking.{name}(...), or declare the task with `async def`.",
        )

    return refuse
