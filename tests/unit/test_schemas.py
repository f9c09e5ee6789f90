"""The JSON Schema of a task accepts the arguments that the task accepts, and no others."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
from pydantic import BaseModel

from holdfast import Ctx, Task, task
from holdfast.definitions.payloads import build_arguments_schema, convert_payload
from holdfast.errors import InvalidError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: float
    y: float


class Options(TypedDict, total=False):
    deep: bool


@dataclass
class Shape:
    points: list[Point]
    colour: Colour = Colour.RED
    tags: list[str] = field(default_factory=list)


class Box(msgspec.Struct):
    width: Annotated[int, msgspec.Meta(ge=1, le=100)]
    inner: Box | None = None


class Author(BaseModel):
    name: str


class Book(BaseModel):
    title: str
    authors: list[Author]


@task
async def everything(
    ctx: Ctx,
    url: str,
    count: int,
    ratio: float,
    flag: bool,
    at: datetime,
    day: date,
    wait: timedelta,
    id: UUID,  # noqa: A002
    price: Decimal,
    raw: bytes,
    mode: Literal["fast", "slow"],
    colour: Colour,
    shape: Shape,
    box: Box,
    book: Book,
    books: dict[str, list[Book]],
    options: Options,
    either: int | str,
    whatever: Any,
    folder: Path | None = None,
    limit: int | None = None,
    size: tuple[int, int] = (1, 2),
    favourite: Colour = Colour.BLUE,
    odd: float = float("nan"),
    until: datetime | None = None,
) -> None: ...


GOOD: dict[str, Any] = {
    "url": "u", "count": 3, "ratio": 1, "flag": True, "at": "2026-11-15T06:00:00Z", "day": "2026-11-15",
    "wait": "PT5S", "id": "01a1ddf2-844a-7964-ba00-57672722b985", "price": "1.50", "raw": "aGk=",
    "mode": "fast", "colour": "red", "shape": {"points": [[1, 2], [3, 4]]},
    "box": {"width": 5, "inner": {"width": 1}},
    "book": {"title": "t", "authors": [{"name": "n"}]},
    "books": {"a": [{"title": "t", "authors": []}]},
    "options": {"deep": False}, "either": "x", "whatever": {"a": [1]},
}  # fmt: skip

BAD: list[dict[str, Any]] = [
    {"count": "3"}, {"ratio": "x"}, {"flag": 1}, {"mode": "medium"}, {"colour": "green"},
    {"shape": {"points": [[1]]}}, {"shape": {}}, {"box": {"width": 0}}, {"box": {"width": 5, "inner": {}}},
    {"book": {"title": "t", "authors": [{"nom": "n"}]}}, {"books": {"a": [{"title": 3}]}},
    {"options": {"deep": "yes"}}, {"either": 1.5}, {"limit": "none"}, {"size": [1]},
]  # fmt: skip


def check(t: Task[..., Any], args: dict[str, Any]) -> None:
    """As the worker does it."""
    for name, value in args.items():
        convert_payload(value, t.hints[name], what=name)


def test_a_schema_is_valid_and_describes_a_form() -> None:
    schema = build_arguments_schema(everything)
    jsonschema.Draft202012Validator.check_schema(schema)
    msgspec.json.encode(schema)
    assert schema["title"] == "everything"
    assert "ctx" not in schema["properties"]
    assert set(schema["required"]) == set(GOOD)
    properties = schema["properties"]
    assert properties["mode"]["enum"] == ["fast", "slow"]
    assert properties["at"]["format"] == "date-time"
    assert {"type": "string", "format": "date-time"} in properties["until"]["anyOf"]
    assert properties["size"]["default"] == [1, 2]
    assert properties["favourite"]["default"] == "blue"
    assert "default" not in properties["odd"]
    assert properties["limit"]["default"] is None
    assert properties["folder"] == {"default": None}
    assert {"Box", "Shape", "Colour", "Book.Author"} <= set(schema["$defs"])


def test_accepted_arguments_match_the_schema() -> None:
    check(everything, GOOD)
    jsonschema.validate(GOOD, build_arguments_schema(everything), cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("wrong", BAD, ids=str)
def test_refused_arguments_do_not_match_the_schema(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        check(everything, {**GOOD, **wrong})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(
            {**GOOD, **wrong}, build_arguments_schema(everything), cls=jsonschema.Draft202012Validator
        )


@pytest.mark.parametrize("args", [{}, {**GOOD, "more": 1}], ids=["missing", "unknown"])
def test_argument_names_are_checked(args: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(args, build_arguments_schema(everything), cls=jsonschema.Draft202012Validator)
