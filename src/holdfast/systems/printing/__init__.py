"""PDF rendering: documents from Typst or HTML templates, as PDF files and PNG previews."""

from holdfast.systems.printing.fonts import FontCatalog
from holdfast.systems.printing.page_layout import (
    ColorMode,
    PageLayout,
    PageMargins,
    PageSize,
    PdfMetadata,
    PdfStandard,
    RenderedPdf,
    RenderQuality,
)
from holdfast.systems.printing.pdf_renderer import PdfRenderer

__all__ = [
    "ColorMode",
    "FontCatalog",
    "PageLayout",
    "PageMargins",
    "PageSize",
    "PdfMetadata",
    "PdfRenderer",
    "PdfStandard",
    "RenderQuality",
    "RenderedPdf",
]
