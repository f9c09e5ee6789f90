"""The messages between a worker and a child process that runs its tasks. One frame (framing.py) each.

To the child: S start, T run a task, X stop the task, A response to a gateway request, Q quit. From the child:
O ready, V outcome of the task, P progress, L log line, D gateway request, K the task completed itself.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast
from uuid import UUID

import msgspec

from holdfast import errors
from holdfast.engine.leases import LeasedTask, OutcomeKind
from holdfast.errors import HoldfastError


class ChildStart(msgspec.Struct, frozen=True, kw_only=True):
    """How the child reaches the database, and what it imports. It exits when process `worker_pid` does."""

    url: str
    settings: dict[str, str]
    worker_pid: int
    modules: list[str] = []
    import_path: list[str] = []


class TaskAssignment(msgspec.Struct, frozen=True, kw_only=True):
    claimed: LeasedTask
    deadline: datetime


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a task. No kind means that the task was stopped and there is nothing to record."""

    kind: OutcomeKind | None = None
    body: bytes | None = None
    error: str | None = None
    completed: bool = False


class ChildLogLine(msgspec.Struct, frozen=True, kw_only=True):
    level: str
    message: str
    fields: dict[str, Any]


class GatewayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A method of the engine gateway that the worker calls for the child."""

    number: int
    method: str
    args: list[Any]


class TransferredError(msgspec.Struct, frozen=True, kw_only=True):
    """An exception of a gateway request, as data."""

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


class GatewayResponse(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    value: Any = None
    error: TransferredError | None = None


def convert_ids_to_text(value: Any) -> Any:
    """Replace ids by text, because msgpack would decode nested ids differently."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: convert_ids_to_text(inner) for name, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value
