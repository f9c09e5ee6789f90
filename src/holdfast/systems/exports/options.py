"""What a request for an export may say, with every field that is wrong named at once."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar, cast, get_args
from uuid import UUID

import msgspec
from msgspec import Meta

from holdfast.systems.printing import ColorMode, Layout, Margins, PageSize, Quality, Standard

T = TypeVar("T")
MOST_DOCUMENTS: Final = 10
MARGIN: Final = (0.0, 2.0)  # inches
SIDES: Final = ("top", "bottom", "left", "right")


class FieldError(msgspec.Struct, frozen=True):
    field: str
    message: str


class BadRequestError(Exception):
    """Answered with 400 and the fields."""

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__("The request is not valid")
        self.errors = errors


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """As it is stored with the job."""

    page_size: PageSize = "Letter"
    margins: Margins = Margins(top=1, bottom=1, left=1, right=1)
    quality: Quality = "normal"
    color_mode: ColorMode = "color"
    standard: Standard | None = None

    @property
    def layout(self) -> Layout:
        return Layout(
            page_size=self.page_size,
            margins=self.margins,
            quality=self.quality,
            color_mode=self.color_mode,
        )


class ExportBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A request for one document, as OpenAPI tells it; `read_wanted` reads it field by field."""

    document_id: UUID
    template_slug: str | None = None
    options: ExportOptions = ExportOptions()


class BatchBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    document_ids: Annotated[list[UUID], Meta(min_length=1, max_length=MOST_DOCUMENTS)]
    template_slug: str | None = None
    options: ExportOptions = ExportOptions()


class Wanted(msgspec.Struct, frozen=True):
    documents: list[UUID]
    template: str
    options: ExportOptions


class Reader:
    """Reads fields one by one and remembers what was wrong with them."""

    def __init__(self, body: object) -> None:
        self.errors: list[FieldError] = []
        self._body = self._object(body, "body")

    def wrong(self, field: str, message: str) -> None:
        self.errors.append(FieldError(field, message))

    def _object(self, value: object, field: str) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.wrong(field, "must be an object")
            return {}
        return cast("dict[str, Any]", value)

    def document(self) -> list[UUID]:
        found = self._uuid(self._body.get("documentId"), "documentId")
        return [found] if found else []

    def documents(self) -> list[UUID]:
        given: Any = self._body.get("documentIds")
        if not isinstance(given, list) or not given:
            self.wrong("documentIds", "must be a list of documents")
            return []
        listed = cast("list[object]", given)
        if len(listed) > MOST_DOCUMENTS:
            self.wrong("documentIds", f"at most {MOST_DOCUMENTS} documents per batch")
            return []
        found = [self._uuid(each, f"documentIds[{n}]") for n, each in enumerate(listed)]
        return list(dict.fromkeys(each for each in found if each))

    def _uuid(self, value: object, field: str) -> UUID | None:
        try:
            return UUID(value if isinstance(value, str) else "")
        except ValueError:
            self.wrong(field, "must be a UUID")
            return None

    def template(self, known: list[str], default: str) -> str:
        value = self._body.get("templateSlug")
        if value is None:
            return default
        if not isinstance(value, str) or value not in known:
            self.wrong("templateSlug", f"must be one of {', '.join(known)}")
            return default
        return value

    def options(self) -> ExportOptions:
        given = self._object(self._body.get("options"), "options")
        plain = ExportOptions()
        return ExportOptions(
            page_size=self._choice(given, "pageSize", get_args(PageSize), plain.page_size),
            margins=self._margins(given.get("margins"), plain.margins),
            quality=self._choice(given, "quality", get_args(Quality), plain.quality),
            color_mode=self._choice(given, "colorMode", get_args(ColorMode), plain.color_mode),
            standard=self._choice(given, "standard", get_args(Standard), plain.standard),
        )

    def _choice(self, given: dict[str, Any], name: str, choices: tuple[str, ...], default: T) -> T:
        value = given.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in choices:
            self.wrong(f"options.{name}", f"must be one of {', '.join(choices)}")
            return default
        return cast("T", value)

    def _margins(self, value: object, default: Margins) -> Margins:
        given = self._object(value, "options.margins")
        sides: dict[str, float] = {}
        for side in SIDES:
            size = given.get(side, getattr(default, side))
            if (
                isinstance(size, bool)
                or not isinstance(size, int | float)
                or not MARGIN[0] <= size <= MARGIN[1]
            ):
                self.wrong(f"options.margins.{side}", "must be a number from 0 to 2 (inches)")
            else:
                sides[side] = float(size)
        return Margins(**sides) if len(sides) == len(SIDES) else default


def read_wanted(body: object, known: list[str], default: str, *, kind: Literal["one", "batch"]) -> Wanted:
    reader = Reader(body)
    documents = reader.document() if kind == "one" else reader.documents()
    wanted = Wanted(documents, reader.template(known, default), reader.options())
    if reader.errors:
        raise BadRequestError(reader.errors)
    return wanted
