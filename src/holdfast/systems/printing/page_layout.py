"""The page layout and the metadata of a PDF document."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import msgspec

PageSize = Literal["A4", "Letter", "Legal"]
RenderQuality = Literal["draft", "normal", "high"]
ColorMode = Literal["color", "grayscale"]
PdfStandard = Literal["a-2b", "a-2u", "a-3b", "ua-1"]

PAGE_SIZE_INCHES: dict[PageSize, tuple[float, float]] = {
    "A4": (8.2677, 11.6929),
    "Letter": (8.5, 11.0),
    "Legal": (8.5, 14.0),
}


class PageMargins(msgspec.Struct, frozen=True, kw_only=True):
    """The margins of a page, in inches."""

    top: float = 0.75
    bottom: float = 0.75
    left: float = 0.8
    right: float = 0.8


class PageLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Page layout of a PDF document: size, margins, quality and color mode.

    `quality` selects the line breaking method and the resolution of previews.
    """

    page_size: PageSize = "A4"
    margins: PageMargins = PageMargins()
    quality: RenderQuality = "normal"
    color_mode: ColorMode = "color"


@dataclass(frozen=True, kw_only=True)
class PdfMetadata:
    """Metadata of a PDF file: title, author, subject, keywords, language and creation time."""

    title: str
    author: str = ""
    subject: str = ""
    keywords: tuple[str, ...] = ()
    language: str | None = None
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True)
class RenderedPdf:
    """A rendered PDF file and its number of pages."""

    pdf: bytes
    page_count: int
