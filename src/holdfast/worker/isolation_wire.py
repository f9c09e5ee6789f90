"""What a worker and a child that runs its tasks say to each other, one frame (heartbeat_wire.py) each.

To the child: S how to begin, T a task, X stop it, A the answer to a question, Q end. From the child: O ready,
V the verdict, P progress, L a line of the log, D a question to the desk, K the task has completed itself.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast import errors
from holdfast.engine.leases import Claimed
from holdfast.errors import HoldfastError
from holdfast.worker.executor import Kind


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    settings: dict[str, str]
    worker: int  # the process whose end is ours


class Given(msgspec.Struct, frozen=True, kw_only=True):
    claimed: Claimed
    deadline: datetime


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """No kind: the task was stopped and has nothing to say. Leaving: its code may still run, so we end."""

    kind: Kind | None
    body: bytes | None = None
    error: str | None = None
    completed: bool = False
    leaving: bool = False


class Line(msgspec.Struct, frozen=True, kw_only=True):
    level: str
    message: str
    fields: dict[str, Any]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    method: str
    args: list[Any]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    message: str
    fix: str | None = None
    field: str | None = None

    @classmethod
    def of(cls, problem: BaseException) -> Problem:
        if isinstance(problem, HoldfastError):
            return cls(
                kind=type(problem).__name__, message=problem.message, fix=problem.fix, field=problem.field
            )
        return cls(kind="HoldfastError", message=f"{type(problem).__name__}: {problem}")

    def raised(self) -> HoldfastError:
        kind = getattr(errors, self.kind, HoldfastError)
        known = isinstance(kind, type) and issubclass(kind, HoldfastError)
        return (kind if known else HoldfastError)(self.message, fix=self.fix, field=self.field)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    value: Any = None
    problem: Problem | None = None


def plain(value: Any) -> Any:
    """Ids as text, so that they come back the same whatever they are inside of."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value
