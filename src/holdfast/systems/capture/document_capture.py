"""Capture URLs that are files: the first page of a PDF. Images are left to `fetch_image`."""

from __future__ import annotations

import asyncio

from holdfast.egress import EgressClient, EgressError
from holdfast.systems.capture.errors import (
    CaptureError,
    NotAPageError,
    build_capture_error,
    build_status_error,
)
from holdfast.systems.capture.media_decoder import MediaDecoder
from holdfast.systems.capture.page_facts import PageCapture
from holdfast.systems.capture.page_metadata import MAX_TITLE_CHARS, clean_text
from holdfast.systems.capture.page_reader import HTML_TYPES

MAX_PDF_BYTES = 50 * 1024 * 1024
DOCUMENT_TIMEOUT_S = 30.0
PDF_TYPES = ("application/pdf", "application/x-pdf")
UNKNOWN_TYPES = ("", "application/octet-stream", "binary/octet-stream", "application/download")
PDF_MAGIC = b"%PDF-"


async def capture_document(
    url: str, *, egress: EgressClient, decoder: MediaDecoder, width: int
) -> PageCapture | None:
    """Capture the first page of a PDF. Return None for an HTML page, which needs a browser.

    Raise NotAPageError for images and other files.
    """
    try:
        async with asyncio.timeout(DOCUMENT_TIMEOUT_S):
            file = await _fetch_pdf(url, egress)
    except EgressError as error:
        raise build_capture_error(error) from error
    except TimeoutError:
        raise CaptureError("The server did not send the file in time.", retry=True) from None
    if file is None:
        return None
    content, final_url = file
    page = await decoder.render_pdf_page(content, width=width)
    name = final_url.partition("?")[0].rstrip("/").rpartition("/")[2]
    return PageCapture(
        final_url=final_url,
        title=clean_text(page.title, MAX_TITLE_CHARS) or clean_text(name, MAX_TITLE_CHARS),
        text=page.text.strip() or None,
        screenshot=page.content,
        screenshot_type=page.content_type,
        width=page.width,
        height=page.height,
    )


async def _fetch_pdf(url: str, egress: EgressClient) -> tuple[bytes, str] | None:
    async with egress.stream("GET", url) as response:
        content_type = response.content_type
        if response.status >= 400:
            raise build_status_error(response.status)
        if content_type in HTML_TYPES:
            return None
        body = bytearray()
        async for chunk in response.iterate_bytes():
            body += chunk
            is_unknown = content_type in UNKNOWN_TYPES and PDF_MAGIC in body[:1024]
            if content_type not in PDF_TYPES and not is_unknown:
                raise _build_type_error(content_type)
            if len(body) > MAX_PDF_BYTES:
                raise CaptureError(f"The PDF is larger than {MAX_PDF_BYTES:,} bytes.", retry=False)
        return bytes(body), response.url


def _build_type_error(content_type: str) -> NotAPageError:
    kind = "an image" if content_type.startswith("image/") else "a file"
    return NotAPageError(f"The URL is {kind} and not a page.", content_type=content_type)
