"""What a capture returns: facts about a page, its screenshot, and facts about an image."""

from __future__ import annotations

import msgspec


class IconLink(msgspec.Struct, frozen=True):
    """An icon that a page names. `size` is its declared side in pixels, 0 if unknown."""

    url: str
    size: int = 0


class PageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a page states about itself.

    `final_url` is the URL after redirects. `og_image_url` is the image that the page names for previews, or
    its largest image. `favicon_urls` are its icons, best first. `html` is cut at 5 MiB. `text` is set for
    documents without HTML (PDF).
    """

    final_url: str
    title: str | None = None
    description: str | None = None
    site_name: str | None = None
    og_image_url: str | None = None
    favicon_urls: tuple[str, ...] = ()
    manifest_url: str | None = None
    html: str = ""
    text: str | None = None


class PageCapture(PageFacts, frozen=True, kw_only=True):
    """A page with its screenshot, whose size is `width` x `height` pixels."""

    screenshot: bytes
    screenshot_type: str
    width: int
    height: int


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An image that was decoded and encoded again. `width` and `height` are those of `content`."""

    content: bytes
    content_type: str
    width: int
    height: int
    blurhash: str
    ocr_text: str | None = None
    caption: str | None = None
