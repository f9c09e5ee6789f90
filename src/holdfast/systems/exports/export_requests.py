"""Parse export requests and report all invalid fields at once."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar, cast, get_args
from uuid import UUID

import msgspec
from msgspec import Meta

from holdfast.systems.field_errors import BadRequestError, FieldError, find_unknown_fields
from holdfast.systems.printing import ColorMode, PageLayout, PageMargins, PageSize, PdfStandard, RenderQuality

T = TypeVar("T")
MAX_DOCUMENTS_PER_BATCH: Final = 10
MIN_MARGIN_INCHES, MAX_MARGIN_INCHES = 0.0, 2.0
MARGIN_SIDES: Final = ("top", "bottom", "left", "right")
OPTION_NAMES: Final = ("pageSize", "margins", "quality", "colorMode", "standard")


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Page options of an export: page size, margins, quality, color mode and PDF standard."""

    page_size: PageSize = "Letter"
    margins: PageMargins = PageMargins(top=1, bottom=1, left=1, right=1)
    quality: RenderQuality = "normal"
    color_mode: ColorMode = "color"
    standard: PdfStandard | None = None

    @property
    def layout(self) -> PageLayout:
        return PageLayout(
            page_size=self.page_size,
            margins=self.margins,
            quality=self.quality,
            color_mode=self.color_mode,
        )


class StartExportRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Request body to export one document. Only the OpenAPI document uses this type."""

    document_id: UUID
    template_slug: str | None = None
    options: ExportOptions = ExportOptions()


class StartExportBatchRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Request body to export several documents. Only the OpenAPI document uses this type."""

    document_ids: Annotated[list[UUID], Meta(min_length=1, max_length=MAX_DOCUMENTS_PER_BATCH)]
    template_slug: str | None = None
    options: ExportOptions = ExportOptions()


class ExportRequest(msgspec.Struct, frozen=True):
    """A validated export request: the ids of the documents, the template and the page options."""

    document_ids: list[UUID]
    template: str
    options: ExportOptions


class _ExportRequestParser:
    """Parser of an export request that collects the errors of all fields."""

    def __init__(self, body: object) -> None:
        self.errors: list[FieldError] = []
        self._body = self._require_object(body, "body")

    def _add_error(self, field: str, message: str) -> None:
        self.errors.append(FieldError(field, message))

    def _require_object(self, value: object, field: str) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._add_error(field, "must be an object")
            return {}
        return cast("dict[str, Any]", value)

    def refuse_unknown_fields(self, allowed: tuple[str, ...]) -> None:
        self.errors += find_unknown_fields(self._body, allowed)

    def parse_document_id(self) -> list[UUID]:
        document_id = self._parse_uuid(self._body.get("documentId"), "documentId")
        return [document_id] if document_id else []

    def parse_document_ids(self) -> list[UUID]:
        value: Any = self._body.get("documentIds")
        if not isinstance(value, list) or not value:
            self._add_error("documentIds", "must be a list of document ids")
            return []
        items = cast("list[object]", value)
        if len(items) > MAX_DOCUMENTS_PER_BATCH:
            self._add_error("documentIds", f"must have at most {MAX_DOCUMENTS_PER_BATCH} documents per batch")
            return []
        ids = [self._parse_uuid(item, f"documentIds[{index}]") for index, item in enumerate(items)]
        return list(dict.fromkeys(document_id for document_id in ids if document_id))

    def _parse_uuid(self, value: object, field: str) -> UUID | None:
        try:
            return UUID(value if isinstance(value, str) else "")
        except ValueError:
            self._add_error(field, "must be a UUID")
            return None

    def parse_template_name(self, templates: list[str], default: str) -> str:
        value = self._body.get("templateSlug")
        if value is None:
            return default
        if not isinstance(value, str) or value not in templates:
            self._add_error("templateSlug", f"must be one of {', '.join(templates)}")
            return default
        return value

    def parse_options(self) -> ExportOptions:
        options = self._require_object(self._body.get("options"), "options")
        self.errors += find_unknown_fields(options, OPTION_NAMES, "options.")
        defaults = ExportOptions()
        return ExportOptions(
            page_size=self._parse_choice(options, "pageSize", get_args(PageSize), defaults.page_size),
            margins=self._parse_margins(options.get("margins"), defaults.margins),
            quality=self._parse_choice(options, "quality", get_args(RenderQuality), defaults.quality),
            color_mode=self._parse_choice(options, "colorMode", get_args(ColorMode), defaults.color_mode),
            standard=self._parse_choice(options, "standard", get_args(PdfStandard), defaults.standard),
        )

    def _parse_choice(self, options: dict[str, Any], name: str, choices: tuple[str, ...], default: T) -> T:
        value = options.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in choices:
            self._add_error(f"options.{name}", f"must be one of {', '.join(choices)}")
            return default
        return cast("T", value)

    def _parse_margins(self, value: object, defaults: PageMargins) -> PageMargins:
        margins = self._require_object(value, "options.margins")
        self.errors += find_unknown_fields(margins, MARGIN_SIDES, "options.margins.")
        sizes: dict[str, float] = {}
        for side in MARGIN_SIDES:
            size = margins.get(side, getattr(defaults, side))
            is_number = isinstance(size, int | float) and not isinstance(size, bool)
            if not is_number or not MIN_MARGIN_INCHES <= size <= MAX_MARGIN_INCHES:
                self._add_error(f"options.margins.{side}", "must be a number from 0 to 2 (inches)")
            else:
                sizes[side] = float(size)
        return PageMargins(**sizes) if len(sizes) == len(MARGIN_SIDES) else defaults


def parse_export_request(
    body: object, templates: list[str], default_template: str, *, kind: Literal["one", "batch"]
) -> ExportRequest:
    """Parse the request body of an export or an export batch. Raise BadRequestError with all errors."""
    parser = _ExportRequestParser(body)
    parser.refuse_unknown_fields(
        ("documentId" if kind == "one" else "documentIds", "templateSlug", "options")
    )
    document_ids = parser.parse_document_id() if kind == "one" else parser.parse_document_ids()
    request = ExportRequest(
        document_ids, parser.parse_template_name(templates, default_template), parser.parse_options()
    )
    if parser.errors:
        raise BadRequestError(parser.errors)
    return request
