"""Queues of messages over HTTP, for services. Users reach messages through /rest/v1/rpc, by their own
rights.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.definitions.consumers import check_queue_name
from holdfast.definitions.payloads import to_json
from holdfast.engine.messages import queues
from holdfast.errors import InvalidError, NotFoundError
from holdfast.model import Json, Message, MessageMetrics, MessageQueue
from holdfast.server.api.audit import operating
from holdfast.server.api.identity import transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_query

Seconds = Annotated[float, Meta(ge=0, le=31536000)]
Id = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Receipt = Annotated[str, Meta(max_length=200)]
MESSAGE_BYTES = 1024 * 1024
_SAID: dict[str, Any] = {"tag": "messages", "access": "service", "scope": "queues"}
_MISSING = {404: "There is no such queue"}


class NewQueue(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    unlogged: bool = False


class Sending(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    messages: Annotated[list[Any], Meta(min_length=1, max_length=1000)]
    headers: dict[str, Any] | None = None
    delay_s: Seconds | None = None


class Sent(msgspec.Struct, kw_only=True):
    ids: list[int]


class Reading(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`vt_s`: how long the messages are hidden from others; without it as the queue's policy says."""

    qty: Annotated[int, Meta(ge=1, le=100)] = 1
    vt_s: Seconds | None = None
    where: dict[str, Any] | None = None


class MessageView(msgspec.Struct, kw_only=True):
    """Show the receipt to archive or delete it: a stale one is refused. Looking tells why it failed last."""

    id: int
    body: Json
    headers: Json
    reads: int
    sent_at: datetime
    read_at: datetime | None
    visible_at: datetime
    receipt: str | None
    error: str | None
    failed_at: datetime | None


class Targets(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    receipts: Annotated[list[Receipt], Meta(max_length=1000)] = []
    ids: Annotated[list[Id], Meta(max_length=1000)] = []


class Hiding(Targets, kw_only=True, forbid_unknown_fields=True):
    vt_s: Seconds


class PeekQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


def queue_in(request: Request) -> str:
    name: str = request.path_params["queue"]
    check_queue_name(name)
    return name


@api_operation("Queues of messages", response=list[MessageQueue], **_SAID)
async def list_queues(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await queues.list_queues(connection))


@api_operation("Make a queue of messages, if it is not there", body=NewQueue, status=204, **_SAID)
async def create(request: Request) -> Response:
    name, wanted = queue_in(request), await parse_body(request, NewQueue)
    async with operating(request, "messages.create", name, as_login=True) as connection:
        await queues.create(connection, name, unlogged=wanted.unlogged)
    return Response(status_code=204)


@api_operation("Remove a queue with all its messages", status=204, other_responses=_MISSING, **_SAID)
async def drop(request: Request) -> Response:
    name = queue_in(request)
    async with operating(request, "messages.drop", name, as_login=True) as connection:
        if not await queues.drop(connection, name):
            raise NotFoundError("There is no such queue.")
    return Response(status_code=204)


@api_operation(
    "The figures of a queue of messages", response=MessageMetrics, other_responses=_MISSING, **_SAID
)
async def metrics(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        [figures] = await queues.metrics(connection, queue_in(request))
    return json_response(figures)


@api_operation(
    "Send messages, all of them or none",
    body=Sending,
    response=Sent,
    status=201,
    other_responses=_MISSING,
    **_SAID,
)
async def send(request: Request) -> Response:
    name, wanted = queue_in(request), await parse_body(request, Sending)
    bodies = [to_json(each, what="messages", limit=MESSAGE_BYTES) for each in wanted.messages]
    headers = None
    if wanted.headers is not None:
        headers = [to_json(wanted.headers, what="headers")] * len(bodies)
    delay = None if wanted.delay_s is None else timedelta(seconds=wanted.delay_s)
    async with transaction_as_caller(request) as connection:
        asked = queues.send_batch(name, bodies, headers=headers, delay=delay)
        return json_response(Sent(ids=await queues.ask(connection, asked)), 201)


@api_operation(
    "Read messages and hide them for a while",
    body=Reading,
    response=list[MessageView],
    other_responses=_MISSING,
    **_SAID,
)
async def read(request: Request) -> Response:
    name, wanted = queue_in(request), await parse_body(request, Reading)
    where = None if wanted.where is None else to_json(wanted.where, what="where")
    vt = None if wanted.vt_s is None else timedelta(seconds=wanted.vt_s)
    async with transaction_as_caller(request) as connection:
        return json_response(_views(await queues.read(connection, name, vt=vt, qty=wanted.qty, where=where)))


@api_operation(
    "Look at messages without reading them",
    query=PeekQuery,
    response=list[MessageView],
    other_responses=_MISSING,
    **_SAID,
)
async def peek(request: Request) -> Response:
    name, query = queue_in(request), parse_query(request, PeekQuery)
    async with transaction_as_caller(request) as connection:
        return json_response(_views(await queues.peek(connection, name, query.limit, "queue", None)))


def _views(messages: list[Message[Json]]) -> list[MessageView]:
    names = MessageView.__struct_fields__
    return [MessageView(**{name: getattr(message, name) for name in names}) for message in messages]


@api_operation(
    "Archive messages; the ids of those that were there",
    body=Targets,
    response=Sent,
    other_responses=_MISSING,
    **_SAID,
)
async def archive(request: Request) -> Response:
    name, wanted = queue_in(request), _some(await parse_body(request, Targets))
    async with transaction_as_caller(request) as connection:
        asked = queues.archive(name, wanted.receipts, wanted.ids)
        return json_response(Sent(ids=await queues.ask(connection, asked)))


@api_operation(
    "Delete messages; the ids of those that were there",
    body=Targets,
    response=Sent,
    other_responses=_MISSING,
    **_SAID,
)
async def delete(request: Request) -> Response:
    name, wanted = queue_in(request), _some(await parse_body(request, Targets))
    async with transaction_as_caller(request) as connection:
        asked = queues.delete(name, wanted.receipts, wanted.ids)
        return json_response(Sent(ids=await queues.ask(connection, asked)))


@api_operation(
    "Hide messages for so long from now; zero gives them back",
    body=Hiding,
    response=Sent,
    other_responses=_MISSING,
    **_SAID,
)
async def hide(request: Request) -> Response:
    name, wanted = queue_in(request), await parse_body(request, Hiding)
    _some(wanted)
    async with transaction_as_caller(request) as connection:
        asked = queues.set_vt(name, wanted.receipts, wanted.ids, timedelta(seconds=wanted.vt_s))
        return json_response(Sent(ids=await queues.ask(connection, asked)))


def _some(targets: Targets) -> Targets:
    if not targets.receipts and not targets.ids:
        raise InvalidError("Give receipts or ids.", field="receipts")
    return targets


def routes() -> list[BaseRoute]:
    verbs = {"read": read, "archive": archive, "delete": delete, "hide": hide}
    return [
        Route("/api/messages", list_queues, methods=["GET"]),
        Route("/api/messages/{queue}", create, methods=["PUT"]),
        Route("/api/messages/{queue}", drop, methods=["DELETE"]),
        Route("/api/messages/{queue}", send, methods=["POST"]),
        Route("/api/messages/{queue}", peek, methods=["GET"]),
        Route("/api/messages/{queue}/metrics", metrics, methods=["GET"]),
        *(Route(f"/api/messages/{{queue}}/{verb}", end, methods=["POST"]) for verb, end in verbs.items()),
    ]
