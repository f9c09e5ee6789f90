"""Take the screenshot of a page and read its facts, within 30 seconds.

A page that does not finish is captured as far as it has come: many pages load advertisements for ever. Each
wait has its own limit, and all of them together have the budget.
"""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from holdfast.egress import EgressClient, EgressError
from holdfast.systems.capture.browser_page import BrowserPage
from holdfast.systems.capture.browser_pool import DEFAULT_VIEWPORT, BrowserPool
from holdfast.systems.capture.devtools import DevToolsError
from holdfast.systems.capture.document_capture import capture_document
from holdfast.systems.capture.errors import (
    BrowserCrashedError,
    CaptureError,
    NotAPageError,
    build_capture_error,
    build_status_error,
)
from holdfast.systems.capture.media_decoder import MediaDecoder
from holdfast.systems.capture.page_facts import PageCapture
from holdfast.systems.capture.page_metadata import MAX_HTML_CHARS, parse_page_facts

CAPTURE_BUDGET_S = 30.0
RESPONSE_TIMEOUT_S = 15.0
LOAD_TIMEOUT_S = 8.0
QUIET_TIMEOUT_S = 2.5
SCRIPT_TIMEOUT_S = 4.0
PREPARE_TIMEOUT_S = 6.0
SCREENSHOT_TIMEOUT_S = 8.0
MAX_SCREENSHOT_HEIGHT = 10_000
MAX_SCRIPT_ATTEMPTS = 3
DOCUMENT_SUFFIXES = (".pdf", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".avif", ".svg", ".bmp", ".ico")
SHOWN_TYPES = ("text/", "application/xhtml+xml", "application/xml", "application/json")
SCRIPTS_FOLDER = Path(__file__).parent / "page_scripts"

# The beginnings of Chromium's network errors, what they mean, and whether another attempt can succeed.
NETWORK_ERRORS = (
    ("net::ERR_CERT_", "The certificate of the server is not valid.", False),
    ("net::ERR_SSL_", "The server does not speak a TLS version that is safe.", False),
    ("net::ERR_TOO_MANY_REDIRECTS", "The page redirects for ever.", False),
    ("net::ERR_UNSAFE_PORT", "The port of the URL is not allowed.", False),
    ("net::ERR_INVALID_", "The server did not send a valid response.", False),
    ("net::ERR_BLOCKED_BY_", "The page may not be loaded.", False),
    ("net::ERR_TIMED_OUT", "The server did not respond in time.", True),
)


class _DownloadStartedError(Exception):
    """The URL is a file that the browser does not show."""


async def capture_page(
    url: str, *, browsers: BrowserPool, egress: EgressClient, decoder: MediaDecoder, full_page: bool = False
) -> PageCapture:
    """Capture a page: its screenshot as WebP, and its facts. Of a PDF, capture the first page.

    With `full_page`, the screenshot has the height of the page, at most 10,000 pixels. Raise NotAPageError
    for images and other files, and CaptureError for everything else that fails.
    """
    try:
        target = browsers.policy.check_url(url)
        await browsers.policy.resolve(target.host, target.port)
    except EgressError as error:
        raise build_capture_error(error) from error
    if urlsplit(url).path.lower().endswith(DOCUMENT_SUFFIXES):
        capture = await capture_document(url, egress=egress, decoder=decoder, width=DEFAULT_VIEWPORT[0])
        if capture is not None:
            return capture
    try:
        async with browsers.open_page() as page:
            return await _capture_in_budget(page, url, full_page)
    except _DownloadStartedError:
        capture = await capture_document(url, egress=egress, decoder=decoder, width=DEFAULT_VIEWPORT[0])
    if capture is None:
        raise NotAPageError("The URL is a download and not a page.", content_type="text/html")
    return capture


async def _capture_in_budget(page: BrowserPage, url: str, full_page: bool) -> PageCapture:
    try:
        async with asyncio.timeout(CAPTURE_BUDGET_S):
            await _load_page(page, url)
            return await _read_loaded_page(page, full_page)
    except TimeoutError:
        raise CaptureError(
            f"The page was not ready within {CAPTURE_BUDGET_S:.0f} seconds.", retry=True
        ) from None
    except DevToolsError:
        if page.has_crashed:
            raise BrowserCrashedError("The page crashed.") from None
        raise


async def _load_page(page: BrowserPage, url: str) -> None:
    """Navigate to a URL and wait until the page has loaded, or until it has had its time."""
    try:
        async with asyncio.timeout(RESPONSE_TIMEOUT_S):
            network_error = await page.navigate(url)
    except TimeoutError:
        raise CaptureError("The server did not respond in time.", retry=True) from None
    if network_error is not None:
        if page.downloads or network_error == "net::ERR_ABORTED":
            raise _DownloadStartedError
        raise _build_navigation_error(page, network_error)
    _check_response(page)
    if await page.wait_until_loaded(LOAD_TIMEOUT_S):
        await page.wait_until_quiet(QUIET_TIMEOUT_S)
    _check_response(page)  # a script may have moved to another page


def _check_response(page: BrowserPage) -> None:
    response = page.response
    if response is None:
        raise CaptureError("The server did not send a page.", retry=True)
    if response.status >= 400:
        if page.proxy.refusals:
            raise CaptureError(page.proxy.refusals[-1].reason, retry=False)
        raise build_status_error(response.status)
    if response.media_type and not response.media_type.startswith(SHOWN_TYPES):
        raise NotAPageError("The URL is not a web page.", content_type=response.media_type)


async def _read_loaded_page(page: BrowserPage, full_page: bool) -> PageCapture:
    width, viewport_height = DEFAULT_VIEWPORT
    prepared = await _prepare_page(page, full_page)
    content = await _run_page_script(page, "read_page.js", MAX_HTML_CHARS)
    url = str(content["url"])
    if not url.startswith(("http://", "https://")):
        raise CaptureError("The page moved to an address that cannot be loaded.", retry=True)
    height = viewport_height
    if full_page:
        height = min(max(viewport_height, int(prepared.get("height") or 0)), MAX_SCREENSHOT_HEIGHT)
    async with asyncio.timeout(SCREENSHOT_TIMEOUT_S):
        screenshot = await page.take_screenshot(width, height)
    largest_image = prepared.get("largestImage")
    facts = await asyncio.to_thread(parse_page_facts, str(content["html"]), url, largest_image)
    return PageCapture(
        **{name: getattr(facts, name) for name in facts.__struct_fields__},
        screenshot=screenshot,
        screenshot_type="image/webp",
        width=width,
        height=height,
    )


async def _prepare_page(page: BrowserPage, full_page: bool) -> dict[str, Any]:
    """Hide banners and load lazy images. A page that does not allow it is captured as it is."""
    budget_ms = (PREPARE_TIMEOUT_S - 1) * 1000
    try:
        async with asyncio.timeout(PREPARE_TIMEOUT_S):
            result = await page.run_script(
                _read_script("prepare_page.js"), full_page, MAX_SCREENSHOT_HEIGHT, budget_ms
            )
    except TimeoutError:
        async with asyncio.timeout(SCRIPT_TIMEOUT_S):
            await page.stop_scripts()
        return {}
    except DevToolsError:
        return {}
    return cast("dict[str, Any]", result) if isinstance(result, dict) else {}


async def _run_page_script(page: BrowserPage, name: str, *arguments: object) -> dict[str, Any]:
    """Run a script. Repeat it if the page moved to another one meanwhile."""
    for attempt in range(1, MAX_SCRIPT_ATTEMPTS + 1):
        try:
            async with asyncio.timeout(SCRIPT_TIMEOUT_S):
                result: dict[str, Any] = await page.run_script(_read_script(name), *arguments)
                return result
        except DevToolsError:
            if attempt == MAX_SCRIPT_ATTEMPTS or page.has_crashed:
                raise
            await page.wait_until_loaded(QUIET_TIMEOUT_S)
    raise AssertionError("unreachable")


@cache
def _read_script(name: str) -> str:
    return (SCRIPTS_FOLDER / name).read_text(encoding="utf-8")


def _build_navigation_error(page: BrowserPage, network_error: str) -> CaptureError:
    # Nothing else has been loaded yet, so a refusal is that of the page or of one of its redirects.
    if page.proxy.refusals:
        return CaptureError(page.proxy.refusals[-1].reason, retry=False)
    for beginning, message, retry in NETWORK_ERRORS:
        if network_error.startswith(beginning):
            return CaptureError(message, retry=retry)
    error = CaptureError("The server cannot be reached.", retry=True)
    error.add_note(network_error)
    return error
