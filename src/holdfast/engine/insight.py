"""What goes on: why a task does not run, what was tried, how much waits; and the upkeep of it all."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.model import Json

_json = msgspec.json.Decoder()


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
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


async def explain_task(connection: Connection, task_id: UUID) -> dict[str, Json]:
    """Its status and the reasons why it does not run."""
    return _object(await connection.fetchval("select holdfast.explain_task($1)", task_id))


async def task_attempts(connection: Connection, task_id: UUID) -> list[Attempt]:
    rows = await connection.fetch("select * from holdfast.task_attempts($1)", task_id)
    return [Attempt(**dict(row)) for row in rows]


async def metrics(connection: Connection, *, most: int = 10_000) -> dict[str, Json]:
    """Counts stop at `most`, so that a backlog of millions costs no more to look at."""
    return _object(await connection.fetchval("select holdfast.metrics($1)", most))


async def tick(connection: Connection, *, limit: int = 1000) -> dict[str, Json]:
    """One bounded round of maintenance. `more` says that there is more to do at once."""
    return _object(await connection.fetchval("select holdfast.tick($1)", limit))


def _object(text: str) -> dict[str, Json]:
    return cast("dict[str, Any]", _json.decode(text))
