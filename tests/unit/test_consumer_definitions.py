from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Consumer, Message, consumer
from holdfast.errors import InvalidError


@dataclass
class MessageBody:
    n: int


@consumer(queue="q", vt=timedelta(seconds=120), concurrency=5, max_reads=3, create=True)
async def typed(msg: Message[MessageBody]) -> None: ...


@consumer("q", name="other", finish="delete")
def untyped(msg):  # type: ignore[no-untyped-def]
    return None


def test_a_consumer_is_a_passive_value_with_its_options() -> None:
    assert isinstance(typed, Consumer)
    assert (typed.name, typed.queue, typed.vt, typed.concurrency) == ("typed", "q", timedelta(minutes=2), 5)
    assert (typed.max_reads, typed.create, typed.finish, typed.is_async) == (3, True, "archive", True)
    assert (untyped.name, untyped.finish, untyped.is_async) == ("other", "delete", False)


def test_the_body_s_type_comes_from_the_annotation() -> None:
    assert typed.body_type is MessageBody
    assert untyped.body_type is Any


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"queue": ""}, "queue"),
        ({"queue": "x" * 48}, "queue"),
        ({"vt": timedelta(milliseconds=10)}, "vt"),
        ({"vt": timedelta(days=8)}, "vt"),
        ({"concurrency": 0}, "concurrency"),
        ({"max_reads": 0}, "max_reads"),
        ({"timeout": timedelta(0)}, "timeout"),
        ({"finish": "burn"}, "finish"),
    ],
)
def test_options_that_cannot_work_are_refused_where_they_are_written(
    options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidError) as caught:
        consumer(**{"queue": "q", **options})(lambda msg: None)
    assert caught.value.field == field


def test_a_function_that_takes_no_message_is_refused() -> None:
    def none() -> None: ...

    with pytest.raises(InvalidError, match="cannot be called with a message"):
        consumer("q")(none)  # type: ignore[arg-type]
