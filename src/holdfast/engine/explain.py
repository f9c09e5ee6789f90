"""Explain why a task is not running, and list its failed attempts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, decode_object
from holdfast.model import TaskExplanation


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a task that did not succeed."""

    attempt: int
    outcome: str
    worker: str | None
    started_at: datetime | None
    ended_at: datetime
    error_type: str | None
    message: str | None
    traceback: str | None
    fingerprint: str | None


async def explain_task(connection: Connection, task_id: UUID) -> JsonObject:
    """Return the status of a task and why it is not running. Raise NotFoundError if it does not exist."""
    return decode_object(await connection.fetchval("select holdfast.explain_task($1)", task_id))


async def explain_tasks(connection: Connection, tasks: Iterable[tuple[UUID, str]]) -> list[TaskExplanation]:
    """Return why tasks are not running. `tasks` are pairs of task id and task name.

    The `details` of each reason also has the `queue` and the `attempt` of its task.
    """
    explanations: list[TaskExplanation] = []
    for task_id, name in tasks:
        explanation: dict[str, Any] = await explain_task(connection, task_id)
        common = {key: explanation[key] for key in ("queue", "attempt") if key in explanation}
        for row in explanation.get("reasons") or ():
            details = {**common, **row}
            kind = details.pop("reason")
            status = explanation["status"]
            explanations.append(
                TaskExplanation(task=name, task_id=task_id, status=status, reason=kind, details=details)
            )
    return explanations


async def list_task_attempts(connection: Connection, task_id: UUID) -> list[FailedAttempt]:
    """List the attempts of a task that did not succeed, oldest first."""
    rows = await connection.fetch("select * from holdfast.list_task_attempts($1)", task_id)
    return [FailedAttempt(**dict(row)) for row in rows]
