"""Messages: what lies in a queue of messages, without taking it; and dead letters."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.exceptions import HTTPException

from holdfast.client.messages import arguments
from holdfast.engine.messages import queues
from holdfast.errors import InvalidError
from holdfast.model import MessagePlace
from holdfast.server.dashboard.registry import deed, screen
from holdfast.server.dashboard.site import Deed, Page, View
from holdfast.server.dashboard.words import plural

LIMIT = 50


def _place(text: str | None) -> MessagePlace:
    return "archive" if text == "archive" else "dead" if text == "dead" else "queue"


@screen("/messages", "message.view")
async def messages(view: View) -> Page:
    metrics = await queues.metrics(view.connection)
    name = view.query.get("queue")
    if name is None:
        return Page("messages.html", "Messages", {"metrics": metrics, "queue": None})
    mine = next((one for one in metrics if one.queue == name), None)
    if mine is None:
        raise HTTPException(404, "There is no such queue of messages.")
    place = _place(view.query.get("place"))
    given = view.query.get("after", "")
    after = int(given) if given.isdigit() and len(given) < 19 else None
    found = await queues.peek(view.connection, name, LIMIT, place, after)
    redactor = view.redactor()
    rows: list[dict[str, Any]] = [
        {
            "message": one,
            "body": redactor.payload(one.body),
            "headers": redactor.payload(one.headers),
            "error": redactor.text(one.error),
        }
        for one in found
    ]
    return Page(
        "messages.html",
        f"Messages in {name}",
        {
            "metrics": metrics,
            "queue": mine,
            "policy": await queues.policy(view.connection, name),
            "place": place,
            "rows": rows,
            "next": found[-1].id if len(found) == LIMIT else None,
        },
    )


def _back(asked: Deed, name: str) -> str:
    place = asked.text("place") or "queue"
    return asked.view.url("/messages", queue=name, place=place)[len(asked.view.base) :]


def _ids(asked: Deed) -> list[int]:
    try:
        return [int(str(one)) for one in asked.form.getlist("id")]
    except ValueError:
        raise InvalidError("An id is not a number.", field="id") from None


@deed("/messages/requeue", "message.act")
async def requeue(asked: Deed) -> tuple[str, str]:
    name, place = asked.needed("queue"), asked.text("place")
    if place not in {"dead", "archive"}:
        raise InvalidError("Only archived and dead messages can be requeued.", field="place")
    ids = None if asked.text("all") == "yes" else _ids(asked)
    moved = await queues.requeue(asked.connection, name, _place(place), ids, 1000)
    await asked.audit("message.requeue", name, place=place, messages=len(moved))
    return _back(asked, name), f"{plural(len(moved), 'message')} put back."


@deed("/messages/send", "message.act")
async def send(asked: Deed) -> tuple[str, str]:
    name = asked.needed("queue")
    body = asked.text("body", most=500_000)
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError as problem:
        raise InvalidError(f"The body is not valid JSON: {problem}.", field="body") from None
    [sent] = await queues.ask(asked.connection, arguments.sending(name, [value], [None], None))
    await asked.audit("message.send", name, id=sent)
    return _back(asked, name), f"Sent as message {sent}."
