"""A visitor signs in once at the front door and uses all five systems, on a desktop and on a phone.

Everything is real: worker processes as `holdfast worker` starts them, websites on loopback with the samples
of `holdfast demo`, Chromium for the visitor and for the screenshots, yt-dlp, ffmpeg, and the local providers.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from accessibility import AccessibilityCheck
from all_systems import list_systems
from api_clients import ISSUER, SECRET, make_token, serve_app
from playwright.async_api import Browser, BrowserContext, Page, expect
from system_harness import SystemHarness
from system_tabs import DESKTOP, PHONE, run_browser

from holdfast.devtools import demo_bookmarks, demo_clips, demo_media, demo_systems
from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import mount

WORKER_APPS = (
    *("holdfast.systems.bookmarks", "holdfast.systems.clips", "holdfast.systems.media"),
    demo_systems.__name__,
)
PAGE_TIMEOUT_MS = 240_000
SCREENSHOT_FOLDER = os.environ.get("HOLDFAST_SHOTS")  # optional: where to save screenshots


@dataclass
class Samples:
    """The addresses of the sample websites."""

    page: str
    film: str
    talk: str
    authorities: str


@pytest.fixture
async def samples() -> AsyncGenerator[Samples]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    authorities = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(demo_bookmarks.serve_site(listeners[0]))
        await stack.enter_async_context(demo_media.serve_film(listeners[1]))
        await stack.enter_async_context(demo_clips.serve_videos(listeners[2]))
        yield Samples(
            page=f"http://{authorities[0]}/harbour",
            film=f"http://{authorities[1]}/harbour.mp4",
            talk=f"http://{authorities[2]}{demo_clips.CAPTIONED_PATH}",
            authorities=",".join(authorities),
        )


@pytest.fixture
async def door(url: Secret, system_settings: Settings, samples: Samples) -> AsyncGenerator[SystemHarness]:
    """The API with all systems, on a port."""
    settings = replace(system_settings, egress_allow=samples.authorities)
    async with Database(url, settings) as db:
        async with db.connection() as connection:
            for system in list_systems():
                await system.install(connection)
        app = create_app(settings, database=db, **mount(*list_systems()))
        async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
            yield SystemHarness(db, http, address, [])


@asynccontextmanager
async def run_workers(door: SystemHarness, folder: Path) -> AsyncGenerator[None]:
    """Run a worker process for each system. Exports and reports share one, as in the demo."""
    settings = door.db.settings
    environment = {
        **os.environ,
        "HOLDFAST_DATABASE_URL": door.db.url.reveal(),
        "HOLDFAST_HOME": str(settings.home),
        "HOLDFAST_EGRESS_ALLOW": settings.egress_allow or "",
        "HOLDFAST_JWT_SECRET": SECRET,
        "HOLDFAST_JWT_ISSUER": ISSUER,
    }
    processes: list[asyncio.subprocess.Process] = []
    try:
        for app in WORKER_APPS:
            with (folder / f"{app}.log").open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "holdfast", "worker", app),
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            processes.append(process)
        yield
        assert [process.returncode for process in processes] == [None] * len(processes), "a worker has ended"
    finally:
        for process in processes:
            if process.returncode is None:
                process.terminate()
        for process in processes:
            await process.wait()


@dataclass
class Visit:
    """What a visitor does. Pages are opened with the tiles and the navigation, never with an address."""

    page: Page
    context: BrowserContext
    samples: Samples
    accessibility: AccessibilityCheck | None
    device: str

    async def look(self, name: str) -> None:
        """Check that nothing scrolls sideways and that axe finds nothing; save a picture if asked to."""
        widths = await self.page.evaluate("() => [document.documentElement.scrollWidth, window.innerWidth]")
        assert widths[0] <= widths[1], f"{name} scrolls sideways"
        if self.accessibility is not None:
            await self.accessibility.check(self.page, name)
        if SCREENSHOT_FOLDER:
            await self.page.screenshot(path=f"{SCREENSHOT_FOLDER}/visit-{name}-{self.device}.png")

    async def open_tile(self, title: str) -> None:
        await self.page.get_by_role("link", name="Home", exact=True).click()
        await self.page.locator(".tile", has_text=title).click()
        await expect(self.page.locator("#content")).to_be_visible()
        await expect(self.page.locator("#sign-in")).to_be_hidden()

    async def sign_in(self, token: str) -> None:
        await expect(self.page.locator("#sign-in")).to_be_visible()
        await self.look("sign-in")
        await self.page.get_by_label("Token").fill(token)
        await self.page.get_by_role("button", name="Sign in").click()
        await expect(self.page.locator(".tile")).to_have_count(6)
        await self.look("home")

    async def add_link(self, url: str, button: str) -> None:
        field = self.page.locator("#add-url")
        await field.fill(url)
        await self.page.get_by_role("button", name=button, exact=True).click()
        await expect(field).to_have_value("")

    async def save_bookmark(self) -> None:
        await self.open_tile("Bookmarks")
        await self.look("bookmarks-empty")
        await self.add_link(self.samples.page, "Save")
        card = self.page.locator("li.item", has_text="The harbour")
        await expect(card).to_have_attribute("data-status", "complete")
        await expect(card.locator("img.picture")).not_to_have_js_property("naturalWidth", 0)
        await self.look("bookmarks")
        await card.locator("button.open").click()
        await expect(self.page.locator("dialog")).to_contain_text("wait for the wind")
        await self.look("bookmarks-details")
        await self.page.keyboard.press("Escape")

    async def play_film(self) -> None:
        await self.open_tile("Media")
        await self.add_link(self.samples.film, "Download")
        card = self.page.locator("li.item", has_text="harbour.mp4")
        await expect(card).to_have_attribute("data-status", "finished")
        await self.look("media")
        await card.locator("button.open").click()
        await expect(self.page.locator("dialog video")).to_have_js_property("readyState", 4)
        await self.page.evaluate(
            "() => { const film = document.querySelector('video'); film.muted = true; film.play(); }"
        )
        await self.page.wait_for_function("() => document.querySelector('video').currentTime > 0.5")
        await self.look("media-player")
        await self.page.keyboard.press("Escape")

    async def search_clip(self) -> None:
        await self.open_tile("Clips")
        await self.add_link(self.samples.talk, "Add")
        card = self.page.locator("li.item").first
        await expect(card).to_have_attribute("data-status", "done")
        await self.look("clips")
        await self.page.locator("#search").fill("how strong is a knot")
        hit = self.page.locator("button.hit").first
        await expect(hit).to_contain_text("rope")
        await self.look("clips-search")
        await hit.click()
        await expect(self.page.locator("dialog .segments")).to_contain_text("A rope holds")
        await self.look("clips-details")
        await self.page.keyboard.press("Escape")

    async def export_document(self, folder: Path) -> None:
        await self.open_tile("Document export")
        await self.page.get_by_role("button", name="Add sample documents").click()
        await self.page.locator("#documents label", has_text="Amara").click()
        await self.page.get_by_role("button", name="Export", exact=True).click()
        async with self.page.expect_download() as download:
            await self.page.locator("#exports").get_by_role("button", name="Download").click()
        await (await download.value).save_as(folder / "document.pdf")
        assert (folder / "document.pdf").read_bytes().startswith(b"%PDF")
        await self.look("exports")

    async def order_report(self) -> None:
        await self.open_tile("Reports")
        await self.page.get_by_role("button", name="Fill in a sample").click()
        await self.page.get_by_role("button", name="Start report").click()
        await expect(self.page.locator("#percent")).to_have_text("100 %")
        book = self.page.get_by_role("link", name="Complete book")
        await expect(book).to_be_visible()
        link = await book.get_attribute("href") or ""
        assert (await self.context.request.get(httpx.URL(self.page.url).join(link).__str__())).ok
        await self.page.get_by_role("button", name="Play chapter 1", exact=True).click()
        await expect(self.page.locator("#player")).to_have_js_property("error", None)
        await self.look("reports")

    async def tidy_up(self) -> None:
        """Find everything on one page, delete the bookmark and a file there."""
        await self.open_tile("My jobs and files")
        jobs, files = self.page.locator("#jobs > li"), self.page.locator("#files > li")
        for title in ("The harbour", "What holds a ship", "Media download", "Document as PDF"):
            await expect(jobs.filter(has_text=title)).to_have_count(1)
        await self.look("my-jobs")
        await jobs.filter(has_text="The harbour").get_by_role("button", name="Delete").click()
        await self.page.locator("dialog").get_by_role("button", name="Delete", exact=True).click()
        await expect(jobs.filter(has_text="The harbour")).to_have_count(0)
        name = await files.first.locator(".clip").inner_text()
        same = files.filter(has_text=name)
        count = await same.count()
        await files.first.get_by_role("button", name="Delete").click()
        await self.page.locator("dialog").get_by_role("button", name="Delete", exact=True).click()
        await expect(same).to_have_count(count - 1)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("device", ["desktop", "phone"])
async def test_a_visitor_uses_all_five_systems(
    door: SystemHarness, samples: Samples, tmp_path: Path, device: str
) -> None:
    size = PHONE if device == "phone" else DESKTOP
    check = AccessibilityCheck() if device == "desktop" else None
    async with run_workers(door, tmp_path), run_browser() as browser, open_context(browser, size) as context:
        page, errors = await context.new_page(), list[str]()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda log: errors.append(log.text) if log.type == "error" else None)
        await page.goto(door.url)
        visit = Visit(page, context, samples, check, device)
        await visit.sign_in(make_token(door.create_user().id))
        await visit.save_bookmark()
        await visit.play_film()
        await visit.search_clip()
        await visit.export_document(tmp_path)
        await visit.order_report()
        await visit.tidy_up()
    assert [error for error in errors if "status of 401" not in error] == []
    assert check is None or "\n".join(check.problems) == ""


@asynccontextmanager
async def open_context(browser: Browser, size: tuple[int, int]) -> AsyncGenerator[BrowserContext]:
    expect.set_options(timeout=PAGE_TIMEOUT_MS)
    context = await browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme="light")
    context.set_default_timeout(PAGE_TIMEOUT_MS)
    try:
        yield context
    finally:
        await context.close()
