"""The résumé format: the fields of a document with their limits, and sample documents.

All lengths are limited, so that a hostile document is refused when it is submitted and not while it is
rendered. The limits allow documents of hundreds of pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from holdfast.errors import InvalidError

ShortText = Annotated[str, Meta(max_length=500)]
LongText = Annotated[str, Meta(max_length=20_000)]
PersonName = Annotated[str, Meta(min_length=1, max_length=200)]
UrlText = Annotated[str, Meta(max_length=2000)]
SAMPLES_FOLDER = Path(__file__).parent / "samples"


class ResumeLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link in the profile of a résumé."""

    url: UrlText
    label: ShortText | None = None


class ResumeProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Profile of the person in a résumé: name, contact details and summary."""

    name: PersonName
    headline: ShortText | None = None
    email: ShortText | None = None
    phone: ShortText | None = None
    location: ShortText | None = None
    summary: LongText | None = None
    links: Annotated[list[ResumeLink], Meta(max_length=20)] = []


class WorkExperience(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One position in the work experience of a résumé."""

    role: ShortText
    company: ShortText | None = None
    location: ShortText | None = None
    start: ShortText | None = None
    end: ShortText | None = None
    summary: LongText | None = None
    highlights: Annotated[list[LongText], Meta(max_length=200)] = []


class EducationEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One degree or school in a résumé."""

    degree: ShortText
    school: ShortText | None = None
    location: ShortText | None = None
    start: ShortText | None = None
    end: ShortText | None = None
    details: Annotated[list[LongText], Meta(max_length=100)] = []


class SkillGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Skills of a résumé under a common heading."""

    name: ShortText
    items: Annotated[list[ShortText], Meta(max_length=200)] = []


class ResumeProject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One project in a résumé."""

    name: ShortText
    url: UrlText | None = None
    start: ShortText | None = None
    end: ShortText | None = None
    summary: LongText | None = None
    highlights: Annotated[list[LongText], Meta(max_length=100)] = []


class LanguageSkill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A language that the person speaks, and how well."""

    name: ShortText
    level: ShortText | None = None


class ResumeAward(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One award in a résumé."""

    name: ShortText
    issuer: ShortText | None = None
    date: ShortText | None = None


class ResumeSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section of a résumé with its own title, for content that fits no other field."""

    title: ShortText
    paragraphs: Annotated[list[LongText], Meta(max_length=5000)] = []


class CvHeadings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Headings of the résumé sections, in the language of the document."""

    profile: ShortText = "Profile"
    experience: ShortText = "Experience"
    education: ShortText = "Education"
    skills: ShortText = "Skills"
    projects: ShortText = "Projects"
    languages: ShortText = "Languages"
    awards: ShortText = "Awards"
    contact: ShortText = "Contact"
    present: ShortText = "present"


class Resume(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A résumé, which is the data of a document."""

    profile: ResumeProfile
    experience: Annotated[list[WorkExperience], Meta(max_length=2000)] = []
    education: Annotated[list[EducationEntry], Meta(max_length=200)] = []
    skills: Annotated[list[SkillGroup], Meta(max_length=100)] = []
    projects: Annotated[list[ResumeProject], Meta(max_length=500)] = []
    languages: Annotated[list[LanguageSkill], Meta(max_length=50)] = []
    awards: Annotated[list[ResumeAward], Meta(max_length=200)] = []
    sections: Annotated[list[ResumeSection], Meta(max_length=200)] = []
    labels: CvHeadings = CvHeadings()
    language: Annotated[str, Meta(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$")] | None = None
    keywords: Annotated[list[ShortText], Meta(max_length=50)] = []


def parse_resume(data: object) -> Resume:
    """Convert decoded JSON to a résumé. Raise InvalidError, which names the invalid field."""
    try:
        resume = msgspec.convert(data, Resume)
    except msgspec.ValidationError as error:
        message, field = split_validation_error(error)
        raise InvalidError(
            f"The document is not a valid résumé: {message}.", field=f"data.{field}".rstrip(".")
        ) from None
    return resume


def split_validation_error(error: msgspec.ValidationError) -> tuple[str, str]:
    """Split a msgspec validation error into its message and its field.

    Example: ``Object missing required field `name` - at `$.profile` ``.
    """
    message, _, path = str(error).partition(" - at `")
    return message, path.rstrip("`").removeprefix("$").removeprefix(".")


def build_template_content(resume: Resume) -> dict[str, Any]:
    """Build the content of a résumé for templates, without unprintable characters."""
    return cast("dict[str, Any]", _remove_unprintable_characters(msgspec.to_builtins(resume)))


def _remove_unprintable_characters(value: object) -> object:
    if isinstance(value, str):
        # Joiners and direction marks are not build_template_content, but right-to-left scripts need them.
        return "".join(c for c in value if c in "\n\t" or c.isprintable() or c in "\u200c\u200d\u200e\u200f")
    if isinstance(value, dict):
        return {
            name: _remove_unprintable_characters(inner)
            for name, inner in cast("dict[str, object]", value).items()
        }
    if isinstance(value, list):
        return [_remove_unprintable_characters(inner) for inner in cast("list[object]", value)]
    return value


class SampleDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A sample document that users can add to try the export system."""

    title: str
    data: dict[str, Any]


def load_sample_documents() -> Iterator[tuple[str, SampleDocument]]:
    """Yield the name and content of each sample document."""
    for path in sorted(SAMPLES_FOLDER.glob("*.json")):
        yield path.stem, msgspec.json.decode(path.read_bytes(), type=SampleDocument)


def choose_document_title(title: str | None, data: object) -> str:
    """Return the title of a document. Without a title, return the name in its profile, or "Document"."""
    profile = cast("dict[str, Any]", data).get("profile") if isinstance(data, dict) else None
    name = cast("dict[str, Any]", profile).get("name") if isinstance(profile, dict) else None
    return title or (f"{name}" if isinstance(name, str) and name else "Document")
