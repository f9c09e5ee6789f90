"""What a report is about, as it is asked for, and what can be calculated about it."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Line = Annotated[str, Meta(max_length=200)]
Tradition = Annotated[str, Meta(min_length=1, max_length=50)]
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class Person(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: Name
    birth_date: Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None
    birth_time: Line | None = None
    birth_place: Line | None = None


class ReportParams(msgspec.Struct, frozen=True, kw_only=True):
    """`systems` are the traditions that the texts look through."""

    person1: Person
    person2: Person
    systems: Annotated[list[Tradition], Meta(min_length=1, max_length=10)] = msgspec.field(
        default_factory=lambda: ["western"]
    )
    language: Annotated[str, Meta(pattern=r"^[a-z]{2,3}$")] = "en"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a calendar knows about two people; None where a date is missing or there is no such day."""

    weekday1: str | None = None
    weekday2: str | None = None
    path1: int | None = None
    path2: int | None = None
    years_apart: int | None = None
    days_apart: int | None = None


def calculate(params: ReportParams) -> Facts:
    first, second = _day(params.person1), _day(params.person2)
    apart = abs((first - second).days) if first and second else None
    return Facts(
        weekday1=WEEKDAYS[first.weekday()] if first else None,
        weekday2=WEEKDAYS[second.weekday()] if second else None,
        path1=_path(first) if first else None,
        path2=_path(second) if second else None,
        days_apart=apart,
        years_apart=None if apart is None else apart // 365,
    )


def _day(person: Person) -> date | None:
    try:
        return date.fromisoformat(person.birth_date or "")
    except ValueError:
        return None


def _path(day: date) -> int:
    """The digits of a date, summed until one is left."""
    number = sum(int(digit) for digit in day.strftime("%Y%m%d"))
    while number > 9:
        number = sum(int(digit) for digit in str(number))
    return number


def subject_of(params: ReportParams, chapter: Any, facts: Facts) -> str:
    """What the writer is told, as data."""
    told = {
        "chapter": chapter,
        "person1": params.person1,
        "person2": params.person2,
        "systems": params.systems,
        "facts": {name: value for name, value in msgspec.to_builtins(facts).items() if value is not None},
        "language": params.language,
    }
    return msgspec.json.encode(told).decode()
