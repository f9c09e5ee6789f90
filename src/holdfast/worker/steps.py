"""What a task already did. A step that succeeded is remembered with the task, and later attempts skip it.

A step answers the same whether it ran or was remembered: in both cases with the value as it was stored, made
into what the function says that it returns.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import typing
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from holdfast.definitions.payloads import from_json, to_json
from holdfast.engine.leases import Lease
from holdfast.errors import InvalidError
from holdfast.model import Json
from holdfast.worker.desk import Desk

NAME_BYTES = 200
_saved: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("holdfast_step_files", default=None)


@contextmanager
def collecting() -> Generator[list[str]]:
    """While a step runs: the ids of the files that it saves, also from threads that it waits for."""
    files: list[str] = []
    token = _saved.set(files)
    try:
        yield files
    finally:
        _saved.reset(token)


def saved(file: UUID) -> None:
    """A file was saved; within a step it belongs to the step."""
    files = _saved.get()
    if files is not None:
        files.append(str(file))


class Steps:
    def __init__(self, desk: Desk, lease: Lease) -> None:
        self._desk = desk
        self._lease = lease
        self._done: dict[str, Json] | None = {} if lease.attempt == 1 else None
        self._reading = asyncio.Lock()

    async def recall(self, name: str) -> tuple[bool, Json]:
        """Whether the step is done, and its value."""
        _check(name)
        async with self._reading:
            if self._done is None:
                self._done = await self._desk.get_steps(self._lease)
        return name in self._done, self._done.get(name)

    async def keep(self, name: str, value: object, files: Sequence[str] = ()) -> Json:
        """The value that is kept from now on, with its files: the first one, if two ran at once."""
        text = to_json(value, what=f"step {name}")
        kept = await self._desk.save_step(self._lease, name, text, files)
        if self._done is not None:
            self._done[name] = kept
        return kept


def _check(name: str) -> None:
    if not name or len(name.encode("utf-8", "replace")) > NAME_BYTES or any(ord(c) < 32 for c in name):
        raise InvalidError(
            f"The name of a step is 1 to {NAME_BYTES} bytes without control characters, got {name!r}.",
            field="name",
        )


def revive(fn: Callable[..., Any], name: str, value: Json) -> Any:
    return from_json(value, _returns(fn), what=f"step {name}")


def _returns(fn: Callable[..., Any]) -> Any:
    """What the function says that it returns, when it says so in words that can be read now."""
    inner = inspect.unwrap(fn)
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not inspect.isroutine(inner):
        inner = getattr(inner, "__call__", inner)  # noqa: B004  (an object that can be called)
    try:
        return typing.get_type_hints(inner).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return Any
