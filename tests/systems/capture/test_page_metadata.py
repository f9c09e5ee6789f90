"""Facts of pages: the order of sources, hostile values and icons."""

from __future__ import annotations

import pytest

from holdfast.systems.capture import extract_readable_text
from holdfast.systems.capture.page_facts import IconLink
from holdfast.systems.capture.page_metadata import order_icons, parse_icon_size, parse_page_facts

URL = "https://example.com/a/b"
JSON_LD = (
    '<script type="application/ld+json">{"@graph": [{"@type": "Article", "headline": "From JSON",'
    ' "description": "Graph", "image": [{"url": "/json.png"}]}]}</script>'
)


@pytest.mark.parametrize(
    ("html", "title", "image"),
    [
        ("<title>Plain</title>", "Plain", None),
        ("<h1>Heading</h1>", "Heading", None),
        ("<title>Plain</title><meta name='twitter:title' content='Card'>", "Card", None),
        (JSON_LD, "From JSON", "https://example.com/json.png"),
        ("<meta name='twitter:image' content='//cdn.example.com/t.png'>", None, "https://cdn.example.com/t.png"),
        ("<link rel='image_src' href='i.png'>", None, "https://example.com/a/i.png"),
        ("<base href='https://cdn.example.com/x/'><meta property='og:image' content='o.png'>", None,
         "https://cdn.example.com/x/o.png"),
        ("<img src=s width=9 height=9><img src=l.png width=640 height=400>", None, "https://example.com/a/l.png"),
        ("<script type='application/ld+json'>{not json</script><title>Still</title>", "Still", None),
        ("<script type='application/ld+json'>" + "[" * 5000 + "</script><title>Deep</title>", "Deep", None),
        ("<meta property='og:image' content='javascript:alert(1)'>", None, None),
        ("<meta property='og:image' content='file:///etc/passwd'>", None, None),
        ("<meta property='og:image' content='http://[::1'>", None, None),
        ("<title>a\0b\x1b[31m\u202ered</title>", "ab[31mred", None),
        ("<?xml version='1.0' encoding='utf-8'?><html><head><title>XHTML</title></head>", "XHTML", None),
        ("<div>" * 20_000 + "<title>Nested</title>", None, None),
        ("", None, None),
        ("<!-- only a comment -->", None, None),
    ],
)  # fmt: skip
def test_facts(html: str, title: str | None, image: str | None) -> None:
    facts = parse_page_facts(html, URL)
    if "Nested" not in html:
        assert facts.title == title
    assert facts.og_image_url == image
    assert facts.favicon_urls[-1] == "https://example.com/favicon.ico"


def test_long_values_are_cut() -> None:
    facts = parse_page_facts(
        f"<title>{'x' * 10_000}</title><meta name=description content='{'y' * 10_000}'>"
        f"<meta property='og:image' content='/{'z' * 10_000}'>",
        URL,
    )
    assert len(facts.title or "") == 500
    assert len(facts.description or "") == 2000
    assert facts.og_image_url is None


def test_icons_are_ordered_by_their_use() -> None:
    sized = [IconLink(f"https://e.com/{size}", size) for size in (16, 512, 180, 64)]
    icons = [IconLink("https://e.com/i.svg"), *sized]
    assert [icon.size for icon in order_icons(icons)] == [180, 512, 64, 16, 0]
    assert parse_icon_size("16x16 48x48") == 48
    assert parse_icon_size("any") == parse_icon_size("99999x99999") == 0


def test_readable_text_leaves_menus_out() -> None:
    paragraph = "Kelp grows in cold water and holds on to rocks with a strong organ, its holdfast. " * 5
    html = f"""<html><body><nav><a href=/>Home</a><a href=/x>Imprint</a></nav>
    <article><h1>Kelp</h1><p>{paragraph}</p><p>{paragraph}</p></article><footer>Copyright</footer></body></html>"""
    text = extract_readable_text(html, URL)
    assert text is not None
    assert "strong organ" in text
    assert "Imprint" not in text
    assert extract_readable_text("", URL) is None
