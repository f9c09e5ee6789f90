"""Endpoints for batches of jobs: open, read, close, cancel and stream events."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import audit, jobs, search
from holdfast.engine.connection import Connection
from holdfast.errors import InvalidError
from holdfast.server.api.event_frames import build_batch_frames
from holdfast.server.api.event_streams import stream_events
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.job_views import redact_error
from holdfast.server.api.jobs import EventStreamQuery, StreamTicketView, create_stream_ticket_response
from holdfast.server.api.json_responses import ensure_exists, json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_uuid, parse_query
from holdfast.server.api.shard_requests import use_submit_shard
from holdfast.server.api.stream_sources import read_batch_without_files

NonEmptyName = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
MAX_CALLBACK_NAME_CHARS = 200
MAX_FAILED_JOBS_IN_MANIFEST = 1000
ALLOWED_CALLBACK_FIELDS = {"type", "queue", "args"}
_BATCH_NOT_FOUND_RESPONSE = {404: "The batch does not exist"}


class OpenBatchRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to open a batch of jobs.

    `callback` is a job that is submitted once, after the last job of the batch has ended. Only services may
    set `callback` and `owner`.
    """

    name: NonEmptyName | None = None
    callback: dict[str, Any] | None = None
    owner: NonEmptyName | None = None


class BatchView(msgspec.Struct, kw_only=True):
    """A batch of jobs with its status and job counts.

    `total`, `ended`, `failed` and `cancelled` are numbers of jobs. `event_seq` is the number of the last
    event. `callback_job` is the id of the job that was submitted when the batch ended.
    """

    id: UUID
    name: str | None = None
    owner: str | None = None
    total: int = 0
    ended: int = 0
    failed: int = 0
    cancelled: int = 0
    status: Literal["open", "running", "succeeded", "failed", "cancelled"] = "open"
    event_seq: int = 0
    closed_at: datetime | None = None
    finished_at: datetime | None = None
    callback_job: UUID | None = None


class BatchCancellation(msgspec.Struct, kw_only=True):
    """Result of cancelling a batch: the number of jobs that were cancelled."""

    cancelled: int


@api_operation(
    "Open a batch", tag="batches", scope="jobs", body=OpenBatchRequest, response=BatchView, status=201
)
async def open_batch(request: Request) -> Response:
    body = await parse_body(request, OpenBatchRequest)
    caller = await identify_caller(request)
    if caller.kind == "user" and (body.callback is not None or body.owner not in (None, caller.id)):
        raise HTTPException(403, "Only services may set callback and owner")
    if body.callback is not None:
        _validate_batch_callback(body.callback)
    await use_submit_shard(request, {"owner": body.owner}, caller.owner)
    async with transaction_as_caller(request) as connection:
        batch_id = await jobs.open_batch(connection, body.name, callback=body.callback, owner=body.owner)
        return json_response(_build_batch_view(await jobs.get_batch(connection, batch_id)), 201)


def _validate_batch_callback(callback: dict[str, Any]) -> None:
    """Reject an invalid callback when the batch is opened, not when the callback is submitted."""
    if not isinstance(callback.get("type"), str) or not 0 < len(callback["type"]) <= MAX_CALLBACK_NAME_CHARS:
        raise InvalidError("The callback has no valid type.", fix="Name a task type.", field="callback")
    unknown = callback.keys() - ALLOWED_CALLBACK_FIELDS
    if unknown:
        raise InvalidError(
            f"The callback has unknown fields: {', '.join(sorted(unknown))}.",
            fix=f"Use {', '.join(sorted(ALLOWED_CALLBACK_FIELDS))} only.",
            field="callback",
        )
    queue = callback.get("queue", "default")
    if not isinstance(queue, str) or not 0 < len(queue) <= MAX_CALLBACK_NAME_CHARS:
        raise InvalidError("The queue of the callback must be a name.", field="callback")


@api_operation(
    "Read a batch", tag="batches", scope="jobs", response=BatchView, other_responses=_BATCH_NOT_FOUND_RESPONSE
)
async def get_batch(request: Request) -> Response:
    batch_id = parse_path_uuid(request)
    async with transaction_as_caller(request) as connection:
        batch = ensure_exists(await jobs.get_batch(connection, batch_id), f"Batch {batch_id}")
    return json_response(_build_batch_view(batch))


@api_operation(
    "Close a batch, so that no more jobs can be added",
    tag="batches",
    scope="jobs",
    response=BatchView,
    other_responses=_BATCH_NOT_FOUND_RESPONSE,
)
async def close_batch(request: Request) -> Response:
    batch_id = parse_path_uuid(request)
    async with transaction_as_caller(request) as connection:
        ensure_exists(await jobs.get_batch(connection, batch_id), f"Batch {batch_id}")
        return json_response(_build_batch_view(await jobs.close_batch(connection, batch_id)))


@api_operation(
    "Cancel the jobs of a batch that have not ended",
    tag="batches",
    scope="jobs",
    response=BatchCancellation,
    other_responses=_BATCH_NOT_FOUND_RESPONSE,
)
async def cancel_batch(request: Request) -> Response:
    batch_id = parse_path_uuid(request)
    caller = await identify_caller(request)
    total, cancelled = 0, 1
    while cancelled:  # one transaction per step, so that jobs that end meanwhile wait for one step only
        async with transaction_as_caller(request) as connection:
            ensure_exists(await jobs.get_batch(connection, batch_id), f"Batch {batch_id}")
            filters = {"batch": str(batch_id)}
            cancelled = await jobs.cancel_jobs(connection, filters, "Cancelled with its batch.")
            total += cancelled
            if not cancelled and caller.kind == "service":
                await audit.record_audit_entry(
                    connection, caller.name, "batch.cancel", str(batch_id), {"cancelled": total}
                )
    return json_response(BatchCancellation(cancelled=total))


@api_operation(
    "Watch a batch as server-sent events",
    tag="batches",
    access="anyone",  # a ticket can replace the token
    scope="jobs",
    query=EventStreamQuery,
    media_type="text/event-stream",
    other_responses={204: "The batch has ended and you have all of its events", **_BATCH_NOT_FOUND_RESPONSE},
    request_headers=("Last-Event-ID",),
)
async def stream_batch_events(request: Request) -> Response:
    parse_query(request, EventStreamQuery)
    return await stream_events(
        request,
        parse_path_uuid(request),
        build_frames=build_batch_frames,
        read=read_batch_without_files,
        noun="batch",
    )


@api_operation(
    "Create a ticket to watch a batch from a client that cannot send headers",
    tag="batches",
    scope="jobs",
    response=StreamTicketView,
    status=201,
    other_responses=_BATCH_NOT_FOUND_RESPONSE,
)
async def create_batch_stream_ticket(request: Request) -> Response:
    batch_id = parse_path_uuid(request)
    async with transaction_as_caller(request) as connection:
        ensure_exists(await jobs.get_batch(connection, batch_id), f"Batch {batch_id}")
    return await create_stream_ticket_response(request, batch_id, f"/api/batches/{batch_id}/events")


async def build_batch_manifest(
    connection: Connection, batch_id: UUID, owner: str | None = None
) -> dict[str, Any]:
    """Build the manifest fields of a batch's ZIP archive: job counts, and the jobs that did not succeed.

    With `owner`, the manifest lists the jobs of this owner only. The connection has the rights of a service.
    """
    batch = await jobs.get_batch(connection, batch_id) or {}
    query = f"batch:{batch_id} state:failed,partial,cancelled"
    page = await search.search_jobs(connection, query, limit=MAX_FAILED_JOBS_IN_MANIFEST)
    failed_jobs = [
        {"id": row["id"], "type": row["type"], "status": row["status"], "error": redact_error(row["error"])}
        for row in page.rows
        if owner is None or row["owner"] == owner
    ]
    counts = {name: batch.get(name) for name in ("total", "ended", "failed")}
    return {"ended": batch.get("finished_at") is not None, "batch": counts, "failed_jobs": failed_jobs}


def _build_batch_view(batch: Any) -> BatchView:
    return msgspec.convert(batch, BatchView)


def build_batch_routes() -> list[BaseRoute]:
    return [
        Route("/api/batches", open_batch, methods=["POST"]),
        Route("/api/batches/{id}", get_batch, methods=["GET"]),
        Route("/api/batches/{id}", cancel_batch, methods=["DELETE"]),
        Route("/api/batches/{id}/close", close_batch, methods=["POST"]),
        Route("/api/batches/{id}/events", stream_batch_events, methods=["GET"]),
        Route("/api/batches/{id}/ticket", create_batch_stream_ticket, methods=["POST"]),
    ]
