"""Find the icon of a page: link tags, the manifest of web applications, and /favicon.ico."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.egress import EgressClient, EgressError
from holdfast.systems.capture.errors import CaptureError
from holdfast.systems.capture.images import fetch_image_bytes
from holdfast.systems.capture.media_decoder import MediaDecoder
from holdfast.systems.capture.page_facts import IconLink, PageFacts
from holdfast.systems.capture.page_metadata import MAX_ICONS, order_icons, parse_icon_size, resolve_url

MAX_ICON_BYTES = 2 * 1024 * 1024
MAX_MANIFEST_BYTES = 512 * 1024
MAX_FETCHED_ICONS = 6
ICON_SIDE = 128


async def find_favicon(
    page: PageFacts | str, *, egress: EgressClient, decoder: MediaDecoder
) -> tuple[bytes, str] | None:
    """Return the best icon of a page as PNG with its content type, or None if it has no usable icon.

    `page` is the facts of a page, or the URL of an icon. Icons are decoded and encoded again. SVG icons are
    skipped, because they may contain scripts.
    """
    urls = [page] if isinstance(page, str) else await list_icon_urls(page, egress=egress)
    for url in urls[:MAX_FETCHED_ICONS]:
        try:
            content = await fetch_image_bytes(url, egress, MAX_ICON_BYTES)
            icon = await decoder.decode_image(content, max_side=ICON_SIDE, output_format="PNG")
        except CaptureError:
            continue
        return icon.content, icon.content_type
    return None


async def list_icon_urls(page: PageFacts, *, egress: EgressClient) -> list[str]:
    """Return the icons of the link tags, and before the last resort /favicon.ico those of the manifest."""
    *linked, last_resort = page.favicon_urls or ("",)
    if linked or page.manifest_url is None:
        return list(page.favicon_urls)
    icons = await _fetch_manifest_icons(page.manifest_url, egress)
    return [url for url in [*(icon.url for icon in order_icons(icons)), last_resort] if url]


async def _fetch_manifest_icons(url: str, egress: EgressClient) -> list[IconLink]:
    body = bytearray()
    try:
        async with egress.stream("GET", url, headers={"Accept": "application/manifest+json,*/*"}) as response:
            async for chunk in response.iterate_bytes():
                body += chunk
                if len(body) > MAX_MANIFEST_BYTES:
                    return []
        manifest: Any = msgspec.json.decode(bytes(body))
    except (EgressError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    if not isinstance(manifest, dict):
        return []
    return _parse_manifest_icons(cast("dict[str, Any]", manifest).get("icons"), url)


def _parse_manifest_icons(entries: Any, url: str) -> list[IconLink]:
    values = cast("list[object]", entries) if isinstance(entries, list) else []
    icons: list[IconLink] = []
    for entry in values[:MAX_ICONS]:
        if isinstance(entry, dict):
            fields = cast("dict[str, Any]", entry)
            link = resolve_url(url, fields.get("src"))
            if link is not None:
                icons.append(IconLink(link, parse_icon_size(str(fields.get("sizes") or ""))))
    return icons
