"""What goes on: why a task does not run, what was tried, how much waits; and the upkeep of it all."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.model import Json, Reason

_json = msgspec.json.Decoder()
Row = dict[str, Json]


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


async def explain_tasks(connection: Connection, tasks: Iterable[tuple[UUID, str]]) -> list[Reason]:
    """Explain several tasks, given as (id, name): one reason after the other.

    The `about` of each reason also has the `queue` and the `attempt` of its task.
    """
    reasons: list[Reason] = []
    for task_id, name in tasks:
        explained: dict[str, Any] = await explain_task(connection, task_id)
        common = {key: explained[key] for key in ("queue", "attempt") if key in explained}
        for row in explained.get("reasons") or ():
            about = {**common, **row}
            kind = about.pop("reason")
            status = explained["status"]
            reasons.append(Reason(task=name, task_id=task_id, status=status, reason=kind, about=about))
    return reasons


async def list_task_attempts(connection: Connection, task_id: UUID) -> list[Attempt]:
    rows = await connection.fetch("select * from holdfast.list_task_attempts($1)", task_id)
    return [Attempt(**dict(row)) for row in rows]


async def metrics(connection: Connection, *, most: int = 10_000) -> dict[str, Json]:
    """Counts stop at `most`, so that a backlog of millions costs no more to look at."""
    return _object(await connection.fetchval("select holdfast.metrics($1)", most))


async def tick(connection: Connection, *, limit: int = 1000) -> dict[str, Json]:
    """One bounded round of maintenance. `more` says that there is more to do at once."""
    return _object(await connection.fetchval("select holdfast.tick($1)", limit))


async def tend(connection: Connection) -> float | None:
    """Pauses that end, and bulk actions; seconds until there is more to do, None while there is nothing."""
    seconds: float | None = await connection.fetchval("select holdfast.tend()")
    return seconds


async def figures(
    connection: Connection, hours: float = 1, *, queue: str | None = None, kind: str | None = None
) -> Row:
    """A chart's worth of figures: what ended in each step, how long it waited and ran, how much waited."""
    return _object(await connection.fetchval("select holdfast.figures($1, $2, $3)", hours, queue, kind))


async def type_figures(connection: Connection, hours: float = 24) -> list[Row]:
    """The same per queue and type, with a trend in twelve steps."""
    return await _rows(connection, "select holdfast.type_figures($1)", hours)


async def tick_views(connection: Connection) -> int:
    """Bulk actions, samples and pauses that end: what tick does now and then, for those who watch."""
    return int(await connection.fetchval("select holdfast.tick_views()"))


async def pulse(connection: Connection) -> str:
    """A text that stays the same as long as nothing was written anywhere in the database."""
    return str(await connection.fetchval("select pg_catalog.pg_current_snapshot()::text"))


async def troubles(connection: Connection, since: datetime) -> Row:
    return _object(await connection.fetchval("select holdfast.troubles($1)", since))


async def job_page(connection: Connection, job_id: UUID, *, most: int = 500) -> Row | None:
    """A job with at most so many tasks, their dependencies and attempts; no payloads but the job's own."""
    return _found(await connection.fetchval("select holdfast.job_page($1, $2)", job_id, most))


async def job_attempts(connection: Connection, job_id: UUID, *, limit: int = 50) -> list[Row]:
    return await _rows(connection, "select holdfast.job_attempts($1, $2)", job_id, limit)


async def task_payload(connection: Connection, task_id: UUID) -> Row | None:
    return _found(await connection.fetchval("select holdfast.task_payload($1)", task_id))


async def task_type(connection: Connection, name: str) -> Row | None:
    """What workers said about a type: queue, schema, doc, version."""
    return _found(await connection.fetchval("select holdfast.task_type($1)", name))


async def files_page(connection: Connection, *, owner: str | None, before: UUID | None) -> Row:
    return _object(await connection.fetchval("select holdfast.files_page($1, $2)", owner, before))


async def list_batches(connection: Connection, *, owner: str | None, before: UUID | None) -> list[Row]:
    return await _rows(connection, "select holdfast.list_batches($1, $2)", owner, before)


async def database_page(connection: Connection) -> Row:
    return _object(await connection.fetchval("select holdfast.database_page()"))


async def pause_queue_until(
    connection: Connection, queue: str, until: datetime | None, *, why: str | None, by: str
) -> None:
    await connection.execute("select holdfast.pause_queue_until($1, $2, $3, $4)", queue, until, why, by)


async def save_view(
    connection: Connection, name: str, page: str, search: str, *, by: str, shared: bool = True
) -> UUID:
    call = "select holdfast.save_view($1, $2, $3, $4, $5)"
    return cast("UUID", await connection.fetchval(call, name, page, search, by, shared))


async def list_views(connection: Connection, by: str, page: str = "jobs") -> list[Row]:
    return await _rows(connection, "select holdfast.list_views($1, $2)", by, page)


async def delete_view(connection: Connection, view_id: UUID, by: str) -> bool:
    return bool(await connection.fetchval("select holdfast.delete_view($1, $2)", view_id, by))


async def link_rerun(connection: Connection, old: UUID, new: UUID, by: str) -> None:
    await connection.execute("select holdfast.link_rerun($1, $2, $3)", old, new, by)


async def job_reruns(connection: Connection, job_id: UUID) -> Row:
    """{of: the job that this one was made out of by hand, to: those made out of this one}."""
    return _object(await connection.fetchval("select holdfast.job_reruns($1)", job_id))


async def make_login_link(
    connection: Connection, digest: bytes, *, name: str, role: str, life: timedelta
) -> None:
    call = "select holdfast.make_login_link($1, $2, $3, $4)"
    await connection.execute(call, digest, name, role, life.total_seconds())


async def use_login_link(connection: Connection, digest: bytes) -> Row | None:
    """Whom the link lets in; None when it was used, is too old, or never was."""
    return _found(await connection.fetchval("select holdfast.use_login_link($1)", digest))


async def _rows(connection: Connection, call: str, *arguments: Any) -> list[Row]:
    return [_object(row[0]) for row in await connection.fetch(call, *arguments)]


def _found(text: str | None) -> Row | None:
    return None if text is None else _object(text)


def _object(text: str) -> dict[str, Json]:
    return cast("dict[str, Any]", _json.decode(text))
