from __future__ import annotations

import dataclasses
import enum
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from holdfast.definitions.payloads import MAX_PAYLOAD_BYTES, convert_payload, encode_payload
from holdfast.errors import InvalidError


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: float


class Box(msgspec.Struct):
    corner: Point
    colour: Colour


class Model:
    """Behaves as a pydantic model does, which the product supports without requiring it."""

    def __init__(self, key: str) -> None:
        self.key = key

    def model_dump(self, mode: str) -> dict[str, str]:
        assert mode == "json"
        return {"key": self.key}

    @classmethod
    def model_validate(cls, value: dict[str, str]) -> Model:
        if "key" not in value:
            raise ValueError("key: field required")
        return cls(value["key"])


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Box(Point(1, 2.5), Colour.RED), Box),
        ([Point(1, 2.0)], list[Point]),
        (datetime(2026, 11, 15, tzinfo=UTC), datetime),
        (timedelta(minutes=5), timedelta),
        (UUID(int=7), UUID),
        ({"a": [1, None, "ü"]}, dict[str, list[Any]]),
        (None, None),
        (b"bytes", bytes),
    ],
)
def test_values_survive_a_round_trip(value: object, kind: Any) -> None:
    assert (
        convert_payload(msgspec.json.decode(encode_payload(value, what="args")), kind, what="args") == value
    )


def test_nested_models_survive_a_round_trip() -> None:
    back = convert_payload(
        msgspec.json.decode(encode_payload([Model("k")], what="args")), list[Model], what="args"
    )
    assert [model.key for model in back] == ["k"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@hypothesis.given(json_values)
def test_json_is_stored_exactly_or_refused_with_its_place(value: object) -> None:
    try:
        text = encode_payload(value, what="args")
    except InvalidError as error:
        text = None
        place = str(error)
    else:
        place = "args"
    assert "args" in place
    assert text is None or (msgspec.json.decode(text) == value and b"\\u0000" not in text)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, float("nan")]}, r"args\.a\[1\]"),
        ({"a": "x\0y"}, r"args\.a"),
        ({"x\0": 1}, "a key of args"),
        ({"a": float("inf")}, r"args\.a"),
        ({"a": "\ud800"}, "args"),
        ({"a": object()}, "args"),
        ({"a": {1, 2}, "b": lambda: 1}, "args"),
    ],
)
def test_values_that_cannot_be_stored_are_refused_by_name(value: object, place: str) -> None:
    with pytest.raises(InvalidError, match=place):
        encode_payload(value, what="args")


def test_a_recursive_value_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InvalidError, match="args"):
        encode_payload(loop, what="args")


def test_large_values_are_refused_with_the_advice_to_save_a_file() -> None:
    assert len(encode_payload("x" * (MAX_PAYLOAD_BYTES - 2), what="args")) == MAX_PAYLOAD_BYTES
    with pytest.raises(InvalidError, match="Save it as a file"):
        encode_payload("x" * (MAX_PAYLOAD_BYTES - 1), what="args")


@pytest.mark.parametrize(("value", "kind"), [("x", int), ({"x": 1}, Point), ({}, Model), (None, str)])
def test_errors_name_the_value_of_the_wrong_type(value: object, kind: Any) -> None:
    with pytest.raises(InvalidError, match="width does not have the expected type") as caught:
        convert_payload(value, kind, what="width")
    assert caught.value.field == "width"
