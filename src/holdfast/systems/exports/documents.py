"""The résumé: what a document may hold, and a set of samples.

Lengths are bounded so that a hostile document is refused at the door and not in the middle of a page;
the bounds leave room for a document of hundreds of pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from holdfast.errors import InvalidError

Line = Annotated[str, Meta(max_length=500)]
Text = Annotated[str, Meta(max_length=20_000)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Web = Annotated[str, Meta(max_length=2000)]
SAMPLES = Path(__file__).parent / "samples"


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Web
    label: Line | None = None


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Name
    headline: Line | None = None
    email: Line | None = None
    phone: Line | None = None
    location: Line | None = None
    summary: Text | None = None
    links: Annotated[list[Link], Meta(max_length=20)] = []


class Experience(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Line
    company: Line | None = None
    location: Line | None = None
    start: Line | None = None
    end: Line | None = None
    summary: Text | None = None
    highlights: Annotated[list[Text], Meta(max_length=200)] = []


class Education(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    degree: Line
    school: Line | None = None
    location: Line | None = None
    start: Line | None = None
    end: Line | None = None
    details: Annotated[list[Text], Meta(max_length=100)] = []


class SkillGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Line
    items: Annotated[list[Line], Meta(max_length=200)] = []


class Project(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Line
    url: Web | None = None
    start: Line | None = None
    end: Line | None = None
    summary: Text | None = None
    highlights: Annotated[list[Text], Meta(max_length=100)] = []


class Language(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Line
    level: Line | None = None


class Award(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Line
    issuer: Line | None = None
    date: Line | None = None


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Anything else, under a title of its own."""

    title: Line
    paragraphs: Annotated[list[Text], Meta(max_length=5000)] = []


class Labels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The headings, in the language of the document."""

    profile: Line = "Profile"
    experience: Line = "Experience"
    education: Line = "Education"
    skills: Line = "Skills"
    projects: Line = "Projects"
    languages: Line = "Languages"
    awards: Line = "Awards"
    contact: Line = "Contact"
    present: Line = "present"


class Resume(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    profile: Profile
    experience: Annotated[list[Experience], Meta(max_length=2000)] = []
    education: Annotated[list[Education], Meta(max_length=200)] = []
    skills: Annotated[list[SkillGroup], Meta(max_length=100)] = []
    projects: Annotated[list[Project], Meta(max_length=500)] = []
    languages: Annotated[list[Language], Meta(max_length=50)] = []
    awards: Annotated[list[Award], Meta(max_length=200)] = []
    sections: Annotated[list[Section], Meta(max_length=200)] = []
    labels: Labels = Labels()
    language: Annotated[str, Meta(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$")] | None = None
    keywords: Annotated[list[Line], Meta(max_length=50)] = []


def read_resume(data: object) -> Resume:
    """A résumé from decoded JSON. InvalidError names the field that does not fit."""
    try:
        resume = msgspec.convert(data, Resume)
    except msgspec.ValidationError as problem:
        told, field = explain(problem)
        raise InvalidError(f"The document does not fit: {told}.", field=f"data.{field}".rstrip(".")) from None
    return resume


def explain(problem: msgspec.ValidationError) -> tuple[str, str]:
    """What is wrong and where, from `Object missing required field `name` - at `$.profile``."""
    told, _, place = str(problem).partition(" - at `")
    return told, place.rstrip("`").removeprefix("$").removeprefix(".")


def printable(resume: Resume) -> dict[str, Any]:
    """As templates read it, without the characters that no font draws."""
    return cast("dict[str, Any]", _cleaned(msgspec.to_builtins(resume)))


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return "".join(c for c in value if c in "\n\t" or c.isprintable() or c in "\u200c\u200d\u200e\u200f")
    if isinstance(value, dict):
        return {name: _cleaned(inner) for name, inner in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_cleaned(inner) for inner in cast("list[object]", value)]
    return value


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    data: dict[str, Any]


def samples() -> Iterator[tuple[str, Sample]]:
    """The sample set, by name: short and long, and in several scripts."""
    for path in sorted(SAMPLES.glob("*.json")):
        yield path.stem, msgspec.json.decode(path.read_bytes(), type=Sample)


def title_of(title: str | None, data: object) -> str:
    """A title for people: the document's own, else the name on it."""
    profile = cast("dict[str, Any]", data).get("profile") if isinstance(data, dict) else None
    name = cast("dict[str, Any]", profile).get("name") if isinstance(profile, dict) else None
    return title or (f"{name}" if isinstance(name, str) and name else "Document")
