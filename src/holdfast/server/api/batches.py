"""Batches over HTTP: open one, start jobs with its id, close it, see how far it is."""

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

from holdfast.engine import access, jobs, search
from holdfast.engine.connection import Connection
from holdfast.errors import InvalidError
from holdfast.server.api import tickets
from holdfast.server.api.bodies import answer, body_of, found, query_of, uuid_in
from holdfast.server.api.events import stream
from holdfast.server.api.frames import encode_batch
from holdfast.server.api.identity import acting, identify
from holdfast.server.api.jobs import EventsQuery, TicketView
from holdfast.server.api.operations import operation
from holdfast.server.api.views import public_error
from holdfast.server.api.watched import read_batch

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
_MISSING = {404: "There is no such batch"}


class NewBatch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`callback` is a job that is submitted once, after the last member; it and `owner` are for services."""

    name: Name | None = None
    callback: dict[str, Any] | None = None
    owner: Name | None = None


class BatchView(msgspec.Struct, kw_only=True):
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


class CancelledMembers(msgspec.Struct, kw_only=True):
    cancelled: int


@operation("Open a batch", tag="batches", scope="jobs", body=NewBatch, answer=BatchView, status=201)
async def open_batch(request: Request) -> Response:
    wanted = await body_of(request, NewBatch)
    caller = await identify(request)
    if caller.kind == "user" and (wanted.callback is not None or wanted.owner not in (None, caller.id)):
        raise HTTPException(403, "callback and owner are for services")
    if wanted.callback is not None:
        _check_callback(wanted.callback)
    async with acting(request) as connection:
        batch_id = await jobs.open_batch(
            connection, wanted.name, callback=wanted.callback, owner=wanted.owner
        )
        return answer(_view(await jobs.get_batch(connection, batch_id)), 201)


def _check_callback(callback: dict[str, Any]) -> None:
    """It is submitted when nobody is there to be told what is wrong with it."""
    if not isinstance(callback.get("type"), str) or not 0 < len(callback["type"]) <= 200:
        raise InvalidError("A callback has a type.", field="callback")
    allowed = {"type", "queue", "args"}
    if callback.keys() - allowed:
        raise InvalidError(f"A callback has {', '.join(sorted(allowed))} only.", field="callback")
    queue = callback.get("queue", "default")
    if not isinstance(queue, str) or not 0 < len(queue) <= 200:
        raise InvalidError("The queue of a callback is a name.", field="callback")


@operation("Read a batch", tag="batches", scope="jobs", answer=BatchView, others=_MISSING)
async def get_batch(request: Request) -> Response:
    batch_id = uuid_in(request)
    async with acting(request) as connection:
        return answer(_view(found(await jobs.get_batch(connection, batch_id), "batch")))


@operation("Close a batch: no more members", tag="batches", scope="jobs", answer=BatchView, others=_MISSING)
async def close_batch(request: Request) -> Response:
    batch_id = uuid_in(request)
    async with acting(request) as connection:
        found(await jobs.get_batch(connection, batch_id), "batch")
        return answer(_view(await jobs.close_batch(connection, batch_id)))


@operation(
    "Cancel the members of a batch that have not ended",
    tag="batches",
    scope="jobs",
    answer=CancelledMembers,
    others=_MISSING,
)
async def cancel_batch(request: Request) -> Response:
    batch_id = uuid_in(request)
    caller = await identify(request)
    count, done = 0, 1
    while done:  # a transaction for each step: members that end meanwhile wait for one only
        async with acting(request) as connection:
            found(await jobs.get_batch(connection, batch_id), "batch")
            done = await jobs.cancel_jobs(connection, {"batch": str(batch_id)}, "Cancelled with its batch.")
            count += done
            if not done and caller.kind == "service":
                said = {"cancelled": count}
                await access.record(connection, caller.name, "batch.cancel", str(batch_id), said)
    return answer(CancelledMembers(cancelled=count))


@operation(
    "Watch a batch as server-sent events",
    tag="batches",
    access="anyone",  # a ticket takes the place of a token
    scope="jobs",
    query=EventsQuery,
    media="text/event-stream",
    others={204: "The batch has ended and you have all of it", **_MISSING},
    headers=("Last-Event-ID",),
)
async def events(request: Request) -> Response:
    query_of(request, EventsQuery)
    return await stream(request, uuid_in(request), encode=encode_batch, read=read_batch, noun="batch")


@operation(
    "A ticket to watch a batch once, for what cannot send headers",
    tag="batches",
    scope="jobs",
    answer=TicketView,
    status=201,
    others=_MISSING,
)
async def ticket(request: Request) -> Response:
    batch_id = uuid_in(request)
    async with acting(request) as connection:
        found(await jobs.get_batch(connection, batch_id), "batch")
    made = await tickets.issue(request, batch_id)
    return answer(TicketView(ticket=made, expires_s=int(tickets.TICKET_LIFE.total_seconds())), 201)


async def batch_told(connection: Connection, batch_id: UUID) -> dict[str, Any]:
    """A batch as the manifest of its archive tells of it: how far it is, and the jobs that left nothing."""
    batch = await jobs.get_batch(connection, batch_id) or {}
    wanted = f"batch:{batch_id} state:failed,partial,cancelled"
    page = await search.search_jobs(connection, wanted, limit=1000)
    failed = [
        {"id": row["id"], "type": row["type"], "status": row["status"], "error": public_error(row["error"])}
        for row in page.rows
    ]
    counts = {name: batch.get(name) for name in ("total", "ended", "failed")}
    return {"ended": batch.get("finished_at") is not None, "batch": counts, "failed_jobs": failed}


def _view(batch: Any) -> BatchView:
    return msgspec.convert(batch, BatchView)


def routes() -> list[BaseRoute]:
    return [
        Route("/api/batches", open_batch, methods=["POST"]),
        Route("/api/batches/{id}", get_batch, methods=["GET"]),
        Route("/api/batches/{id}", cancel_batch, methods=["DELETE"]),
        Route("/api/batches/{id}/close", close_batch, methods=["POST"]),
        Route("/api/batches/{id}/events", events, methods=["GET"]),
        Route("/api/batches/{id}/ticket", ticket, methods=["POST"]),
    ]
