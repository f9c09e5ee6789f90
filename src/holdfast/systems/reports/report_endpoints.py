"""Endpoints for reports, at the paths of the built-in job endpoints.

Requests of users for reports are handled here, in the format of the report contract. Requests for other jobs,
and requests of services that name no user, go to the API's own endpoint at the same path.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import wraps
from typing import Any, cast
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast import Artifact, Client
from holdfast.errors import GoneError, InvalidError, NotFoundError, TooManyRequestsError
from holdfast.server import (
    Endpoint,
    EventFrame,
    JobListQuery,
    PriorityRoute,
    UnauthenticatedError,
    api_operation,
    call_built_in_endpoint,
    encode_event_frames,
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
from holdfast.systems.field_errors import build_field_errors_response
from holdfast.systems.reports import stored_reports
from holdfast.systems.reports.budgets import describe_exhausted_budget
from holdfast.systems.reports.chapters import CHAPTERS
from holdfast.systems.reports.http_responses import (
    ARTIFACT_TYPE_BY_FILE_KIND,
    FINAL_MESSAGES,
    REPORT_STATUS_BY_JOB_STATUS,
    ReportFrameBuilder,
    build_stored_report_response,
)
from holdfast.systems.reports.report_params import find_unknown_params
from holdfast.systems.reports.report_tasks import REPORT_TYPE, nuclear_v2
from holdfast.systems.reports.stored_reports import StoredReport
from holdfast.systems.request_context import get_systems_schema, is_uuid, require_owner_id

REPORT_API_PATH = "/api/jobs"
DOWNLOAD_LINK_LIFETIME = timedelta(hours=1)
BUDGET_RETRY_AFTER_S = 86_400
MAX_UNFINISHED_REPORTS = 20  # per user
TOO_MANY_REPORTS_RETRY_AFTER_S = 60
_client = Client()  # opens no connection: every report is submitted on the connection of the request


class ReportView(msgspec.Struct, rename="camel"):
    """A report with its status and progress. A single report has its files in `artifacts`."""

    id: UUID
    type: str
    status: str
    progress: dict[str, Any]
    created_at: datetime
    error: Any = None
    artifacts: list[dict[str, Any]] = []


class ReportPage(msgspec.Struct):
    """Reports, and jobs of other types if the request asks for them, newest first."""

    jobs: list[dict[str, Any]]
    next: UUID | None = None


def create_report_routes() -> list[BaseRoute]:
    """Create the routes of the report API."""
    endpoints: list[tuple[str, str, Endpoint]] = [
        ("POST", "/start", _declare_endpoint(start_report, "Start a report", status=202)),
        ("GET", "", _declare_endpoint(list_reports, "List your reports", response=ReportPage)),
        ("GET", "/{id}", _declare_endpoint(get_report, "Get a report with its files", response=ReportView)),
        ("DELETE", "/{id}", _declare_endpoint(cancel_report, "Cancel a report")),
        ("POST", "/{id}/retry", _declare_endpoint(retry_report, "Retry what failed in a report")),
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

    @wraps(endpoint)
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
    unknown = find_unknown_params(cast("dict[str, Any]", params))
    if unknown:
        return build_field_errors_response(unknown)
    owner, graph = await require_owner_id(request), nuclear_v2(cast("dict[str, Any]", params))
    reason = await describe_exhausted_budget(get_client(request), owner)
    if reason is not None:
        raise TooManyRequestsError(
            reason, fix="Wait until older costs are more than 30 days ago.", retry_after=BUDGET_RETRY_AFTER_S
        )
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
    """List the reports of the user, newest first. With query parameters, list jobs of any type.

    With the parameter `type=nuclear_v2`, list reports also if the engine has already forgotten their jobs.
    """
    query = parse_query(request, JobListQuery)
    job_type = query.type if request.query_params else REPORT_TYPE
    return await (_list_stored_reports if job_type == REPORT_TYPE else _list_jobs)(request, query)


async def _list_stored_reports(request: Request, query: JobListQuery) -> Response:
    owner, schema = await require_owner_id(request), get_systems_schema(request)
    status = REPORT_STATUS_BY_JOB_STATUS[query.status] if query.status else None
    async with transaction_as_caller(request) as connection:
        reports = await stored_reports.list_reports(
            connection, schema, owner, status=status, before=query.before, limit=query.limit + 1
        )
    page = reports[: query.limit]
    last = page[-1].id if len(reports) > query.limit else None
    return json_response({"jobs": [build_stored_report_response(report) for report in page], "next": last})


async def _list_jobs(request: Request, query: JobListQuery) -> Response:
    owner = await require_owner_id(request)
    fields = {"owner": owner, "status": query.status, "type": query.type, "queue": query.queue}
    filters = {name: value for name, value in fields.items() if value is not None}
    async with transaction_as_caller(request) as connection:
        page = msgspec.json.decode(
            await connection.fetchval(
                "select holdfast.list_jobs_page($1, $2, $3)",
                *(msgspec.json.encode(filters).decode(), query.before, query.limit),
            )
        )
        ids = [UUID(row["id"]) for row in page["rows"] if row["type"] == REPORT_TYPE]
        reports = await stored_reports.list_reports_by_id(connection, get_systems_schema(request), owner, ids)
    caller = await identify_caller(request)
    jobs = [
        build_stored_report_response(reports[UUID(row["id"])])
        if UUID(row["id"]) in reports
        else redact_job(row, caller)
        for row in page["rows"]
    ]
    return json_response({"jobs": jobs, "next": page["next"]})


async def get_report(request: Request) -> Response:
    report = await _find_report(request)
    if report is None:
        return await call_built_in_endpoint(request)
    files = await get_client(request).files.list(job=report.id)
    body = {
        **build_stored_report_response(report),
        "artifacts": [await _build_artifact_response(request, file) for file in files],
    }
    return json_response(body, headers={"Cache-Control": "private, no-store"})


async def cancel_report(request: Request) -> Response:
    report = await _find_report(request)
    if report is None:
        return await call_built_in_endpoint(request)
    if report.status in FINAL_MESSAGES:
        return json_response({"id": str(report.id), "status": report.status, "cancelled": False})
    async with transaction_as_caller(request) as connection:
        result = msgspec.json.decode(await connection.fetchval("select holdfast.cancel_job($1)", report.id))
    status = REPORT_STATUS_BY_JOB_STATUS[result["status"]]
    return json_response({"id": str(report.id), "status": status, "cancelled": result["cancelled"]})


async def retry_report(request: Request) -> Response:
    """Run the failed chapters again, and bind the book when they are there. The other chapters are kept."""
    report = await _find_report(request)
    if report is not None and not await _has_job(request, report.id):
        raise GoneError("The tasks of this report are not kept any more.", fix="Start a new report.")
    return await call_built_in_endpoint(request)


async def stream_report(request: Request) -> Response:
    """Stream the events of a report. A ticket can replace the token."""
    if "ticket" not in request.query_params:
        report = await _find_report(request)
        if report is None:
            raise NotFoundError(f"Report {request.path_params['id']} does not exist.")
        if report.status in FINAL_MESSAGES and not await _has_job(request, report.id):
            return _stream_stored_report(report)
    return await stream_events(request, _parse_job_id(request), build_frames=ReportFrameBuilder())


def _stream_stored_report(report: StoredReport) -> Response:
    """Return the end of a report as an event stream, when the engine has forgotten its job."""
    frame = EventFrame(report.status, build_stored_report_response(report))
    return Response(b"".join(encode_event_frames([frame], 0)), media_type="text/event-stream")


async def _has_job(request: Request, job_id: UUID) -> bool:
    async with transaction_as_caller(request) as connection:
        return await connection.fetchval("select holdfast.get_job($1)", job_id) is not None


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


async def _find_report(request: Request) -> StoredReport | None:
    """Return a report, or None if the job has another type.

    Raise NotFoundError if the job does not exist or belongs to another user.
    """
    owner, job_id = await require_owner_id(request), _parse_job_id(request)
    async with transaction_as_caller(request) as connection:
        report = await stored_reports.find_report(connection, get_systems_schema(request), job_id, owner)
        text = None if report else await connection.fetchval("select holdfast.get_job($1)", job_id)
    if report is None and (text is None or msgspec.json.decode(text).get("owner") != owner):
        raise NotFoundError(f"Job {job_id} does not exist.")
    return report


def _parse_job_id(request: Request) -> UUID:
    text = request.path_params["id"]
    try:
        return UUID(text)
    except ValueError:
        raise NotFoundError(f"Job {text!r} does not exist.") from None
