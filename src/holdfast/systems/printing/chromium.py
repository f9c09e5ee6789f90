"""Print HTML templates as PDF in the shared Chromium, without scripts and network access."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import msgspec
import pypdf

from holdfast.errors import InvalidError, RefusedError
from holdfast.systems.capture import BrowserPool, BrowserStartError
from holdfast.systems.printing.page_layout import PageMargins, PdfMetadata

PDF_LOAD_TIMEOUT_S = 10.0
PDF_PRINT_TIMEOUT_S = 60.0
# The page may use inline styles, images and fonts. Scripts and everything else are blocked.
TEMPLATE_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"


class ChromiumPrinter:
    """Printer of HTML templates as PDF, with pages of a shared browser pool."""

    def __init__(self, browsers: BrowserPool) -> None:
        self._browsers = browsers

    async def print_pdf(self, template: Path, inputs: dict[str, str], margins: PageMargins) -> bytes:
        """Fill a template and print it. Raise InvalidError if Chromium cannot be started.

        A style sheet does not know how many pages there will be. A template that looks different on a single
        page reads `single_page`; it is printed again if one page was enough.
        """
        html = await asyncio.to_thread(fill_html_template, template, inputs, margins)
        try:
            async with asyncio.timeout(PDF_PRINT_TIMEOUT_S), self._browsers.open_page(network=False) as page:
                pdf = await page.print_pdf(html, PDF_LOAD_TIMEOUT_S)
                if await asyncio.to_thread(count_pdf_pages, pdf) > 1:
                    return pdf
                single = await asyncio.to_thread(
                    fill_html_template, template, inputs, margins, single_page=True
                )
                return pdf if single == html else await page.print_pdf(single, PDF_LOAD_TIMEOUT_S)
        except BrowserStartError as error:
            # Without this, an export would be retried for minutes where there is no browser.
            raise InvalidError(
                f"The template {template.stem} needs Chromium. {error.message}",
                fix="Choose another template.",
                field="templateSlug",
            ) from error


def count_pdf_pages(pdf: bytes) -> int:
    """Return the number of pages of a PDF."""
    return len(pypdf.PdfReader(io.BytesIO(pdf)).pages)


def add_pdf_metadata(pdf: bytes, metadata: PdfMetadata) -> bytes:
    """Return a PDF with its author, subject and keywords: Chromium writes the title only."""
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf))
    writer.add_metadata(
        {
            "/Title": metadata.title,
            "/Author": metadata.author,
            "/Subject": metadata.subject,
            "/Keywords": ", ".join(metadata.keywords),
        }
    )
    output = io.BytesIO()
    writer.write(output)
    return output.getvalue()


def fill_html_template(
    template: Path, inputs: dict[str, str], margins: PageMargins, *, single_page: bool = False
) -> str:
    """Fill an HTML template with content. Autoescape is on, so markup in a field is printed as text."""
    try:
        import jinja2  # noqa: PLC0415  (an optional dependency that only HTML templates need)
        from jinja2 import sandbox  # noqa: PLC0415
    except ImportError:
        raise RefusedError(
            "HTML templates need the package 'jinja2', which is not installed.",
            fix="pip install 'holdfast[server]'",
        ) from None
    environment = sandbox.SandboxedEnvironment(
        autoescape=True, loader=jinja2.FileSystemLoader(template.parent), undefined=jinja2.ChainableUndefined
    )
    layout: dict[str, Any] = msgspec.json.decode(inputs["layout"])
    content: dict[str, Any] = msgspec.json.decode(inputs["content"])
    try:
        return environment.get_template(template.name).render(
            content=content,
            layout=layout,
            policy=TEMPLATE_SECURITY_POLICY,
            margins=margins,
            single_page=single_page,
        )
    except jinja2.TemplateError as error:
        raise InvalidError(
            f"The template {template.stem} cannot render this document.",
            fix="Check the template with a sample document.",
            field="templateSlug",
        ) from error
