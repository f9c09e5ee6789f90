"""Steps: results of parts of a task, stored with the task, so that later attempts skip those parts.

A step returns the same value whether its function ran or its result was stored before: in both cases the
stored value, converted to the return type that the function declares.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import typing
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID

from holdfast.definitions.payloads import convert_payload, encode_payload
from holdfast.engine.leases import Lease
from holdfast.errors import InvalidError
from holdfast.model import Json
from holdfast.worker.gateway import EngineGateway

MAX_STEP_NAME_BYTES: Final = 200
_saved_file_ids: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar(
    "holdfast_step_files", default=None
)


@contextmanager
def collect_saved_files() -> Generator[list[str]]:
    """Collect the ids of the files that a step saves, also in threads that the step waits for."""
    file_ids: list[str] = []
    token = _saved_file_ids.set(file_ids)
    try:
        yield file_ids
    finally:
        _saved_file_ids.reset(token)


def add_saved_file(file_id: UUID) -> None:
    """Assign a saved file to the step that is running, if any."""
    file_ids = _saved_file_ids.get()
    if file_ids is not None:
        file_ids.append(str(file_id))


class StepStore:
    """The stored step results of one task.

    They are loaded when the first result is needed.
    """

    def __init__(self, gateway: EngineGateway, lease: Lease) -> None:
        self._gateway = gateway
        self._lease = lease
        self._results: dict[str, Json] | None = {} if lease.attempt == 1 else None
        self._load_lock = asyncio.Lock()

    async def load_result(self, name: str) -> tuple[bool, Json]:
        """Return whether the result of a step is stored, and the result."""
        _check_step_name(name)
        async with self._load_lock:
            if self._results is None:
                self._results = await self._gateway.get_step_results(self._lease)
        return name in self._results, self._results.get(name)

    async def save_result(self, name: str, result: object, file_ids: Sequence[str] = ()) -> Json:
        """Store the result of a step with its files.

        Returns the stored result, which is the first one saved.
        """
        text = encode_payload(result, what=f"step {name}")
        stored = await self._gateway.save_step_result(self._lease, name, text, file_ids)
        if self._results is not None:
            self._results[name] = stored
        return stored


def _check_step_name(name: str) -> None:
    size_bytes = len(name.encode("utf-8", "replace"))
    if not 1 <= size_bytes <= MAX_STEP_NAME_BYTES or any(ord(c) < 32 for c in name):
        raise InvalidError(
            f"The name of a step must be 1 to {MAX_STEP_NAME_BYTES} bytes without control characters, "
            f"got {name!r}.",
            field="name",
        )


def convert_step_result(fn: Callable[..., Any], name: str, value: Json) -> Any:
    """Convert a stored result to the return type of the step's function."""
    return convert_payload(value, _get_return_type(fn), what=f"step {name}")


def _get_return_type(fn: Callable[..., Any]) -> Any:
    """Return the declared return type, or Any if it cannot be resolved at run time."""
    inner = inspect.unwrap(fn)
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not inspect.isroutine(inner):
        inner = getattr(inner, "__call__", inner)  # noqa: B004  (a callable object)
    try:
        return typing.get_type_hints(inner).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return Any
