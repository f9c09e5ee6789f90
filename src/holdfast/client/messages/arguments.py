"""What callers of `client.queues` may say, checked before anything is sent; errors name the argument."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from holdfast.definitions.consumers import check_queue_name
from holdfast.definitions.payloads import to_json
from holdfast.engine.borrowed import Ask
from holdfast.engine.messages import queues
from holdfast.errors import InvalidError
from holdfast.model import Json, Message, MessagePlace

__all__ = ["check_queue_name"]

Delay: TypeAlias = "timedelta | datetime | None"
Target: TypeAlias = "Message[Any] | int | Iterable[Message[Any] | int]"

MESSAGE_BYTES = 64 * 1024 * 1024
MOST_AT_ONCE = 100_000
MOST_TIME = timedelta(days=36_500)
BIGGEST = 2**63 - 1


def check_count(count: int, field: str, *, most: int = MOST_AT_ONCE) -> None:
    if type(count) is not int or not 1 <= count <= most:
        too_many = type(count) is int and count > most and field in {"qty", "limit"}
        raise InvalidError(
            f"{field} must be a whole number from 1 to {most}, got {count!r}.",
            fix="Ask again for more." if too_many else None,
            field=field,
        )


def check_span(span: timedelta, field: str) -> None:
    if not isinstance(span, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(f"{field} is a timedelta, got {span!r}.", fix="timedelta(seconds=30)", field=field)
    if not timedelta(0) <= span <= MOST_TIME:
        raise InvalidError(
            f"{field} must not be negative nor more than a hundred years, got {span}.", field=field
        )


def check_place(place: MessagePlace) -> None:
    known = typing.get_args(MessagePlace)
    if place not in known:
        raise InvalidError(f"place is one of {', '.join(known)}, not {place!r}.", field="place")


def check_policy(queue: str, changes: Mapping[str, Any]) -> None:
    for field in ("vt", "backoff", "backoff_cap", "archive_retention"):
        if changes.get(field) is not None:
            check_span(changes[field], field)
    if changes.get("max_reads") is not None:
        check_count(changes["max_reads"], "max_reads", most=1_000_000)
    if changes.get("dead_letters") is not None:
        check_queue_name(changes["dead_letters"], field="dead_letters")
        if changes["dead_letters"].lower() == queue.lower():
            raise InvalidError(
                "A queue cannot be its own dead-letter queue.",
                fix="Name another queue.",
                field="dead_letters",
            )


def extent(size: int | timedelta, field: str) -> str:
    """How partitions are cut, in the words of the database: ids, or time."""
    if isinstance(size, timedelta):
        check_span(size, field)
        return f"{size.total_seconds():.0f} seconds"
    check_count(size, field, most=BIGGEST)
    return str(size)


def message_id(given: object) -> int:
    if type(given) is not int or not -BIGGEST - 1 <= given <= BIGGEST:
        raise InvalidError(f"{given!r} is not the id of a message.", field="ids")
    return given


def targets(queue: str, target: Target) -> tuple[str, list[str], list[int]]:
    """Receipts of the messages that were read, and plain ids of all else."""
    check_queue_name(queue)
    many = [target] if isinstance(target, (Message, int)) else [*target]
    receipts = [each.receipt for each in many if isinstance(each, Message) and each.receipt is not None]
    ids = [
        message_id(each.id if isinstance(each, Message) else each)
        for each in many
        if not (isinstance(each, Message) and each.receipt is not None)
    ]
    return queue, receipts, ids


def sending(
    queue: str, bodies: Sequence[object], headers: Sequence[Json] | None, delay: Delay
) -> Ask[list[int]]:
    check_queue_name(queue)
    if not bodies:
        raise InvalidError("There is no message to send.", fix="Leave the call out.", field="bodies")
    if headers is not None and len(headers) != len(bodies):
        raise InvalidError(
            f"{len(headers)} headers for {len(bodies)} messages.", fix="Give one for each.", field="headers"
        )
    if isinstance(delay, timedelta):
        check_span(delay, "delay")
    elif delay is not None and delay.tzinfo is None:
        raise InvalidError("delay has no time zone.", fix="Use an aware datetime.", field="delay")
    return queues.send_batch(
        queue,
        [to_json(body, what=_name("body", n, bodies), limit=MESSAGE_BYTES) for n, body in enumerate(bodies)],
        headers=None if headers is None else [_header(each) for each in headers],
        delay=delay,
    )


def _name(what: str, number: int, many: Sequence[object]) -> str:
    return what if len(many) == 1 else f"{what}[{number}]"


def _header(headers: Json) -> bytes | None:
    return None if headers is None else to_json(headers, what="headers")


@dataclass(frozen=True)
class Reading:
    qty: int
    vt: timedelta | None
    where: bytes | None
    wait: float

    @classmethod
    def of(
        cls,
        queue: str,
        *,
        qty: int = 1,
        vt: timedelta | None = None,
        where: Json = None,
        wait: timedelta | None = None,
    ) -> Reading:
        check_queue_name(queue)
        check_count(qty, "qty")
        for span, field in ((vt, "vt"), (wait, "wait")):
            if span is not None:
                check_span(span, field)
        condition = None if where is None else to_json(where, what="where")
        return cls(qty, vt, condition, wait.total_seconds() if wait else 0.0)
