"""Submit, read, list, cancel and retry jobs. One coroutine per SQL function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.model import Json

MAX_CANCELLED_JOBS_PER_CHUNK = 1000

# Jobs with these options are submitted one by one.
_OPTIONS_OF_ONE_JOB = frozenset({"tasks", "key", "unique_key", "batch", "after", "check"})

_json_decoder = msgspec.json.Decoder()


class SubmitResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a submit. `created` is false if a job with the same key already existed."""

    id: UUID
    status: str
    created: bool
    tasks: dict[str, UUID] | None = None


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a job, numbered by `seq`."""

    seq: int
    at: datetime
    kind: str
    body: Json


_submit_decoder = msgspec.json.Decoder(SubmitResult)


async def submit(connection: Connection, job: bytes | Mapping[str, Json]) -> SubmitResult:
    """Submit a job. `job` is the submit request, as JSON or as a mapping (see functions/jobs/submit.sql)."""
    return _submit_decoder.decode(
        await connection.fetchval("select holdfast.submit($1)", _encode_json_text(job))
    )


async def submit_standalone(connection: Connection, job: bytes | Mapping[str, Json]) -> SubmitResult:
    """Submit a job in its own transaction, which is faster than `submit`."""
    call = "select holdfast.submit_standalone($1)"
    return _submit_decoder.decode(await connection.fetchval(call, _encode_json_text(job)))


async def submit_many(
    connection: Connection, jobs: bytes | Sequence[Mapping[str, Json]]
) -> list[SubmitResult]:
    """Submit many jobs in one call: all or none. The results have the order of the jobs."""
    if not isinstance(jobs, bytes) and _differ_only_in_args(jobs):
        options = {name: value for name, value in jobs[0].items() if name != "args"}
        args_of_jobs = [msgspec.json.encode(job["args"]).decode() if "args" in job else None for job in jobs]
        ids = await submit_uniform(connection, options, args_of_jobs)
        return [SubmitResult(id=job_id, status="queued", created=True) for job_id in ids]
    rows = await connection.fetch("select holdfast.submit_many($1) as job", _encode_json_text(jobs))
    return [_submit_decoder.decode(row["job"]) for row in rows]


def accepts_uniform_submit(options: Mapping[str, Json]) -> bool:
    """Return whether jobs with these options can be submitted by `submit_uniform`."""
    return _OPTIONS_OF_ONE_JOB.isdisjoint(options)


def _differ_only_in_args(jobs: Sequence[Mapping[str, Json]]) -> bool:
    """Return whether all jobs are plain tasks with the same options."""
    if not jobs or not accepts_uniform_submit(jobs[0]):
        return False
    # Compare the JSON, because 1 and True are equal in Python.
    encode, without_args = msgspec.json.encode, {"args": None}
    first = encode({**jobs[0], **without_args})
    return all(encode({**job, **without_args}) == first for job in jobs)


async def submit_uniform(
    connection: Connection, options: Mapping[str, Json], args_of_jobs: Sequence[str | None]
) -> list[UUID]:
    """Submit jobs that differ only in their arguments, which are JSON. Return the ids in the same order."""
    call = "select holdfast.submit_uniform($1, $2)"
    return cast("list[UUID]", await connection.fetchval(call, _encode_json_text(options), list(args_of_jobs)))


async def get_job(connection: Connection, job_id: UUID) -> dict[str, Json] | None:
    """Return a job with its tasks, or None."""
    return _decode_object(await connection.fetchval("select holdfast.get_job($1)", job_id))


class StoredJobPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of jobs. Pass `next` as `before` of the next page.

    A page may be short or empty without being the last.
    """

    rows: list[dict[str, Any]]
    next: UUID | None = None
    truncated: bool = False


async def list_jobs_page(
    connection: Connection, where: Mapping[str, Json], *, before: UUID | None = None, limit: int = 50
) -> StoredJobPage:
    """List jobs, newest first, without their tasks."""
    call = "select holdfast.list_jobs_page($1, $2, $3)"
    text = await connection.fetchval(call, _encode_json_text(where), before, limit)
    return msgspec.json.decode(text, type=StoredJobPage)


async def list_jobs(
    connection: Connection, where: Mapping[str, Json], *, before: UUID | None = None, limit: int = 50
) -> list[dict[str, Json]]:
    """List up to `limit` matching jobs, reading as many pages as needed."""
    rows: list[dict[str, Json]] = []
    while True:
        page = await list_jobs_page(connection, where, before=before, limit=limit - len(rows))
        rows += page.rows
        if page.next is None or len(rows) >= limit:
            return rows
        before = page.next


async def list_job_events(
    connection: Connection, job_id: UUID, *, after: int = 0, limit: int = 100
) -> list[JobEvent]:
    """List the events of a job after sequence number `after`, oldest first."""
    rows = await connection.fetch("select * from holdfast.list_job_events($1, $2, $3)", job_id, after, limit)
    return [JobEvent(seq=r["seq"], at=r["at"], kind=r["kind"], body=_decode_object(r["body"])) for r in rows]


async def register_job_waiter(
    connection: Connection, watcher: str, job_ids: Sequence[UUID], done_ids: Sequence[UUID] = ()
) -> None:
    """Notify a watcher of the start and end of `job_ids` for two minutes, and no longer of `done_ids`."""
    call = "select holdfast.register_job_waiter($1, $2, $3)"
    await connection.execute(call, watcher, list(job_ids), list(done_ids))


async def cancel_job(connection: Connection, job_id: UUID, reason: str | None = None) -> dict[str, Json]:
    """Cancel a job. Return {cancelled, status}; `cancelled` is false if the job had already ended."""
    response = await connection.fetchval("select holdfast.cancel_job($1, $2)", job_id, reason)
    return cast("dict[str, Any]", _json_decoder.decode(response))


async def cancel_task(connection: Connection, task_id: UUID, reason: str | None = None) -> bool:
    """Cancel one task of a job. Tasks that depend on it follow their own failure policy."""
    return bool(await connection.fetchval("select holdfast.cancel_task($1, $2)", task_id, reason))


class _CancelChunk(msgspec.Struct, frozen=True, kw_only=True):
    cancelled: int
    next: dict[str, Json] | None = None


async def cancel_jobs(
    connection: Connection, where: Mapping[str, Json], reason: str | None = None, *, limit: int = 1000
) -> int:
    """Cancel up to `limit` jobs that match and return their number. Call it again until it returns 0."""
    start: dict[str, Json] | None = None
    while True:
        chunk = await _cancel_jobs_chunk(connection, where, reason, limit, start)
        if chunk.cancelled or chunk.next is None:
            return chunk.cancelled
        start = chunk.next


async def cancel_all_jobs(
    connection: Connection, where: Mapping[str, Json], reason: str | None = None
) -> int:
    """Cancel all matching jobs, one transaction per chunk, and return their number.

    Jobs change while this reads them, so it reads again until it finds none.
    """
    total = cancelled = 0
    start: dict[str, Json] | None = None
    while True:
        chunk = await _cancel_jobs_chunk(connection, where, reason, MAX_CANCELLED_JOBS_PER_CHUNK, start)
        cancelled += chunk.cancelled
        if chunk.next is not None:
            start = chunk.next
        elif cancelled:
            total, cancelled, start = total + cancelled, 0, None
        else:
            return total


async def _cancel_jobs_chunk(
    connection: Connection,
    where: Mapping[str, Json],
    reason: str | None,
    limit: int,
    start: dict[str, Json] | None,
) -> _CancelChunk:
    call = "select holdfast.cancel_jobs_chunk($1, $2, $3, $4)"
    encoded_start = None if start is None else _encode_json_text(start)
    response = await connection.fetchval(call, _encode_json_text(where), reason, limit, encoded_start)
    return msgspec.json.decode(response, type=_CancelChunk)


async def retry_job(
    connection: Connection,
    job_id: UUID,
    *,
    from_tasks: Sequence[str] | None = None,
    delay: timedelta = timedelta(0),
) -> int:
    """Retry the failed and cancelled tasks of a job, or `from_tasks` and all tasks that depend on them.

    Return the number of tasks.
    """
    response = await connection.fetchval(
        "select holdfast.retry_job($1, $2, $3)",
        job_id,
        None if from_tasks is None else list(from_tasks),
        delay.total_seconds(),
    )
    return int(_json_decoder.decode(response)["restarted"])


class RedriveResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a redrive: the number of failed jobs that matched, and of jobs that were retried."""

    matched: int
    restarted: int


class _RedriveChunk(msgspec.Struct, frozen=True, kw_only=True):
    matched: int
    restarted: int
    next: str | None = None
    until: str | None = None


async def redrive_failed_jobs(
    connection: Connection,
    where: Mapping[str, Json],
    *,
    limit: int = 1000,
    dry_run: bool = False,
    spread: timedelta = timedelta(0),
) -> RedriveResult:
    """Retry up to `limit` failed jobs that match, oldest first, spread evenly over `spread`."""
    call = "select holdfast.redrive($1, $2, $3, $4)"
    matched = restarted = 0
    filters = dict(where)
    while True:
        arguments = (_encode_json_text(filters), limit - matched, dry_run, spread.total_seconds())
        response = await connection.fetchval(call, *arguments)
        chunk = msgspec.json.decode(response, type=_RedriveChunk)
        matched, restarted = matched + chunk.matched, restarted + chunk.restarted
        if chunk.next is None or matched >= limit:
            return RedriveResult(matched=matched, restarted=restarted)
        filters |= {"from": chunk.next, "until": chunk.until}


async def open_batch(
    connection: Connection,
    name: str | None = None,
    *,
    callback: Mapping[str, Json] | None = None,
    owner: str | None = None,
) -> UUID:
    """Create a batch and return its id. Submit jobs with this id as `batch` to add them."""
    text = None if callback is None else _encode_json_text(callback)
    return cast(
        "UUID", await connection.fetchval("select holdfast.open_batch($1, $2, $3)", name, text, owner)
    )


async def close_batch(connection: Connection, batch_id: UUID) -> dict[str, Json]:
    """Close a batch to new jobs. Its callback job is submitted after the last job has ended."""
    response = await connection.fetchval("select holdfast.close_batch($1)", batch_id)
    return cast("dict[str, Any]", _json_decoder.decode(response))


async def get_batch(connection: Connection, batch_id: UUID) -> dict[str, Json] | None:
    """Return a batch with its counts and status, or None."""
    return _decode_object(await connection.fetchval("select holdfast.get_batch($1)", batch_id))


def _encode_json_text(value: bytes | Mapping[str, Json] | Sequence[Mapping[str, Json]]) -> str:
    return (value if isinstance(value, bytes) else msgspec.json.encode(value)).decode()


def _decode_object(text: str | None) -> dict[str, Json] | None:
    return None if text is None else cast("dict[str, Any]", _json_decoder.decode(text))
