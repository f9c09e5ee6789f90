"""Jobs as their users see them: submit, read, list, cancel, run again. One coroutine per SQL function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.model import Json

_json = msgspec.json.Decoder()


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """`created` is false when the job was there already, under the same key."""

    id: UUID
    status: str
    created: bool
    tasks: dict[str, UUID] | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    at: datetime
    kind: str
    body: Json


_submitted = msgspec.json.Decoder(Submitted)


async def submit(connection: Connection, job: bytes | Mapping[str, Json]) -> Submitted:
    """`job` has the keys that submit.sql lists, as JSON text or as plain values."""
    return _submitted.decode(await connection.fetchval("select holdfast.submit($1)", _text(job)))


async def submit_alone(connection: Connection, job: bytes | Mapping[str, Json]) -> Submitted:
    """The same, faster, for a transaction that does nothing else."""
    return _submitted.decode(await connection.fetchval("select holdfast.submit_alone($1)", _text(job)))


async def submit_many(connection: Connection, jobs: bytes | Sequence[Mapping[str, Json]]) -> list[Submitted]:
    """All of them or none, in the given order."""
    rows = await connection.fetch("select holdfast.submit_many($1) as job", _text(jobs))
    return [_submitted.decode(row["job"]) for row in rows]


async def get_job(connection: Connection, job_id: UUID) -> dict[str, Json] | None:
    return _object(await connection.fetchval("select holdfast.get_job($1)", job_id))


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """`next` is `before` of the page after it. A page may be short, or empty, and not be the last."""

    rows: list[dict[str, Any]]
    next: UUID | None = None
    partly: bool = False


async def jobs_page(
    connection: Connection, where: Mapping[str, Json], *, before: UUID | None = None, limit: int = 50
) -> Page:
    """Newest first, without their tasks."""
    call = "select holdfast.jobs_page($1, $2, $3)"
    return msgspec.json.decode(await connection.fetchval(call, _text(where), before, limit), type=Page)


async def list_jobs(
    connection: Connection, where: Mapping[str, Json], *, before: UUID | None = None, limit: int = 50
) -> list[dict[str, Json]]:
    """As many as there are, up to `limit`, however many others have to be looked at for them."""
    rows: list[dict[str, Json]] = []
    while True:
        page = await jobs_page(connection, where, before=before, limit=limit - len(rows))
        rows += page.rows
        if page.next is None or len(rows) >= limit:
            return rows
        before = page.next


async def job_events(
    connection: Connection, job_id: UUID, *, after: int = 0, limit: int = 100
) -> list[Event]:
    rows = await connection.fetch("select * from holdfast.job_events($1, $2, $3)", job_id, after, limit)
    return [Event(seq=r["seq"], at=r["at"], kind=r["kind"], body=_object(r["body"])) for r in rows]


async def await_jobs(
    connection: Connection, watcher: str, awaited: Sequence[UUID], over: Sequence[UUID] = ()
) -> None:
    """Have these jobs announced for two minutes, and those no longer."""
    await connection.execute("select holdfast.await_jobs($1, $2, $3)", watcher, list(awaited), list(over))


async def cancel_job(connection: Connection, job_id: UUID, reason: str | None = None) -> dict[str, Json]:
    """{cancelled: whether this call did it, status: what it is now and stays if it has ended}."""
    answer = await connection.fetchval("select holdfast.cancel_job($1, $2)", job_id, reason)
    return cast("dict[str, Any]", _json.decode(answer))


async def cancel_task(connection: Connection, task_id: UUID, reason: str | None = None) -> bool:
    """One task of a job; its children follow the policy of their edges."""
    return bool(await connection.fetchval("select holdfast.cancel_task($1, $2)", task_id, reason))


class _CancelStep(msgspec.Struct, frozen=True, kw_only=True):
    cancelled: int
    next: dict[str, Json] | None = None


async def cancel_jobs(
    connection: Connection, where: Mapping[str, Json], reason: str | None = None, *, limit: int = 1000
) -> int:
    """How many were cancelled. Call again until it answers 0."""
    start: dict[str, Json] | None = None
    while True:
        step = await _cancel_step(connection, where, reason, limit, start)
        if step.cancelled or step.next is None:
            return step.cancelled
        start = step.next


async def cancel_all(connection: Connection, where: Mapping[str, Json], reason: str | None = None) -> int:
    """Cancel all that fit, in steps that commit by themselves; how many there were.

    Jobs move while they are looked for, so it looks again until there are none.
    """
    total = found = 0
    start: dict[str, Json] | None = None
    while True:
        step = await _cancel_step(connection, where, reason, 1000, start)
        found += step.cancelled
        if step.next is not None:
            start = step.next
        elif found:
            total, found, start = total + found, 0, None
        else:
            return total


async def _cancel_step(
    connection: Connection,
    where: Mapping[str, Json],
    reason: str | None,
    limit: int,
    start: dict[str, Json] | None,
) -> _CancelStep:
    call = "select holdfast.cancel_step($1, $2, $3, $4)"
    begin = None if start is None else _text(start)
    answer = await connection.fetchval(call, _text(where), reason, limit, begin)
    return msgspec.json.decode(answer, type=_CancelStep)


async def retry_job(
    connection: Connection,
    job_id: UUID,
    *,
    from_tasks: Sequence[str] | None = None,
    delay: timedelta = timedelta(0),
) -> int:
    """Run again what failed or was cancelled, or the named tasks and all below them; how many tasks."""
    answer = await connection.fetchval(
        "select holdfast.retry_job($1, $2, $3)",
        job_id,
        None if from_tasks is None else list(from_tasks),
        delay.total_seconds(),
    )
    return int(_json.decode(answer)["restarted"])


class Redriven(msgspec.Struct, frozen=True, kw_only=True):
    found: int
    restarted: int


class _RedriveStep(msgspec.Struct, frozen=True, kw_only=True):
    found: int
    restarted: int
    next: str | None = None
    until: str | None = None


async def redrive(
    connection: Connection,
    where: Mapping[str, Json],
    *,
    limit: int = 1000,
    dry_run: bool = False,
    spread: timedelta = timedelta(0),
) -> Redriven:
    """Put failed jobs back to work, oldest first, evenly over `spread`; in steps, until all were seen."""
    call = "select holdfast.redrive($1, $2, $3, $4)"
    found = restarted = 0
    asked = dict(where)
    while True:
        answer = await connection.fetchval(call, _text(asked), limit - found, dry_run, spread.total_seconds())
        step = msgspec.json.decode(answer, type=_RedriveStep)
        found, restarted = found + step.found, restarted + step.restarted
        if step.next is None or found >= limit:
            return Redriven(found=found, restarted=restarted)
        asked |= {"from": step.next, "until": step.until}


async def open_batch(
    connection: Connection,
    name: str | None = None,
    *,
    callback: Mapping[str, Json] | None = None,
    owner: str | None = None,
) -> UUID:
    """Jobs submitted with `batch` set to this id are counted together until the batch is closed."""
    text = None if callback is None else _text(callback)
    return cast(
        "UUID", await connection.fetchval("select holdfast.open_batch($1, $2, $3)", name, text, owner)
    )


async def close_batch(connection: Connection, batch_id: UUID) -> dict[str, Json]:
    """No more members. The callback is submitted once, after the last of them."""
    answer = await connection.fetchval("select holdfast.close_batch($1)", batch_id)
    return cast("dict[str, Any]", _json.decode(answer))


async def get_batch(connection: Connection, batch_id: UUID) -> dict[str, Json] | None:
    return _object(await connection.fetchval("select holdfast.get_batch($1)", batch_id))


def _text(value: bytes | Mapping[str, Json] | Sequence[Mapping[str, Json]]) -> str:
    return (value if isinstance(value, bytes) else msgspec.json.encode(value)).decode()


def _object(text: str | None) -> dict[str, Json] | None:
    return None if text is None else cast("dict[str, Any]", _json.decode(text))
