"""Check the arguments of `client.queues` before anything is sent. Each error names its argument."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from holdfast.definitions.consumers import check_queue_name
from holdfast.definitions.payloads import encode_payload
from holdfast.definitions.validation import check_aware_datetime, parse_duration
from holdfast.engine.caller_connection import JsonStatement
from holdfast.engine.messages import queues
from holdfast.errors import InvalidError
from holdfast.model import Json, Message, MessagePlace

__all__ = ["check_queue_name"]

MessageDelay: TypeAlias = "timedelta | float | datetime | None"
MessageTarget: TypeAlias = "Message[Any] | int | Iterable[Message[Any] | int]"

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_MESSAGES_PER_CALL = 100_000
MAX_MESSAGE_DURATION = timedelta(days=36_500)
MAX_MESSAGE_ID = 2**63 - 1


def check_count(count: int, field: str, *, max_count: int = MAX_MESSAGES_PER_CALL) -> None:
    """Raise InvalidError unless `count` is a whole number from 1 to `max_count`."""
    if type(count) is not int or not 1 <= count <= max_count:
        too_many = type(count) is int and count > max_count and field in {"qty", "limit"}
        raise InvalidError(
            f"{field} must be a whole number from 1 to {max_count}, got {count!r}.",
            fix="Call again for more." if too_many else None,
            field=field,
        )


def parse_message_duration(value: timedelta | float, field: str) -> timedelta:
    """Return a duration. Raise InvalidError if it is negative or longer than a hundred years."""
    duration = parse_duration(value, field)
    if not timedelta(0) <= duration <= MAX_MESSAGE_DURATION:
        raise InvalidError(f"{field} must be from zero to a hundred years, got {duration}.", field=field)
    return duration


def check_message_place(place: MessagePlace) -> None:
    """Raise InvalidError unless the place is the queue, its archive or its dead letters."""
    places = typing.get_args(MessagePlace)
    if place not in places:
        raise InvalidError(f"place must be one of {', '.join(places)}, got {place!r}.", field="place")


def parse_policy_changes(queue: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changed fields of a queue's policy. Raise InvalidError if a value is invalid."""
    changes = dict(options)
    for field in ("vt", "backoff", "backoff_cap", "archive_retention"):
        if changes.get(field) is not None:
            changes[field] = parse_message_duration(changes[field], field)
    if changes.get("max_reads") is not None:
        check_count(changes["max_reads"], "max_reads", max_count=1_000_000)
    if changes.get("dead_letters") is not None:
        check_queue_name(changes["dead_letters"], field="dead_letters")
        if changes["dead_letters"].lower() == queue.lower():
            raise InvalidError(
                "A queue cannot be its own dead-letter queue.",
                fix="Name another queue.",
                field="dead_letters",
            )
    return changes


def format_partition_size(size: int | timedelta, field: str) -> str:
    """Convert a partition size to the text that pg_partman expects: a number of ids or an interval."""
    if isinstance(size, timedelta):
        parse_message_duration(size, field)
        return f"{size.total_seconds():.0f} seconds"
    check_count(size, field, max_count=MAX_MESSAGE_ID)
    return str(size)


def check_message_id(value: object) -> int:
    """Return `value` as a message id. Raise InvalidError if the id is invalid."""
    if type(value) is not int or not -MAX_MESSAGE_ID - 1 <= value <= MAX_MESSAGE_ID:
        raise InvalidError(f"{value!r} is not the id of a message.", fix="Pass an int.", field="ids")
    return value


def split_message_targets(queue: str, target: MessageTarget) -> tuple[str, list[str], list[int]]:
    """Split messages and ids into the queue name, receipts of read messages, and plain ids."""
    check_queue_name(queue)
    targets = [target] if isinstance(target, (Message, int)) else [*target]
    receipts = [each.receipt for each in targets if isinstance(each, Message) and each.receipt is not None]
    ids = [
        check_message_id(each.id if isinstance(each, Message) else each)
        for each in targets
        if not (isinstance(each, Message) and each.receipt is not None)
    ]
    return queue, receipts, ids


def build_send_statement(
    queue: str, bodies: Sequence[object], headers: Sequence[Json] | None, delay: MessageDelay
) -> JsonStatement[list[int]]:
    """Validate messages and build the SQL statement that sends them."""
    check_queue_name(queue)
    if not bodies:
        raise InvalidError("`bodies` is empty.", fix="Pass at least one message.", field="bodies")
    if headers is not None and len(headers) != len(bodies):
        raise InvalidError(
            f"Got {len(headers)} headers for {len(bodies)} messages.",
            fix="Pass one header for each message.",
            field="headers",
        )
    if isinstance(delay, datetime):
        check_aware_datetime(delay, "delay")
    elif delay is not None:
        delay = parse_message_duration(delay, "delay")
    return queues.build_send_statement(
        queue,
        [
            encode_payload(body, what=_format_argument_name("body", index, bodies), limit=MAX_MESSAGE_BYTES)
            for index, body in enumerate(bodies)
        ],
        headers=None if headers is None else [_encode_header(header) for header in headers],
        delay=delay,
    )


def _format_argument_name(noun: str, index: int, items: Sequence[object]) -> str:
    return noun if len(items) == 1 else f"{noun}[{index}]"


def _encode_header(header: Json) -> bytes | None:
    return None if header is None else encode_payload(header, what="headers")


@dataclass(frozen=True)
class MessageReadRequest:
    """The validated arguments of `client.queues.read`.

    `wait_s` is how long to wait for the first message.
    """

    qty: int
    vt: timedelta | None
    where: bytes | None
    wait_s: float

    @classmethod
    def from_options(
        cls,
        queue: str,
        *,
        qty: int = 1,
        vt: timedelta | float | None = None,
        where: Json = None,
        wait: timedelta | float | None = None,
    ) -> MessageReadRequest:
        """Validate the arguments of `client.queues.read`."""
        check_queue_name(queue)
        check_count(qty, "qty")
        invisible = None if vt is None else parse_message_duration(vt, "vt")
        wait_s = 0.0 if wait is None else parse_message_duration(wait, "wait").total_seconds()
        condition = None if where is None else encode_payload(where, what="where")
        return cls(qty, invisible, condition, wait_s)
