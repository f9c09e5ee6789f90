"""Read the metadata of an HTML page: title, description, preview image and icons.

Open Graph comes first, then Twitter cards, plain HTML and JSON-LD, because sites write the first for
previews. Values of a page are not trusted: they are cut and cleaned, and URLs must be http or https.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, cast
from urllib.parse import urljoin, urlsplit

from holdfast.systems.capture.libraries import load_library
from holdfast.systems.capture.page_facts import IconLink, PageFacts

# An element of lxml, which has no types.
HtmlElement: TypeAlias = Any

MAX_HTML_CHARS = 5 * 1024 * 1024
MAX_TITLE_CHARS = 500
MAX_DESCRIPTION_CHARS = 2000
MAX_URL_CHARS = 4000
MAX_ICONS = 20
MAX_JSON_LD_BLOCKS = 20
MAX_JSON_LD_CHARS = 500_000
MAX_JSON_LD_ITEMS = 500
MIN_PREVIEW_PIXELS = 200 * 100
# The icon that pages show next to a title: large enough for dense screens, and no larger.
BEST_ICON_SIZE = 128
APPLE_ICON_SIZE = 180
MAX_ICON_SIZE = 4096


def parse_page_facts(html: str, url: str, largest_image_url: str | None = None) -> PageFacts:
    """Return the facts of a page. `largest_image_url` is the preview if the page names none."""
    html = html[:MAX_HTML_CHARS]
    root = parse_html(html)
    if root is None:
        return PageFacts(final_url=url, favicon_urls=_build_icon_urls([], url), html=html)
    base = _find_base_url(root, url)
    meta = _read_meta_tags(root)
    items = list(_iterate_json_ld(root))
    preview = _find_preview_image(root, meta, items) or largest_image_url or _find_largest_image(root)
    heading = root.findtext(".//title") or root.findtext(".//h1")
    return PageFacts(
        final_url=url,
        title=clean_text(
            meta.get("og:title")
            or meta.get("twitter:title")
            or heading
            or _find_json_text(items, "headline", "name"),
            MAX_TITLE_CHARS,
        ),
        description=clean_text(
            meta.get("og:description")
            or meta.get("twitter:description")
            or meta.get("description")
            or _find_json_text(items, "description"),
            MAX_DESCRIPTION_CHARS,
        ),
        site_name=clean_text(meta.get("og:site_name") or meta.get("application-name"), MAX_TITLE_CHARS),
        og_image_url=resolve_url(base, preview),
        favicon_urls=_build_icon_urls(_find_icons(root, base), url),
        manifest_url=resolve_url(base, _find_link(root, "manifest")),
        html=html,
    )


def parse_html(html: str) -> HtmlElement:
    """Parse HTML. Return None if there is no element in it."""
    # A declaration of an encoding contradicts text that is already decoded.
    text = re.sub(r"^\s*<\?xml[^>]*\?>", "", html[:MAX_HTML_CHARS]).replace("\0", "")
    try:
        return load_library("lxml.html").document_fromstring(text)
    except (load_library("lxml.etree").LxmlError, ValueError):
        return None


def clean_text(text: object, max_chars: int) -> str | None:
    """Return one line of printable text, or None if nothing is left."""
    if not isinstance(text, str):
        return None
    text = " ".join(text[: max_chars * 4].split())
    text = "".join(character for character in text if character.isprintable())
    return text[:max_chars].strip() or None


def resolve_url(base: str, link: object) -> str | None:
    """Return the absolute http or https URL of a link, or None."""
    if not isinstance(link, str) or not (link := link.strip()) or len(link) > MAX_URL_CHARS:
        return None
    try:
        url = urljoin(base, link)
        parts = urlsplit(url)
    except ValueError:
        return None
    return url if parts.scheme in ("http", "https") and parts.hostname else None


def order_icons(icons: list[IconLink]) -> list[IconLink]:
    """Return icons, best first: those of at least the best size from small to large, then smaller ones."""

    def compute_rank(icon: IconLink) -> tuple[bool, bool, int]:
        is_drawing = urlsplit(icon.url).path.lower().endswith(".svg")
        is_small = icon.size < BEST_ICON_SIZE
        return is_drawing, is_small, -icon.size if is_small else icon.size

    return sorted(icons, key=compute_rank)


def parse_icon_size(sizes: str) -> int:
    """Return the largest side in an attribute such as `16x16 32x32`, 0 if it has none."""
    sides = [int(side) for side in re.findall(r"(\d{1,5})[xX]\d{1,5}", sizes[:200])]
    return max((side for side in sides if side <= MAX_ICON_SIZE), default=0)


def _build_icon_urls(icons: list[IconLink], url: str) -> tuple[str, ...]:
    urls = [icon.url for icon in order_icons(icons)[:MAX_ICONS]]
    usual_place = resolve_url(url, "/favicon.ico")
    return tuple(dict.fromkeys([*urls, usual_place] if usual_place else urls))


def _find_base_url(root: HtmlElement, url: str) -> str:
    element = root.find(".//base[@href]")
    return (resolve_url(url, element.get("href")) if element is not None else None) or url


def _read_meta_tags(root: HtmlElement) -> dict[str, str]:
    """Return the first content of each meta tag, by its property or name."""
    tags: dict[str, str] = {}
    for element in root.iter("meta"):
        name = (
            (element.get("property") or element.get("name") or element.get("itemprop") or "").strip().lower()
        )
        content = (element.get("content") or "").strip()
        if name and content:
            tags.setdefault(name, content)
    return tags


def _find_preview_image(
    root: HtmlElement, meta: Mapping[str, str], items: list[dict[str, Any]]
) -> str | None:
    names = (
        "og:image:secure_url",
        "og:image",
        "og:image:url",
        "twitter:image",
        "twitter:image:src",
        "thumbnail",
    )
    named = next((meta[name] for name in names if name in meta), None)
    return named or _find_json_image(items) or _find_link(root, "image_src") or meta.get("image")


def _find_largest_image(root: HtmlElement) -> str | None:
    """Return the image with the largest declared size, if it is large enough for a preview."""
    best: tuple[int, str | None] = (MIN_PREVIEW_PIXELS - 1, None)
    for element in root.iter("img"):
        sides = [element.get("width") or "", element.get("height") or ""]
        if all(side.isascii() and side.isdigit() and len(side) < 6 for side in sides):
            best = max(best, (int(sides[0]) * int(sides[1]), element.get("src")), key=lambda pair: pair[0])
    return best[1]


def _find_icons(root: HtmlElement, base: str) -> list[IconLink]:
    icons: list[IconLink] = []
    for element in root.iter("link"):
        relations = (element.get("rel") or "").lower().split()
        is_apple = any(relation.startswith("apple-touch-icon") for relation in relations)
        url = resolve_url(base, element.get("href"))
        if url is not None and (is_apple or "icon" in relations):
            size = parse_icon_size(element.get("sizes") or "")
            icons.append(IconLink(url, size or (APPLE_ICON_SIZE if is_apple else 0)))
    return icons


def _find_link(root: HtmlElement, relation: str) -> str | None:
    for element in root.iter("link"):
        if relation in (element.get("rel") or "").lower().split():
            return str(element.get("href") or "") or None
    return None


def _iterate_json_ld(root: HtmlElement) -> Iterator[dict[str, Any]]:
    """Yield the objects of all JSON-LD blocks. Invalid blocks are skipped."""
    blocks = [
        e for e in root.iter("script") if (e.get("type") or "").strip().lower() == "application/ld+json"
    ]
    pending: list[Any] = []
    for block in blocks[:MAX_JSON_LD_BLOCKS]:
        try:
            pending.append(json.loads((block.text or "")[:MAX_JSON_LD_CHARS], strict=False))
        except (ValueError, RecursionError):
            continue
    for _ in range(MAX_JSON_LD_ITEMS):
        if not pending:
            return
        item = pending.pop(0)
        if isinstance(item, list):
            pending = [*item[:MAX_JSON_LD_ITEMS], *pending]
        elif isinstance(item, dict):
            yield cast("dict[str, Any]", item)
            pending.append(cast("dict[str, Any]", item).get("@graph"))


def _find_json_text(items: list[dict[str, Any]], *names: str) -> str | None:
    return next((item[name] for name in names for item in items if isinstance(item.get(name), str)), None)


def _find_json_image(items: list[dict[str, Any]]) -> str | None:
    for item in items:
        image: Any = item.get("image") or item.get("thumbnailUrl")
        images = cast("list[object]", image) if isinstance(image, list) else [image]
        image = images[0] if images else None
        if isinstance(image, dict):
            image = cast("dict[str, Any]", image).get("url") or cast("dict[str, Any]", image).get(
                "contentUrl"
            )
        if isinstance(image, str):
            return image
    return None
