"""Hostile, broken and huge pages as bookmarks, from the request to the end of the message, in the browser.

Each ends with its result or with a reason for the user, and the same worker completes an ordinary page
afterwards. A page that is only too slow for the machine of the test is retried, so time decides nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from api_clients import serve_app
from bookmarks_harness import BookmarksHarness
from certificates import CertificateAuthority
from chromium import find_chromium
from hard_pages import (
    make_gzip_bomb,
    make_pixel_bomb,
    never_answer,
    send_gigabyte,
    send_gigabyte_of_html,
)
from page_site import PageSite, make_image, open_picture, run_page_site
from system_harness import SystemUser
from web_servers import RecordedRequest, respond, run_web_server

from holdfast import Client
from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import bookmarks
from holdfast.systems.bookmarks.web_capture import WebCapture
from holdfast.systems.capture import BrowserOptions, BrowserPool
from holdfast.systems.capture.chromium_launcher import find_descendants
from holdfast.testing import Clock, wait_until

pytestmark = pytest.mark.timeout(420)
WAIT_TIMEOUT = timedelta(minutes=5)
MEGABYTE = 1024 * 1024


Row = dict[str, Any]


@dataclass
class RunningBookmarks:
    """The system, its worker with the real browser, a user and a site with pages."""

    system: BookmarksHarness
    site: PageSite
    capture: WebCapture
    user: SystemUser

    async def save(self, url: str) -> int:
        return int((await self.system.add(self.user, url))["id"])

    async def wait_for(self, bookmark_id: int, *statuses: str) -> Row:
        async def find() -> Row | None:
            row = await self.system.get(self.user, bookmark_id)
            return row if row["status"] in statuses else None

        try:
            row: Row = await wait_until(find, within=WAIT_TIMEOUT)
        except AssertionError as error:
            raise AssertionError(await self.system.get(self.user, bookmark_id)) from error
        return row

    async def save_all(self, urls: dict[str, str]) -> dict[str, Row]:
        """Save URLs at once and return their bookmarks after the first attempt, by the same names."""
        ids = {name: await self.save(url) for name, url in urls.items()}
        return {name: await self.wait_for(ids[name], "complete", "retrying", "failed") for name in urls}

    async def complete_all(self, urls: dict[str, str], clock: Clock) -> dict[str, Row]:
        """Save URLs, retry those that a slow machine did not load in time, and return the bookmarks."""
        rows = await self.save_all(urls)
        for name, row in rows.items():
            while rows[name]["status"] == "retrying":
                await clock.advance(timedelta(hours=2))
                attempts = rows[name]["attempts"]
                await self.wait_for_attempt(row["id"], attempts + 1)
                rows[name] = await self.wait_for(row["id"], "complete", "retrying", "failed")
        return rows

    async def wait_for_attempt(self, bookmark_id: int, attempts: int) -> None:
        async def has_begun() -> bool:
            return bool((await self.system.get(self.user, bookmark_id))["attempts"] >= attempts)

        await wait_until(has_begun, within=WAIT_TIMEOUT, what=f"attempt {attempts} of bookmark {bookmark_id}")

    def find_browser(self) -> int:
        """Return the main process of Chromium."""
        assert self.capture._browsers is not None
        (launcher,) = self.capture._browsers.browser_pids
        return next(
            pid for pid in find_descendants(launcher) if "--remote-debugging-pipe" in read_command(pid)
        )


def read_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@asynccontextmanager
async def run_bookmarks(
    url: Secret, settings: Settings, *, browser: BrowserOptions | None = None, allow: str = ""
) -> AsyncGenerator[RunningBookmarks]:
    find_chromium()
    async with AsyncExitStack() as stack:
        site = await stack.enter_async_context(run_page_site())
        allowed = ",".join(filter(None, [site.server.authority, allow]))
        settings = replace(settings, egress_allow=allowed)
        db = await stack.enter_async_context(Database(url, settings))
        async with db.connection() as connection:
            await bookmarks.install(connection)
        app = create_app(settings, database=db, **bookmarks.mount())
        address = await stack.enter_async_context(serve_app(app))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=address, timeout=60))
        system = BookmarksHarness(db, http, address, bookmarks.tasks)
        client = await stack.enter_async_context(Client(url.reveal(), settings=settings))
        capture = WebCapture(client)
        stack.push_async_callback(capture.close)
        if browser is not None:
            pool = BrowserPool(site.policy, browser)
            capture._browsers = await stack.enter_async_context(pool)
        await stack.enter_async_context(system.run_bookmark_worker(capture))
        running = RunningBookmarks(system, site, capture, system.create_user())
        yield running
        ordinary_page = site.add("/ordinary", "<title>Ordinary</title><p>Text")
        ordinary = (await running.complete_all({"ordinary": ordinary_page}, Clock(url, settings)))["ordinary"]
        assert (ordinary["status"], ordinary["title"]) == ("complete", "Ordinary")
        assert (await http.get(ordinary["screenshot"])).content[8:12] == b"WEBP"


@pytest.fixture
async def running(url: Secret, system_settings: Settings) -> AsyncGenerator[RunningBookmarks]:
    async with run_bookmarks(url, system_settings) as bookmarks_with_worker:
        yield bookmarks_with_worker


async def test_pages_that_cannot_be_captured(running: RunningBookmarks) -> None:
    site = running.site

    async def redirect(request: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        await respond(b"", status=302, Location=f"/redirect?{len(site.server.requests)}")(request, writer)

    def add_status(status: int) -> str:
        page = respond(b"<h1>No</h1>", status=status, Content_Type="text/html")
        return site.add_responder(f"/{status}", page)

    zip_file, video = b"PK\3\4" + bytes(1000), bytes(1000)
    rows = await running.save_all(
        {
            "404": add_status(404),
            "410": add_status(410),
            "500": add_status(500),
            "503": add_status(503),
            "no answer": site.add_responder("/never", never_answer),
            "redirects": site.add_responder("/redirect", redirect),
            "gigabyte": site.add_responder("/gigabyte", send_gigabyte),
            "zip": site.add("/zip", zip_file, "application/zip"),
            "octets": site.add("/octets", zip_file, "application/octet-stream"),
            "video": site.add("/video", video, "video/mp4"),
            "private": "http://127.0.0.1:1/",
        }
    )
    expected = {
        "404": ("failed", "status 404"),
        "410": ("failed", "status 410"),
        "500": ("retrying", "status 500"),
        "503": ("retrying", "status 503"),
        "no answer": ("retrying", "in time"),
        "redirects": ("failed", "redirects for ever"),
        "gigabyte": ("failed", "larger than"),
        "zip": ("failed", "not a"),
        "octets": ("failed", "not a"),
        "video": ("failed", "not a"),
        "private": ("failed", "public internet"),
    }
    for name, (status, reason) in expected.items():
        row = rows[name]
        assert (row["status"], row["screenshot"], row["og_image"]) == (status, None, None), (name, row)
        assert (row["screenshot_status"], row["remaining_status"]) == ("failed", "failed"), name
        assert reason in row["screenshot_error"], (name, row["screenshot_error"])
        assert row["remaining_error"], name


async def test_an_invalid_certificate(url: Secret, system_settings: Settings, tmp_path: Path) -> None:
    context = CertificateAuthority(tmp_path).create_server_context("127.0.0.1")
    page = respond(b"<title>No</title>", Content_Type="text/html")
    async with (
        run_web_server(page, ssl_context=context) as server,
        run_bookmarks(url, system_settings, allow=server.authority) as running,
    ):
        row = (await running.save_all({"tls": f"https://{server.authority}/"}))["tls"]
        assert (row["status"], row["title"]) == ("failed", None)
        assert "certificate" in row["screenshot_error"]
        assert "certificate" in row["remaining_error"]
        assert server.requests == []


HOSTILE_SCRIPTS = {
    "alerts": "while (true) alert('again')",
    "dialogs": "setInterval(() => { alert('a'); confirm('b'); prompt('c') }, 1)",
    "loop": "while (true) {}",
    "download": "const a = document.createElement('a'); a.href = '/large'; a.download = 'x'; a.click()",
}


async def test_pages_that_never_end_are_captured_as_they_are(running: RunningBookmarks, clock: Clock) -> None:
    site = running.site
    site.add_responder("/never", never_answer)
    site.add_responder("/large", send_gigabyte)
    slow = "<title>Page</title><img src=/never><p>Text<script async src=/never></script>"
    urls = {"slow": site.add("/slow", slow)}
    for name, script in HOSTILE_SCRIPTS.items():
        urls[name] = site.add(f"/{name}", f"<title>Page</title><p>Text</p><script>{script}</script>")
    rows = await running.complete_all(urls, clock)
    for name, row in rows.items():
        assert (row["title"], row["remaining_status"]) == ("Page", "succeeded"), name
        # Endless loops leave a slow machine no time for the screenshot within the budget.
        too_slow = row["screenshot_error"] == "The page was not ready within 30 seconds."
        assert row["status"] == "complete" or too_slow, (name, row)
    assert rows["slow"]["status"] == rows["download"]["status"] == "complete"


async def test_high_pages_and_unusual_urls(running: RunningBookmarks, clock: Clock) -> None:
    site = running.site
    unicode_path, long_path = "/räksmörgås/日本語", "/" + "x" * 2000
    urls = {
        "high": site.add("/high", "<title>Page</title><div style='height:100000px'>Text</div>"),
        "unicode": site.add(quote(unicode_path), "<title>Page</title>"),
        "long path": site.add(long_path, "<title>Page</title>"),
        "long query": site.add("/query", "<title>Page</title>") + "?" + "y" * 2000,
        "text": site.add("/text", "Plain text", "text/plain"),
        "json": site.add("/json", '{"a": 1}', "application/json"),
    }
    urls["unicode"] = f"{site.server.url}{unicode_path}?q=é#часть"
    rows = await running.complete_all(urls, clock)
    for name, row in rows.items():
        title = None if name in ("text", "json") else "Page"
        assert (row["status"], row["title"], row["url"]) == ("complete", title, urls[name]), (name, row)
    picture = open_picture((await running.system.http.get(rows["high"]["screenshot"])).content)
    assert picture.size == (1280, 800)


@pytest.mark.parametrize("kind", ["elements", "gigabyte", "bomb"])
async def test_huge_documents(running: RunningBookmarks, kind: str) -> None:
    """They are captured, or they fail with a reason. The worker and its browser stay within their memory."""
    site = running.site
    if kind == "elements":
        body = b"<title>Huge</title>" + b"<div><span>a</span><b>b</b></div>" * 3_100_000
        assert len(body) > 100_000_000
        url = site.add("/", body, "text/html")
    elif kind == "gigabyte":
        url = site.add_responder("/", send_gigabyte_of_html)
    else:
        bomb = make_gzip_bomb(b"<title>Bomb</title><p>Text", 700)
        assert len(bomb) < MEGABYTE
        url = site.add("/", bomb, "text/html", Content_Encoding="gzip")
    row = (await running.save_all({kind: url}))[kind]
    assert (row["screenshot_status"] == "succeeded") is (row["screenshot_error"] is None)
    assert (row["status"] == "complete") is (
        row["screenshot_error"] is None and row["remaining_error"] is None
    )
    if kind != "bomb":
        assert row["title"] == {"elements": "Huge", "gigabyte": "Endless"}[kind]


async def test_hostile_images(running: RunningBookmarks, clock: Clock) -> None:
    site = running.site
    drawing = (
        "<svg xmlns='http://www.w3.org/2000/svg'><script>fetch('/ran')</script><image href='/ran'/></svg>"
    )
    site.add("/drawing.svg", drawing, "image/svg+xml")
    refused = {
        "50 MB": site.add("/large.png", make_image() + bytes(50 * MEGABYTE), "image/png"),
        "pixel bomb": site.add("/bomb.png", make_pixel_bomb(60_000, 60_000), "image/png"),
        "gzip bomb": site.add(
            "/gzip.png", make_gzip_bomb(make_image(), 200), "image/png", Content_Encoding="gzip"
        ),
        "svg": site.server.url + "/drawing.svg",
    }
    rows = await running.save_all(refused)
    reasons = {
        "50 MB": "larger than",
        "pixel bomb": "million pixels",
        "svg": "supported format",
        "gzip bomb": "",
    }
    for name, row in rows.items():
        assert (row["status"], row["screenshot_status"], row["og_image"]) == ("failed", "skipped", None), name
        assert reasons[name] in row["remaining_error"], (name, row["remaining_error"])
    # A page that names such an image or icon is shown without it.
    pages = {
        path: site.add(
            f"/page-of-{path.replace('.', '-')}",
            f"<title>Page</title><meta property=og:image content=/{path}><link rel=icon href=/{path}>",
        )
        for path in ("large.png", "bomb.png", "gzip.png", "drawing.svg")
    }
    for name, row in (await running.complete_all(pages, clock)).items():
        assert (row["status"], row["title"], row["og_image"], row["favicon"]) == (
            *("complete", "Page", None, None),
        ), name
    assert "/ran" not in site.requested_paths


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_a_browser_that_is_killed_or_frozen_during_a_page(
    running: RunningBookmarks, clock: Clock, fault: signal.Signals
) -> None:
    """The bookmark is retried with a new browser, and the data of the other step is there before that."""
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def answer(request: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await go_on.wait()
        await respond(b"<title>Back</title><p>Text", Content_Type="text/html")(request, writer)

    urls = {"page": running.site.add_responder("/", answer)}
    saving = asyncio.create_task(running.save_all(urls))
    await arrived.wait()
    browser = running.find_browser()
    os.kill(browser, fault)
    go_on.set()
    row = (await saving)["page"]
    assert (row["status"], row["screenshot_status"]) == ("retrying", "failed")
    assert (row["remaining_status"], row["title"]) == ("succeeded", "Back")
    row = (await running.complete_all(urls, clock))["page"]
    assert (row["status"], row["screenshot_error"]) == ("complete", None)
    await wait_until(lambda: not read_command(browser), within=WAIT_TIMEOUT)


async def test_a_page_that_fills_the_memory(url: Secret, system_settings: Settings) -> None:
    limited = BrowserOptions(max_memory_bytes=900_000_000)
    async with run_bookmarks(url, system_settings, browser=limited) as running:
        greedy = (
            "<title>Greedy</title><script>const kept = []; setInterval(() => { for (let i = 0; i < 20; i++)"
            " kept.push(new Uint8Array(10000000).fill(1)) }, 10)</script>"
        )
        row = (await running.save_all({"greedy": running.site.add("/", greedy)}))["greedy"]
        assert (row["status"], row["title"], row["remaining_status"]) == ("retrying", "Greedy", "succeeded")
        assert row["screenshot_error"]
