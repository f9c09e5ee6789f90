"""Captures of pages that a local site serves: screenshots, facts, PDFs and files."""

from __future__ import annotations

import io
from typing import Protocol

import pytest
from page_site import PageSite, make_image, open_picture
from web_servers import respond

from holdfast.egress import EgressClient
from holdfast.systems.capture import (
    BrowserPool,
    CaptureError,
    MediaDecoder,
    NotAPageError,
    PageCapture,
    capture_page,
    page_capture,
    read_page,
)
from holdfast.systems.capture.page_capture import MAX_SCREENSHOT_HEIGHT
from holdfast.systems.capture.page_reader import decode_html


class Capture(Protocol):
    """Capture a page with the pool, the client and the decoder of the test."""

    async def __call__(self, url: str, *, full_page: bool = False) -> PageCapture: ...


ARTICLE = """<!doctype html><html><head>
<title>Plain title</title><meta name="description" content="Plain description">
<meta property="og:title" content="An  article&#10;about kelp">
<meta property="og:description" content="It holds fast.">
<meta property="og:image" content="/kelp.png"><meta property="og:site_name" content="Tide">
<link rel="icon" href="/small.png" sizes="16x16"><link rel="icon" href="large.png" sizes="192x192">
<link rel="manifest" href="/site.webmanifest">
</head><body style="margin:0;background:#204060"><h1>Kelp</h1><img src="/kelp.png"></body></html>"""


@pytest.fixture(autouse=True)
def generous_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinary pages are captured on any machine. The limits themselves are tested with hard pages."""
    for name in ("CAPTURE_BUDGET_S", "RESPONSE_TIMEOUT_S", "SCRIPT_TIMEOUT_S", "SCREENSHOT_TIMEOUT_S"):
        monkeypatch.setattr(page_capture, name, 300.0)


@pytest.fixture
def capture(site: PageSite, browsers: BrowserPool, egress: EgressClient, decoder: MediaDecoder) -> Capture:
    async def run(url: str, *, full_page: bool = False) -> PageCapture:
        return await capture_page(url, browsers=browsers, egress=egress, decoder=decoder, full_page=full_page)

    return run


async def test_a_page_becomes_a_screenshot_and_facts(site: PageSite, capture: Capture) -> None:
    site.add("/kelp.png", make_image(), "image/png")
    page = await capture(site.add("/articles/kelp", ARTICLE))
    assert page.final_url == site.server.url + "/articles/kelp"
    assert (page.title, page.description, page.site_name) == (
        "An article about kelp",
        "It holds fast.",
        "Tide",
    )
    assert page.og_image_url == site.server.url + "/kelp.png"
    assert page.favicon_urls == (
        site.server.url + "/articles/large.png",
        site.server.url + "/small.png",
        site.server.url + "/favicon.ico",
    )
    assert "<h1>Kelp</h1>" in page.html
    picture = open_picture(page.screenshot)
    assert (picture.format, picture.size, page.screenshot_type) == ("WEBP", (1280, 800), "image/webp")
    assert (page.width, page.height) == (1280, 800)
    red, green, blue = picture.convert("RGB").getpixel((1200, 700))
    assert max(abs(red - 0x20), abs(green - 0x40), abs(blue - 0x60)) < 12


async def test_scripts_redirects_and_lazy_images_are_followed(site: PageSite, capture: Capture) -> None:
    site.add("/lazy.png", make_image(300, 200, (255, 0, 0)), "image/png")
    site.add("/below.png", make_image(1280, 400, (0, 255, 0)), "image/png")
    site.add(
        "/final",
        """<body style="margin:0"><script>document.title = "Written by a script"</script>
        <img data-src="/lazy.png" width="300" height="200">
        <div style="height:3000px"></div>
        <img loading="lazy" src="/below.png" width="1280" height="400"></body>""",
    )
    page = await capture(site.add("/start", "<script>location.href = '/final'</script>"), full_page=True)
    assert page.title == "Written by a script"
    assert page.final_url == site.server.url + "/final"
    assert page.og_image_url == site.server.url + "/below.png"  # the page names none, so it is the largest
    picture = open_picture(page.screenshot).convert("RGB")
    assert picture.size == (page.width, page.height)
    assert 3400 < page.height < 3800
    assert picture.getpixel((100, 100))[0] > 200
    assert picture.getpixel((100, page.height - 100))[1] > 200


async def test_cookie_banners_are_hidden(site: PageSite, capture: Capture) -> None:
    page = await capture(
        site.add(
            "/",
            """<body style="margin:0;background:#fff;overflow:hidden">
            <div id="onetrust-consent-sdk" style="position:fixed;inset:0 0 400px 0;background:#f00">A</div>
            <div class="x1" style="position:fixed;bottom:0;height:400px;width:100%;background:#f00">
            We use cookies. <button>Accept all</button></div></body>""",
        )
    )
    picture = open_picture(page.screenshot).convert("RGB")
    assert min(picture.getpixel((600, 100))) > 240
    assert min(picture.getpixel((600, 700))) > 240


async def test_a_pdf_becomes_its_first_page(site: PageSite, capture: Capture) -> None:
    output = io.BytesIO()
    open_picture(make_image(595, 842, (200, 30, 30))).save(output, "PDF", title="Tide tables")
    for path, content_type, headers in (
        ("/tables.pdf", "application/pdf", {}),
        ("/download", "application/pdf", {"Content_Disposition": "attachment; filename=x.pdf"}),
    ):
        page = await capture(site.add(path, output.getvalue(), content_type, **headers))
        assert page.title == "Tide tables"
        picture = open_picture(page.screenshot).convert("RGB")
        assert picture.width == page.width == 1280
        assert picture.getpixel((600, 600))[0] > 150


async def test_images_and_other_files_are_no_pages(site: PageSite, capture: Capture) -> None:
    for path, body, content_type in (
        ("/picture.png", make_image(), "image/png"),
        ("/picture", make_image(), "image/png"),
        (
            "/drawing.svg",
            b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>",
            "image/svg+xml",
        ),
        ("/archive", b"PK\3\4" * 1000, "application/zip"),
    ):
        with pytest.raises(NotAPageError) as caught:
            await capture(site.add(path, body, content_type))
        assert caught.value.content_type == content_type
        assert not caught.value.retry


@pytest.mark.parametrize(
    ("status", "retry"), [(404, False), (410, False), (429, True), (500, True), (503, True)]
)
async def test_error_statuses(site: PageSite, egress: EgressClient, status: int, retry: bool) -> None:
    url = site.add_responder("/", respond(b"<h1>No</h1>", status=status, Content_Type="text/html"))
    with pytest.raises(CaptureError, match=str(status)) as caught:
        await read_page(url, egress=egress)
    assert caught.value.retry is retry


async def test_the_full_page_has_a_maximum_height(site: PageSite, capture: Capture) -> None:
    page = await capture(
        site.add("/", "<title>High</title><div style='height:100000px'>Top</div>"), full_page=True
    )
    assert page.height == MAX_SCREENSHOT_HEIGHT
    assert open_picture(page.screenshot).size == (1280, MAX_SCREENSHOT_HEIGHT)


async def test_a_page_is_read_without_a_browser(site: PageSite, egress: EgressClient) -> None:
    page = await read_page(site.add("/articles/kelp", ARTICLE), egress=egress)
    assert (page.title, page.og_image_url) == ("An article about kelp", site.server.url + "/kelp.png")
    assert page.manifest_url == site.server.url + "/site.webmanifest"
    with pytest.raises(NotAPageError):
        await read_page(site.add("/picture", make_image(), "image/png"), egress=egress)


RUSSIAN = (
    "Морские водоросли держатся за камни очень крепко, и волны не могут их унести далеко в открытое море."
)
JAPANESE = "海藻は岩にしっかりとつかまっているので、波がそれを遠くへ運ぶことはできません。"


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (f"<p>{RUSSIAN}".encode("cp1251"), "text/html; charset=windows-1251", RUSSIAN),
        (f"<meta charset=koi8-r><p>{RUSSIAN}".encode("koi8-r"), "text/html", RUSSIAN),
        (f"<meta charset=Shift_JIS><p>{JAPANESE}".encode("cp932"), "text/html", JAPANESE),
        (f"<p>{RUSSIAN * 3}".encode("cp1251"), "text/html", RUSSIAN),
        (f"<p>{JAPANESE}".encode(), "text/html", JAPANESE),
        (b"\xff\xfe" + f"<p>{JAPANESE}".encode("utf-16-le"), "text/html", JAPANESE),
        (b"<p>caf\xe9", "text/html; charset=iso-8859-1", "café"),
        (b"<p>\x93quoted\x94", "text/html; charset=iso-8859-1", "“quoted”"),
        (b"<p>plain", "text/html; charset=rot13", "plain"),
        (b"<p>plain", "text/html; charset=nosuch", "plain"),
    ],
)
def test_charsets_are_detected(body: bytes, content_type: str, expected: str) -> None:
    assert expected in decode_html(body, content_type)
