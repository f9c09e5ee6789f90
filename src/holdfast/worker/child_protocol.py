"""The messages between a worker and a child process that runs its tasks. One frame (framing.py) each.

To the child: S start, T run a task, X stop the task, A response to a gateway request, Q quit. From the child:
O ready, B the task's code begins, V outcome of the task, P progress, L log line, D gateway request, K the
task completed itself.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast
from uuid import UUID

import msgspec

from holdfast import errors
from holdfast.engine.leases import LeasedTask, OutcomeKind
from holdfast.errors import HoldfastError


class ChildStartMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a child process: the database URL, the settings and the modules to import.

    The child process exits when process `worker_pid` exits.
    """

    url: str
    settings: dict[str, str]
    worker_pid: int
    modules: list[str] = []
    import_path: list[str] = []


class TaskAssignment(msgspec.Struct, frozen=True, kw_only=True):
    claimed: LeasedTask
    deadline: datetime


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a task in a child process. `kind` is None if there is nothing to record."""

    kind: OutcomeKind | None = None
    body: bytes | None = None
    error: str | None = None
    completed: bool = False


class ChildLogLine(msgspec.Struct, frozen=True, kw_only=True):
    level: str
    message: str
    fields: dict[str, Any]


class EngineCallRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request from a child process: a gateway method that the worker calls, with its arguments."""

    number: int
    method: str
    args: list[Any]


class TransferredError(msgspec.Struct, frozen=True, kw_only=True):
    """An exception that is sent between a child process and its worker as data."""

    class_name: str
    message: str
    fix: str | None = None
    field: str | None = None

    @classmethod
    def from_exception(cls, error: BaseException) -> TransferredError:
        if isinstance(error, HoldfastError):
            return cls(
                class_name=type(error).__name__, message=error.message, fix=error.fix, field=error.field
            )
        return cls(class_name="HoldfastError", message=f"{type(error).__name__}: {error}")

    def to_exception(self) -> HoldfastError:
        named: object = getattr(errors, self.class_name, None)
        is_known = isinstance(named, type) and issubclass(named, HoldfastError)
        error_class = cast("type[HoldfastError]", named) if is_known else HoldfastError
        return error_class(self.message, fix=self.fix, field=self.field)


class EngineCallResponse(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    value: Any = None
    error: TransferredError | None = None


def convert_ids_to_text(value: Any) -> Any:
    """Replace UUIDs inside a value by text, because msgpack decodes nested UUIDs differently."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: convert_ids_to_text(inner) for name, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value
