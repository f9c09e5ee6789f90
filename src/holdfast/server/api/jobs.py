"""Endpoints for jobs: start, list, read, wait, stream events, cancel and retry."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, cast
from urllib.parse import quote
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import explain, jobs
from holdfast.errors import InvalidError
from holdfast.model import ENDED_STATUSES, JobStatus, Json
from holdfast.server.api.audit import record_service_action
from holdfast.server.api.event_streams import stream_events
from holdfast.server.api.identity import identify_caller, transaction_as_caller, verify_caller_again
from holdfast.server.api.job_views import JobView, redact_attempt, redact_explanation, redact_job
from holdfast.server.api.json_responses import ensure_exists, json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_uuid, parse_query, read_json_body
from holdfast.server.api.services import get_services
from holdfast.server.api.stream_sources import list_job_files_for_stream
from holdfast.server.api.stream_tickets import STREAM_TICKET_LIFETIME, issue_stream_ticket
from holdfast.server.api.submission import StartJobRequest, start_job_for_caller, submit_job_for_caller
from holdfast.storage.public_links import build_public_link

PageSize = Annotated[int, Meta(ge=1, le=200)]
BoundedSeconds = Annotated[float, Meta(ge=0, le=315360000)]
BoundedText = Annotated[str, Meta(max_length=500)]
_JOB_NOT_FOUND_RESPONSE = {404: "The job does not exist"}
_EXISTING_JOB_RESPONSE = {200: "A job with this key exists already"}


class AcceptedJob(msgspec.Struct, kw_only=True):
    """Result of submitting a job: its id, status and task ids.

    `created` is false if a job with the same key existed. The id and status are then those of the existing
    job.
    """

    id: UUID
    status: str
    created: bool
    tasks: dict[str, UUID] | None = None


class GetJobQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters for reading a job.

    `wait` is the number of seconds to wait for an event with a number greater than `after`, or for the end.
    """

    wait: Annotated[float, Meta(ge=0, le=25)] = 0
    after: Annotated[int, Meta(ge=0, le=2**62)] | None = None


class JobListQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of a job list: filters, page size and page position.

    `limit` is the page size. `before` is the `next` value of the previous page.

    >>> from starlette.requests import Request
    >>> from holdfast.server import JobListQuery, parse_query
    >>> def count_jobs_per_page(request: Request) -> int:
    ...     return parse_query(request, JobListQuery).limit
    """

    status: JobStatus | None = None
    type: BoundedText | None = None
    queue: BoundedText | None = None
    owner: BoundedText | None = None
    before: UUID | None = None
    limit: PageSize = 50


class JobListPage(msgspec.Struct, kw_only=True):
    """A page of jobs.

    Send `next` as `before` to get the next page. `next` is null on the last page. Any page can have fewer
    jobs than `limit`, or none.
    """

    jobs: list[JobView]
    next: UUID | None = None


class CancelJobQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters for cancelling a job. The `reason` is stored with the job."""

    reason: BoundedText | None = None


class JobCancellation(msgspec.Struct, kw_only=True):
    """Result of cancelling a job: its current status.

    `cancelled` is false if the job had already ended.
    """

    cancelled: bool
    status: str


class RetryJobRequest(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename={"from_tasks": "from"}
):
    """Request body to retry a job.

    `from` names the tasks to run again. Tasks that depend on them run again too. The default is all failed
    and cancelled tasks.
    """

    from_tasks: list[BoundedText] | None = None
    delay_s: BoundedSeconds = 0


class RetryJobResult(msgspec.Struct, kw_only=True):
    """Result of retrying a job: the number of tasks that run again."""

    restarted: int


@api_operation(
    "Start a job of a public job type",
    tag="jobs",
    scope="jobs",
    body=StartJobRequest,
    response=AcceptedJob,
    status=202,
    other_responses=_EXISTING_JOB_RESPONSE,
    request_headers=("Idempotency-Key",),
)
async def start_job(request: Request) -> Response:
    body = await parse_body(request, StartJobRequest)
    return _build_accepted_job_response(request, await start_job_for_caller(request, body))


@api_operation(
    "Submit a job with its tasks",
    tag="jobs",
    scope="jobs",
    body=dict[str, Any],
    response=AcceptedJob,
    status=202,
    other_responses=_EXISTING_JOB_RESPONSE,
    request_headers=("Idempotency-Key",),
)
async def submit_job(request: Request) -> Response:
    body = await read_json_body(request)
    if not isinstance(body, dict):
        raise InvalidError("The job must be a JSON object.", field="body")
    job = cast("dict[str, Json]", body)
    return _build_accepted_job_response(request, await submit_job_for_caller(request, job))


def _build_accepted_job_response(request: Request, job: jobs.SubmitResult) -> Response:
    body = AcceptedJob(id=job.id, status=job.status, created=job.created, tasks=job.tasks)
    location = build_public_link(get_services(request).settings, f"/api/jobs/{job.id}")
    return json_response(body, 202 if job.created else 200, {"Location": location})


@api_operation("List jobs, newest first", tag="jobs", scope="jobs", query=JobListQuery, response=JobListPage)
async def list_jobs(request: Request) -> Response:
    query = parse_query(request, JobListQuery)
    caller = await identify_caller(request)
    filters = {
        name: value
        for name in ("status", "type", "queue", "owner")
        if (value := getattr(query, name)) is not None
    }
    async with transaction_as_caller(request) as connection:
        page = await jobs.list_jobs_page(connection, filters, before=query.before, limit=query.limit)
    return json_response({"jobs": [redact_job(row, caller) for row in page.rows], "next": page.next})


@api_operation(
    "Read a job, or wait until it changes",
    tag="jobs",
    scope="jobs",
    query=GetJobQuery,
    response=JobView,
    other_responses={304: "The job is unchanged since the ETag in If-None-Match", **_JOB_NOT_FOUND_RESPONSE},
)
async def get_job(request: Request) -> Response:
    query, job_id = parse_query(request, GetJobQuery), parse_path_uuid(request)
    job = await _read_job_or_404(request, job_id)
    if (
        query.wait
        and job["status"] not in ENDED_STATUSES
        and (query.after is None or job["event_seq"] <= query.after)
    ):
        await get_services(request).event_hub.wait_for_change(job_id, job["event_seq"], query.wait)
        await verify_caller_again(request)
        job = await _read_job_or_404(request, job_id)
    etag = f'W/"{job["event_seq"]}-{job["status"]}-{job["progress"]["percent"]}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    async with transaction_as_caller(request) as connection:
        files = await list_job_files_for_stream(connection, job_id)
    body = redact_job(job, await identify_caller(request))
    return json_response({**body, "artifacts": files}, headers=headers)


async def _read_job_or_404(request: Request, job_id: UUID) -> dict[str, Json]:
    async with transaction_as_caller(request) as connection:
        return ensure_exists(await jobs.get_job(connection, job_id), f"Job {job_id}")


class EventStreamQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of an event stream.

    `after` is the number of the last event that you received. `ticket` replaces the token.
    """

    after: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    ticket: Annotated[str, Meta(max_length=200)] | None = None


@api_operation(
    "Watch a job as server-sent events",
    tag="jobs",
    access="anyone",  # a ticket can replace the token
    scope="jobs",
    query=EventStreamQuery,
    media_type="text/event-stream",
    other_responses={204: "The job has ended and you have all of its events", **_JOB_NOT_FOUND_RESPONSE},
    request_headers=("Last-Event-ID",),
)
async def stream_job_events(request: Request) -> Response:
    parse_query(request, EventStreamQuery)
    return await stream_events(request, parse_path_uuid(request))


class StreamTicketView(msgspec.Struct, kw_only=True):
    """A ticket that opens one event stream, without a token.

    Send it as the query parameter `ticket` within `expires_s` seconds, or open `url`, which has it. A ticket
    works once.
    """

    ticket: str
    url: str
    expires_s: int


@api_operation(
    "Create a ticket to watch a job from a client that cannot send headers",
    tag="jobs",
    scope="jobs",
    response=StreamTicketView,
    status=201,
    other_responses=_JOB_NOT_FOUND_RESPONSE,
)
async def create_job_stream_ticket(request: Request) -> Response:
    job_id = parse_path_uuid(request)
    await _read_job_or_404(request, job_id)
    return await create_stream_ticket_response(request, job_id, f"/api/jobs/{job_id}/events")


async def create_stream_ticket_response(request: Request, subject_id: UUID, path: str) -> Response:
    """Create a ticket for the event stream of a job or batch at `path`, and return it as a response."""
    ticket = await issue_stream_ticket(request, subject_id)
    url = build_public_link(get_services(request).settings, f"{path}?ticket={quote(ticket)}")
    lifetime_s = int(STREAM_TICKET_LIFETIME.total_seconds())
    return json_response(StreamTicketView(ticket=ticket, url=url, expires_s=lifetime_s), 201)


@api_operation(
    "Cancel a job",
    tag="jobs",
    scope="jobs",
    query=CancelJobQuery,
    response=JobCancellation,
    other_responses=_JOB_NOT_FOUND_RESPONSE,
)
async def cancel_job(request: Request) -> Response:
    query, job_id = parse_query(request, CancelJobQuery), parse_path_uuid(request)
    async with transaction_as_caller(request) as connection:
        ensure_exists(await jobs.get_job(connection, job_id), f"Job {job_id}")
        cancellation = await jobs.cancel_job(connection, job_id, query.reason)
        await record_service_action(request, connection, "job.cancel", job_id, reason=query.reason)
    return json_response(cancellation)


@api_operation(
    "Retry a job that has ended",
    tag="jobs",
    scope="jobs",
    body=RetryJobRequest,
    response=RetryJobResult,
    other_responses={**_JOB_NOT_FOUND_RESPONSE, 409: "A task that would run again has not ended"},
)
async def retry_job(request: Request) -> Response:
    job_id, body = parse_path_uuid(request), await parse_body(request, RetryJobRequest)
    async with transaction_as_caller(request) as connection:
        ensure_exists(await jobs.get_job(connection, job_id), f"Job {job_id}")
        count = await jobs.retry_job(
            connection, job_id, from_tasks=body.from_tasks, delay=timedelta(seconds=body.delay_s)
        )
        await record_service_action(request, connection, "job.retry", job_id)
    return json_response(RetryJobResult(restarted=count))


@api_operation(
    "Explain why a task does not run",
    tag="jobs",
    scope="jobs",
    response=dict[str, Any],
    other_responses={404: "The task does not exist"},
)
async def explain_task(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        explanation = await explain.explain_task(connection, parse_path_uuid(request))
    return json_response(redact_explanation(explanation, await identify_caller(request)))


class AttemptView(msgspec.Struct, kw_only=True):
    """A failed attempt of a task. Users see no worker, traceback or fingerprint."""

    attempt: int
    outcome: str
    worker: str | None = None
    started_at: datetime | None = None
    ended_at: datetime
    error_type: str | None = None
    message: str | None = None
    traceback: str | None = None
    fingerprint: str | None = None


@api_operation(
    "List the failed attempts of a task",
    tag="jobs",
    scope="jobs",
    response=list[AttemptView],
)
async def list_failed_attempts(request: Request) -> Response:
    caller = await identify_caller(request)
    async with transaction_as_caller(request) as connection:
        attempts = await explain.list_task_attempts(connection, parse_path_uuid(request))
    if caller.kind == "user":
        attempts = [redact_attempt(attempt) for attempt in attempts]
    return json_response(attempts)


def build_job_routes() -> list[BaseRoute]:
    return [
        Route("/api/jobs/start", start_job, methods=["POST"]),
        Route("/api/jobs", list_jobs, methods=["GET"]),
        Route("/api/jobs", submit_job, methods=["POST"]),
        Route("/api/jobs/{id}", get_job, methods=["GET"]),
        Route("/api/jobs/{id}", cancel_job, methods=["DELETE"]),
        Route("/api/jobs/{id}/events", stream_job_events, methods=["GET"]),
        Route("/api/jobs/{id}/ticket", create_job_stream_ticket, methods=["POST"]),
        Route("/api/jobs/{id}/retry", retry_job, methods=["POST"]),
        Route("/api/tasks/{id}/explain", explain_task, methods=["GET"]),
        Route("/api/tasks/{id}/attempts", list_failed_attempts, methods=["GET"]),
    ]
