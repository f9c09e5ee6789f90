"""The message pages: what is in a message queue, without reading it, and dead letters."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.exceptions import HTTPException

from holdfast.client.messages import arguments
from holdfast.engine.messages import queues
from holdfast.errors import InvalidError
from holdfast.formatting import format_count
from holdfast.model import MessagePlace
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest, build_dashboard_url

MESSAGES_PER_PAGE = 50
MAX_REQUEUED_MESSAGES = 1000
MAX_MESSAGE_BODY_CHARS = 500_000


def _parse_message_place(text: str | None) -> MessagePlace:
    return "archive" if text == "archive" else "dead" if text == "dead" else "queue"


@register_page("/messages", "message.view")
async def list_messages(request: PageRequest) -> DashboardPage:
    """Show the message queues or, if a queue is chosen, its messages."""
    metrics = await queues.list_message_metrics(request.connection)
    name = request.query.get("queue")
    if name is None:
        return DashboardPage("message_queues.html", "Messages", {"queues": metrics})
    queue = next((row for row in metrics if row.queue == name), None)
    if queue is None:
        raise HTTPException(404, f"Message queue {name} does not exist.")
    place = _parse_message_place(request.query.get("place"))
    text = request.query.get("after", "")
    after = int(text) if text.isdigit() and len(text) < 19 else None
    messages = await queues.peek_messages(request.connection, name, MESSAGES_PER_PAGE, place, after)
    redactor = request.create_redactor()
    rows: list[dict[str, Any]] = [
        {
            "message": message,
            "body": redactor.redact_payload(message.body),
            "headers": redactor.redact_payload(message.headers),
            "error": redactor.redact_text(message.error),
        }
        for message in messages
    ]
    return DashboardPage(
        "messages.html",
        f"Messages in {name}",
        {
            "queue": queue,
            "policy": await queues.get_message_policy(request.connection, name),
            "place": place,
            "rows": rows,
            "next": messages[-1].id if len(messages) == MESSAGES_PER_PAGE else None,
        },
    )


def _build_queue_path(action: ActionRequest, name: str) -> str:
    return build_dashboard_url("/messages", queue=name, place=action.get_text("place") or "queue")


def _parse_message_ids(action: ActionRequest) -> list[int]:
    try:
        return [int(str(text)) for text in action.form.getlist("id")]
    except ValueError:
        raise InvalidError("A message id must be a number.", field="id") from None


@register_action("/messages/requeue", "message.act")
async def requeue_messages(action: ActionRequest) -> tuple[str, str]:
    name, place = action.get_required_text("queue"), action.get_text("place")
    if place not in {"dead", "archive"}:
        raise InvalidError("Only dead letters and archived messages can be requeued.", field="place")
    ids = None if action.get_text("all") == "yes" else _parse_message_ids(action)
    requeued = await queues.requeue_messages(
        action.connection, name, _parse_message_place(place), ids, MAX_REQUEUED_MESSAGES
    )
    await action.record_audit("message.requeue", name, place=place, messages=len(requeued))
    return _build_queue_path(action, name), f"{format_count(len(requeued), 'message')} requeued."


@register_action("/messages/send", "message.act")
async def send_message(action: ActionRequest) -> tuple[str, str]:
    name = action.get_required_text("queue")
    body = action.get_text("body", max_chars=MAX_MESSAGE_BODY_CHARS)
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidError(f"The body is not valid JSON: {error}.", field="body") from None
    [message_id] = await queues.run_json_statement(
        action.connection, arguments.build_send_statement(name, [value], [None], None)
    )
    await action.record_audit("message.send", name, id=message_id)
    return _build_queue_path(action, name), f"Message {message_id} sent."
