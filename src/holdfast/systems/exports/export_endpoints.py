"""Endpoints for exports: start, status, event stream, cancel, history, download, cleanup and documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast.errors import GoneError, NotFoundError
from holdfast.server import (
    EventFrame,
    api_operation,
    get_client,
    identify_caller,
    json_response,
    read_json_body,
    require_service,
    stream_events,
    transaction_as_caller,
)
from holdfast.systems.exports import queries
from holdfast.systems.exports.export_requests import StartExportRequest, parse_export_request
from holdfast.systems.exports.http_responses import (
    EXPORT_STATUS_BY_JOB_STATUS,
    START_EXPORT_RESPONSES,
    ExportFrameBuilder,
    build_final_frames,
    list_template_names,
    parse_path_id,
    respond_with_field_errors,
)
from holdfast.systems.exports.result_links import (
    NO_STORE_HEADERS,
    RESULT_LINK_LIFETIME,
    create_result_links,
    find_result_link,
)
from holdfast.systems.exports.resumes import choose_document_title, load_sample_documents, parse_resume
from holdfast.systems.exports.submission import ExportLimits, load_documents, submit_exports
from holdfast.systems.exports.templates import DEFAULT_TEMPLATE
from holdfast.systems.field_errors import BadRequestError, FieldError, find_unknown_fields
from holdfast.systems.request_context import (
    get_systems_schema,
    is_admin,
    require_owner_id,
)

EXPORT_API_PATH = "/api/v1/export"
EXPIRED_MESSAGE = "The export has expired and was deleted."
MAX_DOCUMENT_TITLE_CHARS = 500
EVENT_STREAM_MEDIA_TYPE = "text/event-stream"


class ExportJobId(msgspec.Struct, rename="camel"):
    """Response to a started export: the id of its job."""

    job_id: str


class ExportStatus(msgspec.Struct, rename="camel"):
    """Status of an export, with its progress in percent and a signed link to its file for one hour."""

    id: str
    status: str
    progress: int
    result_url: str | None
    error: str | None


class ExportEndpoints:
    """HTTP endpoints of the export system, with limits for each user."""

    def __init__(self, limits: ExportLimits) -> None:
        self._limits = limits

    def create_routes(self) -> list[BaseRoute]:
        endpoints: list[tuple[str, str, Any, str, dict[str, Any]]] = [
            (
                *("POST", "/pdf", self.start_export, "Export a document as PDF"),
                {
                    "body": StartExportRequest,
                    "response": ExportJobId,
                    "status": 202,
                    "other_responses": START_EXPORT_RESPONSES,
                },
            ),
            (
                "GET",
                "/job/{id}",
                self.get_export_status,
                "Get the status of an export",
                {"response": ExportStatus},
            ),
            ("DELETE", "/job/{id}", self.cancel_export, "Cancel a waiting or running export", {}),
            (
                *("GET", "/job/{id}/stream", self.stream_export, "Stream the events of an export"),
                {"access": "anyone", "media_type": EVENT_STREAM_MEDIA_TYPE},
            ),
            ("GET", "/history", self.list_history, "List the exports that are still kept", {}),
            ("DELETE", "/history/{id}", self.delete_history_entry, "Delete an exported file", {}),
            (
                "GET",
                "/download/{id}",
                self.redirect_to_download,
                "Download an exported file",
                {"status": 302},
            ),
            (
                "POST",
                "/cleanup",
                self.delete_expired_exports,
                "Delete expired exports (services and admins)",
                {},
            ),
            ("GET", "/documents", self.list_documents, "List your documents", {}),
            (
                *("POST", "/documents", self.add_document, "Add a document"),
                {"status": 201, "other_responses": {400: "A field is not valid"}},
            ),
            ("POST", "/samples", self.add_sample_documents, "Add the sample documents", {"status": 201}),
        ]
        return [
            Route(EXPORT_API_PATH + path, _declare_endpoint(endpoint, summary, **options), methods=[method])
            for method, path, endpoint, summary, options in endpoints
        ]

    async def start_export(self, request: Request) -> Response:
        owner, schema = await require_owner_id(request), get_systems_schema(request)
        body, templates = await read_json_body(request), list_template_names(request)
        export_request = parse_export_request(body, templates, DEFAULT_TEMPLATE, kind="one")
        async with transaction_as_caller(request) as connection:
            documents = await load_documents(connection, schema, owner, export_request.document_ids)
        async with transaction_as_caller(request, as_service=True) as connection:
            exports = await submit_exports(connection, schema, owner, documents, export_request, self._limits)
        job_id = exports[0].job_id
        return json_response({"jobId": job_id}, 202, {"Location": f"{EXPORT_API_PATH}/job/{job_id}"})

    async def get_export_status(self, request: Request) -> Response:
        export = await _load_export(request)
        return json_response(
            {
                "id": export["id"],
                "status": export["status"],
                "progress": export["progress"],
                "resultUrl": await find_result_link(request, await require_owner_id(request), export),
                "error": export["error_message"] if export["status"] != "completed" else None,
            },
            headers=NO_STORE_HEADERS,
        )

    async def cancel_export(self, request: Request) -> Response:
        export = await _load_export(request)
        async with transaction_as_caller(request, as_service=True) as connection:
            result = msgspec.json.decode(
                await connection.fetchval(
                    "select holdfast.cancel_job($1, 'Cancelled by the user.')", export["id"]
                )
            )
        if result["cancelled"]:
            return json_response({"message": "Job cancelled", "status": "cancelled"})
        status = (await _load_export(request))["status"]
        return json_response({"message": "The job had already finished", "status": status})

    async def stream_export(self, request: Request) -> Response:
        job_id = parse_path_id(request, "export")

        async def build_end_frames(job: dict[str, Any], _: list[Any]) -> Sequence[EventFrame]:
            export = {"id": job_id, "status": EXPORT_STATUS_BY_JOB_STATUS[job["status"]]}
            link = await find_result_link(request, job["owner"], export) if job["owner"] else None
            return build_final_frames(job, link)

        return await stream_events(
            request, job_id, build_frames=ExportFrameBuilder(), build_end_frames=build_end_frames
        )

    async def list_history(self, request: Request) -> Response:
        owner, schema = await require_owner_id(request), get_systems_schema(request)
        async with transaction_as_caller(request, as_service=True) as connection:
            entries = await queries.list_history(connection, schema, owner)
            usage = await queries.lock_export_usage(connection, schema, owner)
        limits = self._limits
        return json_response(
            {
                "history": entries,
                "storage": {"used": usage.bytes, "limit": limits.storage_bytes},
                "today": {"used": usage.operations, "limit": limits.exports_per_day},
            }
        )

    async def delete_history_entry(self, request: Request) -> Response:
        owner, schema = await require_owner_id(request), get_systems_schema(request)
        history_id = parse_path_id(request, "export")
        async with transaction_as_caller(request) as connection:
            if not await queries.delete_history_entry(connection, schema, history_id, owner):
                raise NotFoundError(f"Export {history_id} does not exist.")
        return Response(status_code=204)

    async def redirect_to_download(self, request: Request) -> Response:
        """Count the download and redirect to a signed link that is valid for one hour.

        With `?as=json`, return the link as JSON instead.
        """
        owner, schema = await require_owner_id(request), get_systems_schema(request)
        history_id = parse_path_id(request, "export")
        async with transaction_as_caller(request, as_service=True) as connection:
            entry = await queries.find_history_entry(connection, schema, history_id, owner)
            if entry is None:
                export = await queries.find_export(connection, schema, history_id, owner)
                raise _build_missing_file_error(history_id, export)
            url = (await create_result_links(request, owner, {history_id: entry})).get(history_id)
            if url is None:
                raise GoneError(EXPIRED_MESSAGE, fix="Export the document again.")
            await queries.increment_download_count(connection, schema, history_id)
        if request.query_params.get("as") == "json":
            expires_in = int(RESULT_LINK_LIFETIME.total_seconds())
            return json_response({"url": url, "fileName": entry.file_name, "expiresIn": expires_in})
        return RedirectResponse(url, 302)

    async def delete_expired_exports(self, request: Request) -> Response:
        if not is_admin(await identify_caller(request)):
            await require_service(request, "jobs")
        deleted = await queries.delete_expired_exports(get_client(request), get_systems_schema(request))
        return json_response({"deleted": deleted})

    async def list_documents(self, request: Request) -> Response:
        owner = await require_owner_id(request)
        async with transaction_as_caller(request) as connection:
            documents = await queries.list_documents(connection, get_systems_schema(request), owner)
        return json_response({"documents": documents, "templates": list_template_names(request)})

    async def add_document(self, request: Request) -> Response:
        owner, value = await require_owner_id(request), await read_json_body(request)
        body = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        unknown = find_unknown_fields(body, ("title", "data"))
        if unknown:
            raise BadRequestError(unknown)
        data: Any = body.get("data")
        resume, title = parse_resume(data), body.get("title")
        if title is not None and (
            not isinstance(title, str) or not 0 < len(title.strip()) <= MAX_DOCUMENT_TITLE_CHARS
        ):
            raise BadRequestError(
                [FieldError("title", f"must have 1 to {MAX_DOCUMENT_TITLE_CHARS} characters")]
            )
        title = choose_document_title(title, data)
        async with transaction_as_caller(request) as connection:
            document_id = await queries.add_document(
                connection, get_systems_schema(request), owner, title, resume
            )
        return json_response({"id": document_id, "title": title}, 201)

    async def add_sample_documents(self, request: Request) -> Response:
        owner, schema = await require_owner_id(request), get_systems_schema(request)
        async with transaction_as_caller(request) as connection:
            ids = [
                await queries.add_document(connection, schema, owner, sample.title, sample.data)
                for _, sample in load_sample_documents()
            ]
        return json_response({"ids": ids}, 201)


def _declare_endpoint(endpoint: Any, summary: str, **options: Any) -> Any:
    return api_operation(summary, tag="exports", scope="jobs", **options)(respond_with_field_errors(endpoint))


async def _load_export(request: Request) -> dict[str, Any]:
    owner, job_id = await require_owner_id(request), parse_path_id(request, "export")
    async with transaction_as_caller(request, as_service=True) as connection:
        export = await queries.find_export(connection, get_systems_schema(request), job_id, owner)
    if export is None:
        raise NotFoundError(f"Export {job_id} does not exist.")
    return export


def _build_missing_file_error(export_id: UUID, export: dict[str, Any] | None) -> Exception:
    """Build the error for an export without a file: 410 if the file has expired, else 404."""
    if export is not None and export["status"] == "completed":
        return GoneError(EXPIRED_MESSAGE, fix="Export the document again.")
    return NotFoundError(f"Export {export_id} does not exist.")
