"""Capture pages and images of the web: from a URL to facts and bytes. Other systems build on it.

    async with BrowserPool(policy) as browsers, EgressClient(policy) as egress, MediaDecoder() as decoder:
        page = await capture_page(url, browsers=browsers, egress=egress, decoder=decoder)
        image = await fetch_image(page.og_image_url, egress=egress, decoder=decoder)

Everything that a page sends is untrusted. Requests pass the egress policy, pages run in Chromium's sandbox,
and images and PDFs are decoded in child processes without rights.
"""

from holdfast.systems.capture.browser_page import BrowserPage
from holdfast.systems.capture.browser_pool import BrowserPool
from holdfast.systems.capture.chromium_command import BrowserOptions, find_chromium
from holdfast.systems.capture.errors import (
    BrowserCrashedError,
    BrowserStartError,
    CaptureError,
    NotAPageError,
)
from holdfast.systems.capture.favicons import find_favicon, list_icon_urls
from holdfast.systems.capture.images import describe_image, fetch_image
from holdfast.systems.capture.media_decoder import MediaDecoder
from holdfast.systems.capture.page_capture import capture_page
from holdfast.systems.capture.page_facts import ImageFacts, PageCapture, PageFacts
from holdfast.systems.capture.page_reader import read_page
from holdfast.systems.capture.readable_text import extract_readable_text

__all__ = [
    "BrowserCrashedError",
    "BrowserOptions",
    "BrowserPage",
    "BrowserPool",
    "BrowserStartError",
    "CaptureError",
    "ImageFacts",
    "MediaDecoder",
    "NotAPageError",
    "PageCapture",
    "PageFacts",
    "capture_page",
    "describe_image",
    "extract_readable_text",
    "fetch_image",
    "find_chromium",
    "find_favicon",
    "list_icon_urls",
    "read_page",
]
