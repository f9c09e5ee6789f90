"""Read the details of one job: tasks, attempts, payloads, reruns and its submit request."""

from __future__ import annotations

from uuid import UUID

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, decode_object, decode_optional_object, fetch_objects


async def get_job_detail(connection: Connection, job_id: UUID, *, max_tasks: int = 500) -> JsonObject | None:
    """Return a job with up to `max_tasks` tasks, their dependencies and their attempts, or None.

    The payloads of the tasks are left out; `get_task_payload` returns them.
    """
    call = "select holdfast.get_job_detail($1, $2)"
    return decode_optional_object(await connection.fetchval(call, job_id, max_tasks))


async def list_job_attempts(connection: Connection, job_id: UUID, *, limit: int = 50) -> list[JsonObject]:
    """List the failed attempts of all tasks of a job with their errors, newest first."""
    return await fetch_objects(connection, "select holdfast.list_job_attempts($1, $2)", job_id, limit)


async def get_task_payload(connection: Connection, task_id: UUID) -> JsonObject | None:
    """Return the arguments, output and error of a task, or None."""
    return decode_optional_object(await connection.fetchval("select holdfast.get_task_payload($1)", task_id))


async def build_job_resubmission(connection: Connection, job_id: UUID) -> JsonObject:
    """Return the submit request that runs a job again as a new job, without its keys and times."""
    return decode_object(await connection.fetchval("select holdfast.build_job_resubmission($1)", job_id))


async def record_job_rerun(connection: Connection, old_id: UUID, new_id: UUID, actor: str) -> None:
    """Record that `actor` started job `new_id` as a rerun of job `old_id`."""
    await connection.execute("select holdfast.record_job_rerun($1, $2, $3)", old_id, new_id, actor)


async def get_rerun_links(connection: Connection, job_id: UUID) -> JsonObject:
    """Return {of, to} of a job: `of` is the job that it reruns, or None; `to` lists its latest 10 reruns."""
    return decode_object(await connection.fetchval("select holdfast.get_rerun_links($1)", job_id))


async def find_jobs_by_short_id(
    connection: Connection, first: str, last: str, *, limit: int = 10
) -> list[UUID]:
    """Return the ids of jobs by their first and last digits. Either may be empty."""
    call = "select holdfast.find_jobs_by_short_id($1, $2, $3) as id"
    return [row["id"] for row in await connection.fetch(call, first, last, limit)]
