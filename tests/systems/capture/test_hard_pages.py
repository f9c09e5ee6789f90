"""Pages that never end, never answer, lie or attack. Each ends within its budget, and the next page works."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from certificates import CertificateAuthority
from hard_pages import never_answer, send_gigabyte, send_gigabyte_of_html
from page_site import PageSite, run_page_site
from web_servers import RecordedRequest, respond, run_web_server

from holdfast.egress import EgressAllowlist, EgressClient, EgressPolicy
from holdfast.systems.capture import (
    BrowserOptions,
    BrowserPool,
    CaptureError,
    MediaDecoder,
    PageCapture,
    capture_page,
)

pytestmark = pytest.mark.long
Capture = Callable[[str], Awaitable[PageCapture]]


@pytest.fixture
async def next_page_works(
    site: PageSite, browsers: BrowserPool, egress: EgressClient, decoder: MediaDecoder
) -> AsyncGenerator[None]:
    """After each test, the same pool captures an ordinary page."""
    yield
    url = site.add("/next", "<title>Next</title>")
    page = await capture_page(url, browsers=browsers, egress=egress, decoder=decoder)
    assert page.title == "Next"


@pytest.fixture
def capture(
    browsers: BrowserPool, egress: EgressClient, decoder: MediaDecoder, next_page_works: None
) -> Capture:
    async def run(url: str) -> PageCapture:
        return await capture_page(url, browsers=browsers, egress=egress, decoder=decoder, full_page=True)

    return run


async def test_a_server_that_never_answers(site: PageSite, capture: Capture) -> None:
    with pytest.raises(CaptureError, match="did not respond in time") as caught:
        await capture(site.add_responder("/", never_answer))
    assert caught.value.retry


async def test_a_page_that_never_finishes_is_captured_as_it_is(site: PageSite, capture: Capture) -> None:
    site.add_responder("/never.png", never_answer)
    site.add_responder("/never.js", never_answer)
    page = await capture(
        site.add("/", "<title>Slow</title><img src=/never.png><p>Text<script async src=/never.js></script>")
    )
    assert page.title == "Slow"


@pytest.mark.parametrize(
    "script",
    [
        "while (true) alert('again')",
        "while (true) {}",
        "setInterval(() => { alert('a'); confirm('b'); prompt('c') }, 1)",
        "onbeforeunload = () => 'stay'; setInterval(() => { location.reload() }, 50)",
        "for (let i = 0; i < 30; i++) open('/')",
        "document.querySelectorAll = () => { throw 1 }; JSON.stringify = 0; Promise = null",
        "document.documentElement.remove()",
    ],
    ids=["alerts", "endless loop", "dialog timer", "reloads", "pop-ups", "changed prototypes", "no document"],
)
async def test_pages_with_hostile_scripts_end(site: PageSite, capture: Capture, script: str) -> None:
    """They are captured, or they fail with a reason. They never hang."""
    url = site.add("/", f"<title>Hostile</title><body><p>Text</p><script>{script}</script></body>")
    async with asyncio.timeout(90):
        try:
            page = await capture(url)
        except CaptureError as error:
            assert str(error)  # noqa: PT017
        else:
            assert page.screenshot[:4] == b"RIFF"


async def test_downloads_are_refused(site: PageSite, capture: Capture) -> None:
    with pytest.raises(CaptureError, match=r"larger|file") as caught:
        await capture(site.add_responder("/file", send_gigabyte))
    assert not caught.value.retry


async def test_an_endless_document_ends(
    site: PageSite, options: BrowserOptions, decoder: MediaDecoder
) -> None:
    """The proxy of the page cuts it off."""
    url = site.add_responder("/", send_gigabyte_of_html)
    limited = replace(options, max_page_bytes=5_000_000)
    async with BrowserPool(site.policy, limited) as pool, EgressClient(site.policy) as egress:
        async with asyncio.timeout(90):
            try:
                page = await capture_page(url, browsers=pool, egress=egress, decoder=decoder)
            except CaptureError as error:
                assert str(error)  # noqa: PT017
            else:
                assert page.title == "Endless"
        fine = site.add("/fine", "<title>Fine</title>")
        assert (await capture_page(fine, browsers=pool, egress=egress, decoder=decoder)).title == "Fine"


async def test_redirects_for_ever(site: PageSite, capture: Capture) -> None:
    async def redirect(request: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        await respond(b"", status=302, Location=f"/?{len(site.server.requests)}")(request, writer)

    with pytest.raises(CaptureError, match="redirects for ever") as caught:
        await capture(site.add_responder("/", redirect))
    assert not caught.value.retry


async def test_a_redirect_to_a_private_address(site: PageSite, capture: Capture) -> None:
    async with run_web_server(respond(b"secret")) as private:
        url = site.add_responder("/", respond(b"", status=302, Location=private.url))
        with pytest.raises(CaptureError, match="public internet") as caught:
            await capture(url)
        assert not caught.value.retry
        assert private.connections == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://[::1]/", "http://169.254.169.254/", "file:///etc/passwd",
                                 "chrome://version", "javascript:alert(1)", "http://"])  # fmt: skip
async def test_urls_that_are_not_allowed(capture: Capture, url: str) -> None:
    with pytest.raises(CaptureError) as caught:
        await capture(url)
    assert not caught.value.retry


async def test_a_huge_document(site: PageSite, capture: Capture) -> None:
    """A hundred megabytes of elements. It is captured, or it fails with a reason."""
    body = b"<title>Huge</title>" + b"<div><span>a</span><b>b</b></div>" * 3_000_000
    url = site.add("/", gzip.compress(body, 1), "text/html", Content_Encoding="gzip")
    async with asyncio.timeout(100):
        try:
            page = await capture(url)
        except CaptureError as error:
            assert str(error)  # noqa: PT017
        else:
            assert page.title == "Huge"
            assert len(page.html) <= 5 * 1024 * 1024


async def test_an_invalid_certificate(tmp_path: Path, options: BrowserOptions, decoder: MediaDecoder) -> None:
    authority = CertificateAuthority(tmp_path)
    context = authority.create_server_context("127.0.0.1")
    async with run_web_server(
        respond(b"<title>No</title>", Content_Type="text/html"), ssl_context=context
    ) as server:
        policy = EgressPolicy(allowlist=EgressAllowlist.parse(server.authority))
        async with BrowserPool(policy, options) as pool, EgressClient(policy) as egress:
            with pytest.raises(CaptureError, match="certificate") as caught:
                await capture_page(
                    f"https://{server.authority}/", browsers=pool, egress=egress, decoder=decoder
                )
    assert not caught.value.retry


@pytest.mark.parametrize(("status", "retry"), [(404, False), (500, True)])
async def test_error_pages(site: PageSite, capture: Capture, status: int, retry: bool) -> None:
    url = site.add_responder("/", respond(b"<h1>No</h1>", status=status, Content_Type="text/html"))
    with pytest.raises(CaptureError, match=str(status)) as caught:
        await capture(url)
    assert caught.value.retry is retry


@pytest.mark.parametrize("path", ["/räksmörgås/日本語?q=é", "/" + "x" * 1900], ids=["unicode", "long"])
async def test_unusual_urls(capture, browsers: BrowserPool, site: PageSite, path: str) -> None:  # type: ignore[no-untyped-def]
    site.add(quote(urlsplit(path).path), "<title>Unusual</title>")
    page = await capture(site.server.url + path)
    assert page.title == "Unusual"


async def test_two_pages_at_once_do_not_disturb_each_other(
    options: BrowserOptions, decoder: MediaDecoder
) -> None:
    async with (
        run_page_site() as site,
        BrowserPool(site.policy, options) as pool,
        EgressClient(site.policy) as egress,
    ):
        bad = site.add("/bad", "<script>while (true) alert(1)</script>")
        good = [site.add(f"/good{n}", f"<title>Good {n}</title>") for n in range(3)]
        results = await asyncio.gather(
            *(capture_page(url, browsers=pool, egress=egress, decoder=decoder) for url in [bad, *good]),
            return_exceptions=True,
        )
        assert [page.title for page in results[1:] if isinstance(page, PageCapture)] == [
            "Good 0",
            "Good 1",
            "Good 2",
        ]
