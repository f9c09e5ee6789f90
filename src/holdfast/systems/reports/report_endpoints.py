"""Endpoints for reports, at the paths of the built-in job endpoints.

Requests of users for reports are handled here, in the format of the report contract. Requests for other jobs,
and requests of services that name no user, go to the API's own endpoint at the same path.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast import Artifact, Client
from holdfast.errors import InvalidError, NotFoundError, TooManyRequestsError
from holdfast.server import (
    Endpoint,
    JobListQuery,
    PriorityRoute,
    UnauthenticatedError,
    api_operation,
    call_built_in_endpoint,
    get_client,
    get_idempotency_key,
    identify_caller,
    json_response,
    parse_json,
    parse_query,
    read_body,
    redact_job,
    stream_events,
    transaction_as_caller,
)
from holdfast.systems.reports.chapters import CHAPTERS
from holdfast.systems.reports.http_responses import (
    ARTIFACT_TYPE_BY_FILE_KIND,
    REPORT_STATUS_BY_JOB_STATUS,
    ReportFrameBuilder,
    build_report_response,
)
from holdfast.systems.reports.report_tasks import REPORT_TYPE, nuclear_v2
from holdfast.systems.request_context import is_uuid, require_owner_id

REPORT_API_PATH = "/api/jobs"
DOWNLOAD_LINK_LIFETIME = timedelta(hours=1)
MAX_UNFINISHED_REPORTS = 20  # per user
TOO_MANY_REPORTS_RETRY_AFTER_S = 60
_client = Client()  # opens no connection: every report is submitted on the connection of the request


def create_report_routes() -> list[BaseRoute]:
    """Create the routes of the report API."""
    endpoints: list[tuple[str, str, Endpoint]] = [
        ("POST", "/start", _declare_endpoint(start_report, "Start a report", status=202)),
        ("GET", "", _declare_endpoint(list_reports, "List your reports")),
        ("GET", "/{id}", _declare_endpoint(get_report, "Get a report with its progress and files")),
        ("DELETE", "/{id}", _declare_endpoint(cancel_report, "Cancel a report")),
    ]
    stream = _declare_endpoint(
        stream_report, "Stream the events of a report", access="anyone", media_type="text/event-stream"
    )
    return [
        *(
            PriorityRoute(REPORT_API_PATH + path, _delegate_service_requests(endpoint), methods=[method])
            for method, path, endpoint in endpoints
        ),
        Route(f"{REPORT_API_PATH}/{{id}}/stream", stream, methods=["GET"]),
    ]


def _declare_endpoint(endpoint: Any, summary: str, **options: Any) -> Any:
    return api_operation(summary, tag="reports", scope="jobs", **options)(endpoint)


def _delegate_service_requests(endpoint: Endpoint) -> Endpoint:
    """Decorate an endpoint, so that requests of services go to the built-in endpoint of the API."""

    async def choose_endpoint(request: Request) -> Response:
        return await (endpoint if await _is_user_request(request) else call_built_in_endpoint)(request)

    return choose_endpoint


async def _is_user_request(request: Request) -> bool:
    try:
        caller = await identify_caller(request)
    except UnauthenticatedError:
        return False
    if caller.kind == "service":
        return "x-user-id" in request.headers
    return caller.kind == "user" and is_uuid(caller.id)


async def start_report(request: Request) -> Response:
    value: Any = parse_json(await read_body(request) or b"{}")
    body = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if body.get("type") != REPORT_TYPE:
        return await call_built_in_endpoint(request)
    params: Any = body.get("params")
    if not isinstance(params, dict):
        raise InvalidError("params must be an object.", field="params")
    owner, graph = await require_owner_id(request), nuclear_v2(cast("dict[str, Any]", params))
    async with transaction_as_caller(request, as_service=True) as connection:
        await _enforce_report_limit(connection, owner)
        key = get_idempotency_key(request, body.get("key"))
        job = await _client.submit(graph, owner=owner, key=key, on=connection)
    response = {"id": job.id, "jobId": job.id, "status": "queued"}
    return json_response(response, 202 if job.created else 200, {"Location": f"{REPORT_API_PATH}/{job.id}"})


async def _enforce_report_limit(connection: Any, owner: str) -> None:
    unfinished = await connection.fetchval(
        "select count(*) from holdfast.list_jobs($1, null, 200) as j"
        " where j ->> 'status' in ('queued', 'running')",
        msgspec.json.encode({"type": REPORT_TYPE, "owner": owner}).decode(),
    )
    if unfinished >= MAX_UNFINISHED_REPORTS:
        raise TooManyRequestsError(
            f"{unfinished} of your reports are not finished; the maximum is {MAX_UNFINISHED_REPORTS}.",
            fix="Wait until one of them has finished.",
            retry_after=TOO_MANY_REPORTS_RETRY_AFTER_S,
        )


async def list_reports(request: Request) -> Response:
    """List the reports of the user, newest first. With query parameters, list jobs of any type."""
    owner, query = await require_owner_id(request), parse_query(request, JobListQuery)
    job_type = query.type if request.query_params else REPORT_TYPE
    fields = {"owner": owner, "status": query.status, "type": job_type, "queue": query.queue}
    filters = {name: value for name, value in fields.items() if value is not None}
    async with transaction_as_caller(request) as connection:
        page = msgspec.json.decode(
            await connection.fetchval(
                "select holdfast.list_jobs_page($1, $2, $3)",
                *(msgspec.json.encode(filters).decode(), query.before, query.limit),
            )
        )
    caller = await identify_caller(request)
    jobs = [redact_job(row, caller) for row in page["rows"]]
    formatted = [build_report_response(job) if job["type"] == REPORT_TYPE else job for job in jobs]
    return json_response({"jobs": formatted, "next": page["next"]})


async def get_report(request: Request) -> Response:
    job = await _find_report(request)
    if job is None:
        return await call_built_in_endpoint(request)
    files = await get_client(request).files.list(job=job["id"])
    report = {
        **build_report_response(job),
        "artifacts": [await _build_artifact_response(request, file) for file in files],
    }
    return json_response(report, headers={"Cache-Control": "private, no-store"})


async def cancel_report(request: Request) -> Response:
    job = await _find_report(request)
    if job is None:
        return await call_built_in_endpoint(request)
    async with transaction_as_caller(request) as connection:
        result = msgspec.json.decode(
            await connection.fetchval("select holdfast.cancel_job($1)", UUID(job["id"]))
        )
    status = REPORT_STATUS_BY_JOB_STATUS[result["status"]]
    return json_response({"id": job["id"], "status": status, "cancelled": result["cancelled"]})


async def stream_report(request: Request) -> Response:
    """Stream the events of a report. A ticket can replace the token."""
    if "ticket" not in request.query_params and await _find_report(request) is None:
        raise NotFoundError(f"Report {request.path_params['id']} does not exist.")
    return await stream_events(request, _parse_job_id(request), build_frames=ReportFrameBuilder())


async def _build_artifact_response(request: Request, file: Artifact) -> dict[str, Any]:
    """Build the response for a file of a report, with a new signed link."""
    inline = file.kind in ("audio", "pdf")
    return {
        "type": ARTIFACT_TYPE_BY_FILE_KIND.get(file.kind, file.kind),
        "name": file.name,
        "title": _find_chapter_title(file.name),
        "url": await get_client(request).files.create_download_link(
            file, DOWNLOAD_LINK_LIFETIME, inline=inline
        ),
        "size": file.size,
        "duration": file.meta.get("duration"),
        "pages": file.meta.get("pages"),
    }


def _find_chapter_title(file_name: str) -> str | None:
    number = file_name.removeprefix("chapter").partition(".")[0]
    return CHAPTERS[int(number) - 1].title if number.isdigit() and 0 < int(number) <= len(CHAPTERS) else None


async def _find_report(request: Request) -> dict[str, Any] | None:
    """Return the job if it is a report, or None if the job has another type.

    Raise NotFoundError if the job does not exist or belongs to another user.
    """
    owner, job_id = await require_owner_id(request), _parse_job_id(request)
    async with transaction_as_caller(request) as connection:
        text = await connection.fetchval("select holdfast.get_job($1)", job_id)
    job: dict[str, Any] = msgspec.json.decode(text) if text else {}
    if job.get("owner") != owner:
        raise NotFoundError(f"Job {job_id} does not exist.")
    return redact_job(job, await identify_caller(request)) if job["type"] == REPORT_TYPE else None


def _parse_job_id(request: Request) -> UUID:
    text = request.path_params["id"]
    try:
        return UUID(text)
    except ValueError:
        raise NotFoundError(f"Job {text!r} does not exist.") from None
