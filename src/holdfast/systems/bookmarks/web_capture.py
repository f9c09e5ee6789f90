"""The capture library with one browser and one HTTP client, which open at first use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from holdfast import Client
from holdfast.egress import EgressClient, EgressPolicy
from holdfast.systems import capture
from holdfast.systems.bookmarks.capture_port import BookmarkCapture, PageSource
from holdfast.systems.providers import ProviderRegistry, UsageAccount


class WebCapture:
    """Captures pages, images and icons with the limits of the settings."""

    def __init__(self, client: Client) -> None:
        settings = client.settings
        self._egress = EgressClient(EgressPolicy.from_settings(settings))
        self._decoder = capture.MediaDecoder()
        self._providers = ProviderRegistry.for_client(client)
        self._browsers = capture.BrowserPool.from_settings(settings)

    async def open(self) -> None:
        """Start the browser. Raise an error that names the fix if it is not installed."""
        await self._browsers.open()

    async def close(self) -> None:
        """Close the browser and the HTTP client."""
        await self._browsers.close()
        await self._decoder.close()
        await self._providers.close()
        await self._egress.close()

    async def capture_page(self, url: str) -> capture.PageCapture:
        """Load a page in the browser, or render the first page of a PDF."""
        return await capture.capture_page(
            url, browsers=self._browsers, egress=self._egress, decoder=self._decoder
        )

    async def read_page(self, url: str) -> capture.PageFacts:
        """Fetch the HTML of a page without the browser."""
        return await capture.read_page(url, egress=self._egress)

    async def fetch_image(self, url: str, *, account: UsageAccount) -> capture.ImageFacts:
        """Fetch an image and check it by decoding it."""
        return await capture.fetch_image(
            url,
            egress=self._egress,
            decoder=self._decoder,
            captions=self._providers.vision,
            account=account,
        )

    async def list_icon_urls(self, page: PageSource) -> Sequence[str]:
        """Return the URLs of the icons of a page. A web manifest is read if the page links no icon."""
        facts = capture.PageFacts(
            final_url=page.final_url,
            favicon_urls=tuple(page.favicon_urls),
            manifest_url=page.manifest_url,
        )
        return await capture.list_icon_urls(facts, egress=self._egress)

    async def find_favicon(self, page_url: str, icon_urls: Sequence[str]) -> tuple[bytes, str] | None:
        """Fetch the best icon of a page."""
        page = capture.PageFacts(final_url=page_url, favicon_urls=tuple(icon_urls))
        return await capture.find_favicon(page, egress=self._egress, decoder=self._decoder)

    async def extract_text(self, page: PageSource, url: str) -> str | None:
        """Return the readable text of a page. A large page takes a while, so a thread does it."""
        if page.text is not None:
            return page.text
        return await asyncio.to_thread(capture.extract_readable_text, page.html, url)


@asynccontextmanager
async def open_web_capture(client: Client) -> AsyncGenerator[BookmarkCapture]:
    """Open the capture library. The browser starts only if a page needs it."""
    web_capture = WebCapture(client)
    try:
        yield web_capture
    finally:
        await web_capture.close()
