"""Endpoints for export batches: up to ten documents with one event stream and one ZIP file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.errors import GoneError, NotFoundError
from holdfast.server import (
    EventFrame,
    EventStreamResponse,
    EventSubscription,
    StreamViewer,
    ZipEntry,
    api_operation,
    encode_event_frames,
    get_store,
    json_response,
    make_zip_entry,
    parse_last_event_id,
    read_json_body,
    require_stream_viewer,
    reserve_stream_slot,
    subscribe_to_job_events,
    transaction_as_caller,
    zip_response,
)
from holdfast.systems.exports import queries
from holdfast.systems.exports.export_requests import StartExportBatchRequest, parse_export_request
from holdfast.systems.exports.http_responses import (
    FINAL_EXPORT_STATUSES,
    START_EXPORT_RESPONSES,
    list_template_names,
    parse_path_id,
    respond_with_field_errors,
)
from holdfast.systems.exports.result_links import NO_STORE_HEADERS, find_result_links
from holdfast.systems.exports.submission import ExportLimits, load_documents, submit_exports
from holdfast.systems.exports.templates import DEFAULT_TEMPLATE
from holdfast.systems.request_context import (
    find_owned_file,
    get_systems_schema,
    require_owner_id,
    sanitize_file_name,
)

BATCH_API_PATH = "/api/v1/export/batch"
STREAM_PING_INTERVAL_S = 15.0
CLIENT_RECONNECT_FRAME = b"retry: 2000\n\n"  # milliseconds


class BatchEndpoints:
    """HTTP endpoints for batches of exports, with limits for each user."""

    def __init__(self, limits: ExportLimits) -> None:
        self._limits = limits

    def create_routes(self) -> list[BaseRoute]:
        def declare_endpoint(endpoint: Any, summary: str, **options: Any) -> Any:
            return api_operation(summary, tag="exports", scope="jobs", **options)(
                respond_with_field_errors(endpoint)
            )

        start = declare_endpoint(
            *(self.start_batch, "Export up to ten documents"),
            body=StartExportBatchRequest,
            status=202,
            other_responses=START_EXPORT_RESPONSES,
        )
        status = declare_endpoint(self.get_batch_status, "Get the status of a batch")
        stream = declare_endpoint(
            self.stream_batch, "Stream the events of a batch", media_type="text/event-stream"
        )
        download = declare_endpoint(
            self.download_batch_zip, "Download a batch as ZIP", media_type="application/zip"
        )
        return [
            Route(BATCH_API_PATH, start, methods=["POST"]),
            Route(f"{BATCH_API_PATH}/{{id}}", status, methods=["GET"]),
            Route(f"{BATCH_API_PATH}/{{id}}/stream", stream, methods=["GET"]),
            Route(f"{BATCH_API_PATH}/{{id}}/download", download, methods=["GET"]),
        ]

    async def start_batch(self, request: Request) -> Response:
        owner, schema = await require_owner_id(request), get_systems_schema(request)
        body, templates = await read_json_body(request), list_template_names(request)
        export_request = parse_export_request(body, templates, DEFAULT_TEMPLATE, kind="batch")
        async with transaction_as_caller(request) as connection:
            documents = await load_documents(connection, schema, owner, export_request.document_ids)
        async with transaction_as_caller(request, as_service=True) as connection:
            exports = await submit_exports(connection, schema, owner, documents, export_request, self._limits)
            items = [(export.job_id, export.document.id, export.document.title) for export in exports]
            batch_id = await queries.create_export_batch(connection, schema, owner, items)
        jobs = [{"jobId": job_id, "documentId": document_id} for job_id, document_id, _ in items]
        return json_response(
            {"batchId": batch_id, "jobs": jobs}, 202, {"Location": f"{BATCH_API_PATH}/{batch_id}"}
        )

    async def get_batch_status(self, request: Request) -> Response:
        items = await _load_batch_items(request)
        return json_response(
            build_batch_response(parse_path_id(request, "batch"), items), headers=NO_STORE_HEADERS
        )

    async def stream_batch(self, request: Request) -> Response:
        """Stream the state of a batch: `progress` at once and after each change, then `completed`,
        `failed` or `cancelled`.

        Each frame has the complete state and a number. A client that reconnects with the last number receives
        only newer states.
        """
        batch_id, items = parse_path_id(request, "batch"), await _load_batch_items(request)
        after = parse_last_event_id(request)
        if after is not None and after >= _count_batch_events(items) and _is_batch_finished(items):
            return Response(status_code=204)
        viewer = await require_stream_viewer(request, batch_id)
        release_slot = reserve_stream_slot(request, viewer)
        subscriptions = {
            item["job_id"]: subscribe_to_job_events(request, item["job_id"], after=item["event_seq"])
            for item in items
        }

        def close_stream() -> None:
            for subscription in subscriptions.values():
                subscription.close()
            release_slot()

        return EventStreamResponse(
            _generate_batch_frames(request, viewer, subscriptions, after), {}, close_stream
        )

    async def download_batch_zip(self, request: Request) -> Response:
        """Stream the exported files of a batch as a ZIP archive.

        For an unfinished batch, return 206 with the list of completed jobs. With `?partial=true`, return a
        ZIP archive of their files instead.
        """
        batch_id, items = parse_path_id(request, "batch"), await _load_batch_items(request)
        completed = [item for item in items if item["status"] == "completed" and item["artifact_id"]]
        if len(completed) < len(items) and request.query_params.get("partial") != "true":
            body = {
                "completedCount": len(completed),
                "totalCount": len(items),
                "completedJobs": [item["job_id"] for item in completed],
            }
            return json_response(body, 206)
        owner, store = await require_owner_id(request), get_store(request)
        entries: list[ZipEntry] = []
        for item in completed:
            file = await find_owned_file(request, item["artifact_id"], owner)
            if file is not None:
                entries.append(make_zip_entry(store, file, sanitize_file_name(f"{item['title']}.pdf")))
        if not entries:
            raise GoneError("The files of this batch have expired.", fix="Export the documents again.")
        return zip_response(entries, f"resumes-{batch_id}.zip")


async def _generate_batch_frames(
    request: Request, viewer: StreamViewer, subscriptions: dict[UUID, EventSubscription], after: int | None
) -> AsyncGenerator[bytes]:
    yield CLIENT_RECONNECT_FRAME
    batch_id, last_sent = parse_path_id(request, "batch"), -1 if after is None else after
    while await viewer.has_access():
        items = await _load_batch_items(request)
        batch, number, finished = (
            build_batch_response(batch_id, items),
            _count_batch_events(items),
            _is_batch_finished(items),
        )
        frames = [EventFrame("progress", batch)] if finished or number > last_sent else []
        if finished:
            has_files = batch["completedCount"] > 0
            result_url = f"{BATCH_API_PATH}/{batch_id}/download" if has_files else None
            frames.append(EventFrame(batch["status"], {**batch, "resultUrl": result_url}))
        for frame in encode_event_frames(frames, number):
            yield frame
        if finished:
            return
        last_sent = max(last_sent, number)
        unfinished = [item["job_id"] for item in items if item["status"] not in FINAL_EXPORT_STATUSES]
        if not await _wait_for_export_change([subscriptions[job_id] for job_id in unfinished]):
            yield b": ping\n\n"


def _count_batch_events(items: list[dict[str, Any]]) -> int:
    """Count the events of all exports in a batch. The number never decreases."""
    return sum(item["event_seq"] + (item["status"] in FINAL_EXPORT_STATUSES) for item in items)


def _is_batch_finished(items: list[dict[str, Any]]) -> bool:
    return all(item["status"] in FINAL_EXPORT_STATUSES for item in items)


async def _wait_for_export_change(subscriptions: list[EventSubscription]) -> bool:
    """Wait until an export changes and return True.

    Return False if none changes within `STREAM_PING_INTERVAL_S`.
    """
    waits = [
        asyncio.ensure_future(subscription.wait_for_event(STREAM_PING_INTERVAL_S))
        for subscription in subscriptions
    ]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return any(wait.result() for wait in done)
    finally:
        for wait in waits:
            wait.cancel()
        for subscription in subscriptions:
            subscription.take_events()


async def _load_batch_items(request: Request) -> list[dict[str, Any]]:
    owner, batch_id = await require_owner_id(request), parse_path_id(request, "batch")
    async with transaction_as_caller(request, as_service=True) as connection:
        items = await queries.list_batch_exports(connection, get_systems_schema(request), batch_id, owner)
    if not items:
        raise NotFoundError(f"Batch {batch_id} does not exist.")
    completed = [item["job_id"] for item in items if item["status"] == "completed"]
    links = await find_result_links(request, owner, completed) if completed else {}
    return [{**item, "result_url": links.get(item["job_id"])} for item in items]


def build_batch_response(batch_id: UUID, items: list[dict[str, Any]]) -> dict[str, Any]:
    """Build the response with the state of a batch and of its exports.

    The progress of the batch is the percentage of completed exports.
    """
    completed = sum(item["status"] == "completed" for item in items)
    status = "processing"
    if _is_batch_finished(items):
        cancelled = sum(item["status"] == "cancelled" for item in items)
        status = "completed" if completed == len(items) else "failed"
        if completed + cancelled == len(items) and cancelled:
            status = "cancelled"
    return {
        "batchId": str(batch_id),
        "status": status,
        "progress": round(100 * completed / len(items)),
        "completedCount": completed,
        "totalCount": len(items),
        "jobs": [
            {
                "jobId": str(item["job_id"]),
                "documentId": str(item["document_id"]),
                "title": item["title"],
                "status": item["status"],
                "progress": item["progress"],
                "resultUrl": item["result_url"],
                "error": item["error_message"] if item["status"] in ("failed", "cancelled") else None,
            }
            for item in items
        ],
    }
