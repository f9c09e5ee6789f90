"""What a worker opens before its first task and closes after its last: a browser, an HTTP client, a model.

    @lifespan
    async def browser() -> AsyncIterator[Browser]:
        async with launch() as opened:
            yield opened

What it yields is `ctx.state` of every task in that worker: annotate them with `Ctx[Browser]`. Passive, like a
task: nothing runs here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True, eq=False)
class Lifespan(Generic[S_co]):
    """A function of no arguments that opens, hands out and closes what tasks share."""

    function: Callable[[], Any]

    @property
    def name(self) -> str:
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
    """Make a generator, or a function that answers with a context manager, the lifespan of a worker."""
    return Lifespan(function)
