"""Endpoints for message queues, for services. Users call the pgmq functions at /rest/v1/rpc instead."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.definitions.consumers import check_queue_name
from holdfast.definitions.payloads import encode_payload
from holdfast.engine.messages import queues
from holdfast.errors import InvalidError, NotFoundError
from holdfast.model import Json, Message, MessageMetrics, MessageQueue
from holdfast.server.api.audit import audited_transaction
from holdfast.server.api.identity import transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_query

BoundedSeconds = Annotated[float, Meta(ge=0, le=31536000)]
MessageId = Annotated[int, Meta(ge=1, le=2**63 - 1)]
ReceiptText = Annotated[str, Meta(max_length=200)]
MAX_HTTP_MESSAGE_BYTES = 1024 * 1024
_MESSAGE_ENDPOINT_OPTIONS: dict[str, Any] = {"tag": "messages", "access": "service", "scope": "queues"}
_QUEUE_NOT_FOUND_RESPONSE = {404: "The queue does not exist"}


class CreateMessageQueueRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to create a message queue.

    An `unlogged` queue is faster, but loses its messages when the database server crashes.
    """

    unlogged: bool = False


class SendMessagesRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to send messages to a queue.

    All messages get the same `headers`. Readers see them after `delay_s` seconds. The default is no delay.
    """

    messages: Annotated[list[Any], Meta(min_length=1, max_length=1000)]
    headers: dict[str, Any] | None = None
    delay_s: BoundedSeconds | None = None


class MessageIds(msgspec.Struct, kw_only=True):
    """The ids of the messages that were sent, archived, deleted or hidden."""

    ids: list[int]


class ReadMessagesRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to read messages of a queue.

    `qty` is the maximum number of messages. `vt_s` is the number of seconds for which they are hidden from
    other readers; the default is set in the policy of the queue. `where` selects messages that contain this
    JSON object.
    """

    qty: Annotated[int, Meta(ge=1, le=100)] = 1
    vt_s: BoundedSeconds | None = None
    where: dict[str, Any] | None = None


class MessageView(msgspec.Struct, kw_only=True):
    """A message of a message queue.

    Archive or delete the message with its `receipt`. An outdated receipt is rejected. `error` and `failed_at`
    describe the last failure. They are set only when you peek at messages.
    """

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


class MessageSelectionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body that selects messages to archive or delete, by receipts or by ids."""

    receipts: Annotated[list[ReceiptText], Meta(max_length=1000)] = []
    ids: Annotated[list[MessageId], Meta(max_length=1000)] = []


class HideMessagesRequest(MessageSelectionRequest, kw_only=True, forbid_unknown_fields=True):
    """Request body to hide messages from readers for `vt_s` seconds from now."""

    vt_s: BoundedSeconds


class PeekMessagesQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters for peeking at messages. `limit` is the maximum number of messages."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20


def _parse_queue_name(request: Request) -> str:
    name: str = request.path_params["queue"]
    check_queue_name(name)
    return name


@api_operation("List message queues", response=list[MessageQueue], **_MESSAGE_ENDPOINT_OPTIONS)
async def list_message_queues(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await queues.list_message_queues(connection))


@api_operation(
    "Create a message queue if it does not exist",
    body=CreateMessageQueueRequest,
    status=204,
    **_MESSAGE_ENDPOINT_OPTIONS,
)
async def create_message_queue(request: Request) -> Response:
    name, body = _parse_queue_name(request), await parse_body(request, CreateMessageQueueRequest)
    async with audited_transaction(request, "messages.create", name, as_login=True) as connection:
        await queues.create_message_queue(connection, name, unlogged=body.unlogged)
    return Response(status_code=204)


@api_operation(
    "Delete a message queue and all its messages",
    status=204,
    other_responses=_QUEUE_NOT_FOUND_RESPONSE,
    **_MESSAGE_ENDPOINT_OPTIONS,
)
async def delete_message_queue(request: Request) -> Response:
    name = _parse_queue_name(request)
    async with audited_transaction(request, "messages.drop", name, as_login=True) as connection:
        if not await queues.drop_message_queue(connection, name):
            raise NotFoundError(f"Message queue {name!r} does not exist.")
    return Response(status_code=204)


@api_operation(
    "Get the metrics of a message queue",
    response=MessageMetrics,
    other_responses=_QUEUE_NOT_FOUND_RESPONSE,
    **_MESSAGE_ENDPOINT_OPTIONS,
)
async def get_message_queue_metrics(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        [metrics] = await queues.list_message_metrics(connection, _parse_queue_name(request))
    return json_response(metrics)


@api_operation(
    "Send messages, all or none of them",
    body=SendMessagesRequest,
    response=MessageIds,
    status=201,
    other_responses=_QUEUE_NOT_FOUND_RESPONSE,
    **_MESSAGE_ENDPOINT_OPTIONS,
)
async def send_messages(request: Request) -> Response:
    name, body = _parse_queue_name(request), await parse_body(request, SendMessagesRequest)
    bodies = [
        encode_payload(message, what="messages", limit=MAX_HTTP_MESSAGE_BYTES) for message in body.messages
    ]
    headers = None
    if body.headers is not None:
        headers = [encode_payload(body.headers, what="headers")] * len(bodies)
    delay = None if body.delay_s is None else timedelta(seconds=body.delay_s)
    async with transaction_as_caller(request) as connection:
        query = queues.build_send_statement(name, bodies, headers=headers, delay=delay)
        return json_response(MessageIds(ids=await queues.run_json_statement(connection, query)), 201)


@api_operation(
    "Read messages and hide them from other readers for a while",
    body=ReadMessagesRequest,
    response=list[MessageView],
    other_responses=_QUEUE_NOT_FOUND_RESPONSE,
    **_MESSAGE_ENDPOINT_OPTIONS,
)
async def read_messages(request: Request) -> Response:
    name, body = _parse_queue_name(request), await parse_body(request, ReadMessagesRequest)
    where = None if body.where is None else encode_payload(body.where, what="where")
    vt = None if body.vt_s is None else timedelta(seconds=body.vt_s)
    async with transaction_as_caller(request) as connection:
        messages = await queues.read_messages(connection, name, vt=vt, qty=body.qty, where=where)
    return json_response(_build_message_views(messages))


@api_operation(
    "Peek at messages without hiding them from readers",
    query=PeekMessagesQuery,
    response=list[MessageView],
    other_responses=_QUEUE_NOT_FOUND_RESPONSE,
    **_MESSAGE_ENDPOINT_OPTIONS,
)
async def peek_messages(request: Request) -> Response:
    name, query = _parse_queue_name(request), parse_query(request, PeekMessagesQuery)
    async with transaction_as_caller(request) as connection:
        messages = await queues.peek_messages(connection, name, query.limit, "queue", None)
    return json_response(_build_message_views(messages))


def _build_message_views(messages: list[Message[Json]]) -> list[MessageView]:
    fields = MessageView.__struct_fields__
    return [MessageView(**{field: getattr(message, field) for field in fields}) for message in messages]


@api_operation(
    "Archive messages and return the ids of the archived messages",
    body=MessageSelectionRequest,
    response=MessageIds,
    other_responses=_QUEUE_NOT_FOUND_RESPONSE,
    **_MESSAGE_ENDPOINT_OPTIONS,
)
async def archive_messages(request: Request) -> Response:
    name, body = _parse_queue_name(request), await parse_body(request, MessageSelectionRequest)
    _require_selected_messages(body)
    async with transaction_as_caller(request) as connection:
        query = queues.build_archive_statement(name, body.receipts, body.ids)
        return json_response(MessageIds(ids=await queues.run_json_statement(connection, query)))


@api_operation(
    "Delete messages and return the ids of the deleted messages",
    body=MessageSelectionRequest,
    response=MessageIds,
    other_responses=_QUEUE_NOT_FOUND_RESPONSE,
    **_MESSAGE_ENDPOINT_OPTIONS,
)
async def delete_messages(request: Request) -> Response:
    name, body = _parse_queue_name(request), await parse_body(request, MessageSelectionRequest)
    _require_selected_messages(body)
    async with transaction_as_caller(request) as connection:
        query = queues.build_delete_statement(name, body.receipts, body.ids)
        return json_response(MessageIds(ids=await queues.run_json_statement(connection, query)))


@api_operation(
    "Hide messages for a number of seconds; 0 makes them visible now",
    body=HideMessagesRequest,
    response=MessageIds,
    other_responses=_QUEUE_NOT_FOUND_RESPONSE,
    **_MESSAGE_ENDPOINT_OPTIONS,
)
async def hide_messages(request: Request) -> Response:
    name, body = _parse_queue_name(request), await parse_body(request, HideMessagesRequest)
    _require_selected_messages(body)
    async with transaction_as_caller(request) as connection:
        query = queues.build_set_vt_statement(name, body.receipts, body.ids, timedelta(seconds=body.vt_s))
        return json_response(MessageIds(ids=await queues.run_json_statement(connection, query)))


def _require_selected_messages(selection: MessageSelectionRequest) -> None:
    if not selection.receipts and not selection.ids:
        raise InvalidError("No messages are selected.", fix="Set receipts or ids.", field="receipts")


def build_message_routes() -> list[BaseRoute]:
    return [
        Route("/api/messages", list_message_queues, methods=["GET"]),
        Route("/api/messages/{queue}", create_message_queue, methods=["PUT"]),
        Route("/api/messages/{queue}", delete_message_queue, methods=["DELETE"]),
        Route("/api/messages/{queue}", send_messages, methods=["POST"]),
        Route("/api/messages/{queue}", peek_messages, methods=["GET"]),
        Route("/api/messages/{queue}/metrics", get_message_queue_metrics, methods=["GET"]),
        Route("/api/messages/{queue}/read", read_messages, methods=["POST"]),
        Route("/api/messages/{queue}/archive", archive_messages, methods=["POST"]),
        Route("/api/messages/{queue}/delete", delete_messages, methods=["POST"]),
        Route("/api/messages/{queue}/hide", hide_messages, methods=["POST"]),
    ]
