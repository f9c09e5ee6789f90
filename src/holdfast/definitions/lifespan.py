"""Lifespans: resources that a worker opens before its first task and closes after its last task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True, eq=False)
class Lifespan(Generic[S_co]):
    """A generator function that opens, yields and closes the resource that a worker's tasks share.

    >>> from collections.abc import Iterator
    >>> from holdfast import Lifespan, lifespan
    >>> @lifespan
    ... def numbers() -> Iterator[list[int]]:
    ...     yield [1, 2, 3]
    >>> isinstance(numbers, Lifespan)
    True
    """

    function: Callable[[], Any]

    @property
    def name(self) -> str:
        """The qualified name of the function."""
        return getattr(self.function, "__qualname__", repr(self.function))


@overload
def lifespan(function: Callable[[], AsyncIterator[S]], /) -> Lifespan[S]: ...
@overload
def lifespan(function: Callable[[], Iterator[S]], /) -> Lifespan[S]: ...
@overload
def lifespan(function: Callable[[], AbstractAsyncContextManager[S]], /) -> Lifespan[S]: ...
@overload
def lifespan(function: Callable[[], AbstractContextManager[S]], /) -> Lifespan[S]: ...
def lifespan(function: Callable[[], Any], /) -> Lifespan[Any]:
    """Declare the lifespan of a worker: decorate a generator, or a function that returns a context manager.

    The value it yields is `ctx.state` in every task of that worker. Annotate the tasks with `Ctx[Type]`.

    >>> from collections.abc import AsyncIterator
    >>> from holdfast import Ctx, lifespan, task
    >>> @lifespan
    ... async def greeting() -> AsyncIterator[str]:
    ...     yield "hello"
    >>> @task
    ... async def greet(ctx: Ctx[str], name: str) -> str:
    ...     return f"{ctx.state} {name}"
    """
    return Lifespan(function)
