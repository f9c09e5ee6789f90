"""What the steps of a bookmark need from the web: pages, images and icons. `capture` implements it.

The steps call this interface instead of the functions of `holdfast.systems.capture`, so that one object holds
the browser and the HTTP client, and opens them at first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.systems.providers import UsageAccount


class PageSource(Protocol):
    """Facts about a web page that its HTML states."""

    @property
    def title(self) -> str | None: ...
    @property
    def description(self) -> str | None: ...
    @property
    def og_image_url(self) -> str | None: ...
    @property
    def favicon_urls(self) -> Sequence[str]: ...
    @property
    def manifest_url(self) -> str | None: ...
    @property
    def final_url(self) -> str: ...
    @property
    def html(self) -> str: ...
    @property
    def text(self) -> str | None: ...


class CapturedPage(PageSource, Protocol):
    """A web page with its screenshot."""

    @property
    def screenshot(self) -> bytes: ...
    @property
    def screenshot_type(self) -> str: ...


class FetchedImage(Protocol):
    """An image that was decoded and encoded again, and what was found in it."""

    @property
    def content(self) -> bytes: ...
    @property
    def content_type(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def blurhash(self) -> str: ...
    @property
    def ocr_text(self) -> str | None: ...
    @property
    def caption(self) -> str | None: ...


class BookmarkCapture(Protocol):
    """Fetches what a bookmark shows. Errors have a message for users and an attribute `retry`."""

    async def capture_page(self, url: str) -> CapturedPage:
        """Load a page in a browser, or render the first page of a PDF."""
        ...

    async def read_page(self, url: str) -> PageSource:
        """Fetch the HTML of a page without a browser."""
        ...

    async def fetch_image(self, url: str, *, account: UsageAccount) -> FetchedImage:
        """Fetch an image and check it by decoding it. The caption is charged to the account."""
        ...

    async def list_icon_urls(self, page: PageSource) -> Sequence[str]:
        """Return the URLs of the icons of a page, best first, with those of its web manifest."""
        ...

    async def find_favicon(self, page_url: str, icon_urls: Sequence[str]) -> tuple[bytes, str] | None:
        """Fetch the best icon of a page, and return its content and content type, or None."""
        ...

    async def extract_text(self, page: PageSource, url: str) -> str | None:
        """Return the readable text of a page, for the search."""
        ...

    async def close(self) -> None:
        """Close the browser and the HTTP client."""
        ...
