"""Parameters of a report, and the calendar facts that are calculated from the birth dates."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta
from msgspec.structs import fields

from holdfast.systems.field_errors import FieldError, find_unknown_fields

PersonName = Annotated[str, Meta(min_length=1, max_length=200)]
ShortText = Annotated[str, Meta(max_length=200)]
Tradition = Annotated[str, Meta(min_length=1, max_length=50)]
WEEKDAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class Person(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One of the two people in a report."""

    name: PersonName
    birth_date: Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None
    birth_time: ShortText | None = None
    birth_place: ShortText | None = None


class ReportParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a report: two people, the traditions to write about (`systems`) and the language."""

    person1: Person
    person2: Person
    systems: Annotated[list[Tradition], Meta(min_length=1, max_length=10)] = msgspec.field(
        default_factory=lambda: ["western"]
    )
    language: Annotated[str, Meta(pattern=r"^[a-z]{2,3}$")] = "en"


def find_unknown_params(params: Mapping[str, Any]) -> list[FieldError]:
    """Return an error for each field of the parameters of a report that does not exist."""
    errors = find_unknown_fields(params, [field.encode_name for field in fields(ReportParams)], "params.")
    person_fields = [field.encode_name for field in fields(Person)]
    for name in ("person1", "person2"):
        person: Any = params.get(name)
        if isinstance(person, dict):
            errors += find_unknown_fields(cast("dict[str, Any]", person), person_fields, f"params.{name}.")
    return errors


class CalendarFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Calendar facts from two birth dates. A fact is None if a date is missing or invalid."""

    weekday1: str | None = None
    weekday2: str | None = None
    path1: int | None = None
    path2: int | None = None
    years_apart: int | None = None
    days_apart: int | None = None


def calculate_calendar_facts(params: ReportParams) -> CalendarFacts:
    """Calculate weekdays, life path numbers and age difference from the birth dates of two people."""
    first, second = _parse_birth_date(params.person1), _parse_birth_date(params.person2)
    days_apart = abs((first - second).days) if first and second else None
    return CalendarFacts(
        weekday1=WEEKDAY_NAMES[first.weekday()] if first else None,
        weekday2=WEEKDAY_NAMES[second.weekday()] if second else None,
        path1=_compute_life_path_number(first) if first else None,
        path2=_compute_life_path_number(second) if second else None,
        days_apart=days_apart,
        years_apart=None if days_apart is None else days_apart // 365,
    )


def _parse_birth_date(person: Person) -> date | None:
    try:
        return date.fromisoformat(person.birth_date or "")
    except ValueError:
        return None


def _compute_life_path_number(day: date) -> int:
    """Add the digits of a date repeatedly, until one digit is left."""
    number = sum(int(digit) for digit in day.strftime("%Y%m%d"))
    while number > 9:
        number = sum(int(digit) for digit in str(number))
    return number


def encode_chapter_subject(params: ReportParams, chapter: Any, facts: CalendarFacts) -> str:
    """Encode what a chapter is about as JSON for the text provider.

    That is the chapter, both people, the facts and the language.
    """
    subject = {
        "chapter": chapter,
        "person1": params.person1,
        "person2": params.person2,
        "systems": params.systems,
        "facts": {name: value for name, value in msgspec.to_builtins(facts).items() if value is not None},
        "language": params.language,
    }
    return msgspec.json.encode(subject).decode()
