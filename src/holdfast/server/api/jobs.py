"""Jobs over HTTP: start, list, read, wait, cancel, run again."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, cast
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import access, insight, jobs
from holdfast.errors import InvalidError
from holdfast.model import ENDED, JobStatus, Json
from holdfast.server.api import starting, tickets, views
from holdfast.server.api.bodies import answer, body_of, found, json_body, query_of, uuid_in
from holdfast.server.api.events import stream
from holdfast.server.api.identity import acting, identify
from holdfast.server.api.operations import operation
from holdfast.server.api.services import services_of

Count = Annotated[int, Meta(ge=1, le=200)]
Seconds = Annotated[float, Meta(ge=0, le=315360000)]
Text = Annotated[str, Meta(max_length=500)]


class Accepted(msgspec.Struct, kw_only=True):
    """`created` is false when the key belonged to a job already; then this is that job."""

    id: UUID
    status: str
    created: bool
    tasks: dict[str, UUID] | None = None


class JobQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    wait: Annotated[float, Meta(ge=0, le=25)] = 0
    after: Annotated[int, Meta(ge=0, le=2**62)] | None = None


class JobsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    status: JobStatus | None = None
    type: Text | None = None
    queue: Text | None = None
    owner: Text | None = None
    before: UUID | None = None
    limit: Count = 50


class JobPage(msgspec.Struct, kw_only=True):
    """`next` is `before` of the page after it. A page may be short, or empty, and not be the last."""

    jobs: list[views.JobView]
    next: UUID | None = None


class CancelQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    reason: Text | None = None


class Cancelled(msgspec.Struct, kw_only=True):
    """`cancelled` is false when it had ended already; `status` is what it is now."""

    cancelled: bool
    status: str


class Retry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename={"from_tasks": "from"}):
    """`from` names the tasks to run again with all after them; without it, what failed or was cancelled."""

    from_tasks: list[Text] | None = None
    delay_s: Seconds = 0


class Restarted(msgspec.Struct, kw_only=True):
    restarted: int


@operation(
    "Start a job of a type that is open to you",
    tag="jobs",
    scope="jobs",
    body=starting.Start,
    answer=Accepted,
    status=202,
    others={200: "There was a job with this key"},
    headers=("Idempotency-Key",),
)
async def start(request: Request) -> Response:
    wanted = await body_of(request, starting.Start)
    return _accepted(request, await starting.start(request, wanted))


@operation(
    "Submit a job as the engine takes it, with its tasks",
    tag="jobs",
    scope="jobs",
    body=dict[str, Any],
    answer=Accepted,
    status=202,
    others={200: "There was a job with this key"},
    headers=("Idempotency-Key",),
)
async def submit(request: Request) -> Response:
    given = await json_body(request)
    if not isinstance(given, dict):
        raise InvalidError("A job is an object.", field="body")
    job = cast("dict[str, Json]", given)
    return _accepted(request, await starting.submit(request, job))


def _accepted(request: Request, made: jobs.Submitted) -> Response:
    accepted = Accepted(id=made.id, status=made.status, created=made.created, tasks=made.tasks)
    place = f"{request.scope.get('root_path', '')}/api/jobs/{made.id}"
    return answer(accepted, 202 if made.created else 200, {"Location": place})


@operation("List jobs, newest first", tag="jobs", scope="jobs", query=JobsQuery, answer=JobPage)
async def list_jobs(request: Request) -> Response:
    query = query_of(request, JobsQuery)
    caller = await identify(request)
    where = {
        name: value
        for name in ("status", "type", "queue", "owner")
        if (value := getattr(query, name)) is not None
    }
    async with acting(request) as connection:
        page = await jobs.jobs_page(connection, where, before=query.before, limit=query.limit)
    return answer({"jobs": [views.job_view(row, caller) for row in page.rows], "next": page.next})


@operation(
    "Read a job, or wait until it changes",
    tag="jobs",
    scope="jobs",
    query=JobQuery,
    answer=views.JobView,
    others={304: "It is what you have", 404: "There is no such job"},
)
async def get_job(request: Request) -> Response:
    query, job_id = query_of(request, JobQuery), uuid_in(request)
    job = await _read(request, job_id)
    if query.wait and job["status"] not in ENDED and (query.after is None or job["event_seq"] <= query.after):
        await services_of(request).listener.changed(job_id, job["event_seq"], query.wait)
        job = await _read(request, job_id)
    tag = f'W/"{job["event_seq"]}-{job["status"]}-{job["progress"]["percent"]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return answer(views.job_view(job, await identify(request)), headers=headers)


async def _read(request: Request, job_id: UUID) -> dict[str, Json]:
    async with acting(request) as connection:
        return found(await jobs.get_job(connection, job_id), "job")


class EventsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    after: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    ticket: Annotated[str, Meta(max_length=200)] | None = None


@operation(
    "Watch a job as server-sent events",
    tag="jobs",
    access="anyone",  # a ticket takes the place of a token
    scope="jobs",
    query=EventsQuery,
    media="text/event-stream",
    others={204: "The job has ended and you have all of it", 404: "There is no such job"},
    headers=("Last-Event-ID",),
)
async def events(request: Request) -> Response:
    query_of(request, EventsQuery)
    return await stream(request, uuid_in(request))


class TicketView(msgspec.Struct, kw_only=True):
    ticket: str
    expires_s: int


@operation(
    "A ticket to watch a job once, for what cannot send headers",
    tag="jobs",
    scope="jobs",
    answer=TicketView,
    status=201,
    others={404: "There is no such job"},
)
async def ticket(request: Request) -> Response:
    job_id = uuid_in(request)
    await _read(request, job_id)
    made = await tickets.issue(request, job_id)
    return answer(TicketView(ticket=made, expires_s=int(tickets.TICKET_LIFE.total_seconds())), 201)


@operation(
    "Cancel a job; what comes back stays true",
    tag="jobs",
    scope="jobs",
    query=CancelQuery,
    answer=Cancelled,
    others={404: "There is no such job"},
)
async def cancel(request: Request) -> Response:
    query, job_id = query_of(request, CancelQuery), uuid_in(request)
    caller = await identify(request)
    async with acting(request) as connection:
        found(await jobs.get_job(connection, job_id), "job")
        done = await jobs.cancel_job(connection, job_id, query.reason)
        if caller.kind == "service":
            await access.record(connection, caller.name, "job.cancel", str(job_id), {"reason": query.reason})
    return answer(done)


@operation(
    "Run an ended job again",
    tag="jobs",
    scope="jobs",
    body=Retry,
    answer=Restarted,
    others={404: "There is no such job", 409: "A task that would run again has not ended"},
)
async def retry(request: Request) -> Response:
    job_id, wanted = uuid_in(request), await body_of(request, Retry)
    caller = await identify(request)
    async with acting(request) as connection:
        found(await jobs.get_job(connection, job_id), "job")
        count = await jobs.retry_job(
            connection, job_id, from_tasks=wanted.from_tasks, delay=timedelta(seconds=wanted.delay_s)
        )
        if caller.kind == "service":
            await access.record(connection, caller.name, "job.retry", str(job_id))
    return answer(Restarted(restarted=count))


@operation(
    "Why a task does not run",
    tag="jobs",
    scope="jobs",
    answer=dict[str, Any],
    others={404: "There is no such task"},
)
async def explain(request: Request) -> Response:
    async with acting(request) as connection:
        why = await insight.explain_task(connection, uuid_in(request))
    return answer(views.without_traceback(why, await identify(request)))


class AttemptView(msgspec.Struct, kw_only=True):
    attempt: int
    outcome: str
    worker: str | None = None
    started_at: datetime | None = None
    ended_at: datetime
    error_type: str | None = None
    message: str | None = None
    traceback: str | None = None
    fingerprint: str | None = None


@operation("The attempts of a task that did not succeed", tag="jobs", scope="jobs", answer=list[AttemptView])
async def attempts(request: Request) -> Response:
    caller = await identify(request)
    async with acting(request) as connection:
        rows = await insight.task_attempts(connection, uuid_in(request))
    if caller.kind == "user":
        rows = [views.public_attempt(row) for row in rows]
    return answer(rows)


def routes() -> list[BaseRoute]:
    return [
        Route("/api/jobs/start", start, methods=["POST"]),
        Route("/api/jobs", list_jobs, methods=["GET"]),
        Route("/api/jobs", submit, methods=["POST"]),
        Route("/api/jobs/{id}", get_job, methods=["GET"]),
        Route("/api/jobs/{id}", cancel, methods=["DELETE"]),
        Route("/api/jobs/{id}/events", events, methods=["GET"]),
        Route("/api/jobs/{id}/ticket", ticket, methods=["POST"]),
        Route("/api/jobs/{id}/retry", retry, methods=["POST"]),
        Route("/api/tasks/{id}/explain", explain, methods=["GET"]),
        Route("/api/tasks/{id}/attempts", attempts, methods=["GET"]),
    ]
