"""The front door and the page of a user's jobs and files in a real browser, on a desktop and on a phone."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest
from accessibility import AccessibilityCheck
from all_systems import list_systems
from api_clients import make_token, serve_app
from chromium import CHROMIUM_OPTIONS, find_chromium
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect
from stub_text_providers import OneSentenceTextProvider
from system_harness import SystemHarness, SystemUser

from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import exports, mount, reports

SYSTEMS = list_systems()
COOKIE_NAME = "app-session"
PAGE_TIMEOUT_MS = 120_000
DESKTOP, PHONE = (1280, 900), (390, 844)
SCREENSHOT_FOLDER = os.environ.get("HOLDFAST_SHOTS")  # optional: where to save screenshots


@pytest.fixture
async def browser() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_OPTIONS)
        expect.set_options(timeout=PAGE_TIMEOUT_MS)
        yield browser
        await browser.close()


@pytest.fixture
async def site(url: Secret, system_settings: Settings) -> AsyncGenerator[SystemHarness]:
    """The API with all systems. Workers run exports and reports; the other pages have tests of their own."""
    settings = replace(system_settings, jwt_cookie=COOKIE_NAME)
    async with Database(url, settings) as db:
        async with db.connection() as connection:
            for system in SYSTEMS:
                await system.install(connection)
        app = create_app(settings, database=db, **mount(*SYSTEMS))
        async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
            yield SystemHarness(db, http, address, [*exports.tasks, *reports.tasks])


@dataclass
class Visit:
    """The browser of one visitor, and the errors of its pages."""

    site: SystemHarness
    context: BrowserContext
    errors: list[str] = field(default_factory=list[str])

    async def open_page(self, path: str) -> Page:
        page = await self.context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda log: self.errors.append(log.text) if log.type == "error" else None)
        await page.goto(self.site.url + path)
        return page


@asynccontextmanager
async def open_visit(
    browser: Browser, site: SystemHarness, size: tuple[int, int] = DESKTOP
) -> AsyncGenerator[Visit]:
    context = await browser.new_context(viewport={"width": size[0], "height": size[1]})
    context.set_default_timeout(PAGE_TIMEOUT_MS)
    visit = Visit(site, context)
    try:
        yield visit
        assert [error for error in visit.errors if "status of 401" not in error] == []
    finally:
        await context.close()


async def check_page(page: Page, name: str, size: tuple[int, int]) -> None:
    """Check that nothing scrolls sideways, and save a screenshot if a folder for them is set."""
    widths = await page.evaluate("() => [document.documentElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= widths[1], f"{name} scrolls sideways"
    if SCREENSHOT_FOLDER:
        device = "phone" if size == PHONE else "desktop"
        path = Path(SCREENSHOT_FOLDER) / f"{name}-{device}.png"
        await page.screenshot(path=path, full_page=True)


async def sign_in(page: Page, user: SystemUser) -> None:
    await page.fill("#token", make_token(user.id))
    await page.click("#sign-in-form button")
    await expect(page.locator("#content")).to_be_visible()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_a_visitor_signs_in_once_and_uses_the_systems(
    browser: Browser, site: SystemHarness, size: tuple[int, int], tmp_path: Path
) -> None:
    ann = site.create_user()
    text_provider = OneSentenceTextProvider()
    async with open_visit(browser, site, size) as visit, site.run_worker(text_provider=text_provider):
        page = await visit.open_page("/")
        await expect(page.locator("#sign-in")).to_be_visible()
        await check_page(page, "sign-in", size)
        await sign_in(page, ann)
        await expect(page.locator(".tile")).to_have_count(len(SYSTEMS) + 1)
        await expect(page.locator("#summary")).to_have_text("No jobs are running · no files stored")
        await check_page(page, "home", size)

        for title in ("Bookmarks", "Clips", "Media"):
            await page.click(f".tile:has-text('{title}')")
            await expect(page.locator("#content")).to_be_visible()
            await expect(page.locator("#sign-in")).to_be_hidden()
            await check_page(page, title.lower(), size)
            await page.click("#page-navigation >> text=Home")
        await page.click(".tile:has-text('Document export')")
        await page.click("#add-samples")
        await page.locator("#documents label", has_text="Amara").click()
        await page.click("#export")
        await expect(page.locator("#history li")).to_have_count(1)
        await check_page(page, "exports", size)

        await page.click("#page-navigation >> text=Reports")
        await page.click("#fill-sample")
        await page.click("#new-report button")
        await expect(page.locator("#percent")).not_to_have_text("0 %")
        await page.click("#page-navigation >> text=My jobs and files")
        report, export = page.locator("#jobs > li").nth(0), page.locator("#jobs > li").nth(1)
        await expect(report).to_contain_text("Running")
        await expect(export).to_contain_text("Document as PDF")
        await check_page(page, "my-jobs-running", size)
        await expect(report).to_contain_text("Done")
        await expect(page.locator("#files > li")).to_have_count(50)  # the first page of files
        await check_page(page, "my-jobs-done", size)

        await export.get_by_role("button", name="Files").click()
        async with page.expect_download() as download:
            await page.locator("dialog button", has_text="Download").click()
        await (await download.value).save_as(tmp_path / "one.pdf")
        assert (tmp_path / "one.pdf").read_bytes().startswith(b"%PDF")


async def test_a_job_is_cancelled_and_retried_and_its_progress_is_live(
    browser: Browser, site: SystemHarness
) -> None:
    ann, ben = site.create_user(), site.create_user()
    async with site.db.connection() as connection:
        await connection.execute("select holdfast.put_quota($1, 1048576, 10, 5)", ann.id)
    await ben.start_export(await ben.add_document())
    async with open_visit(browser, site) as visit:
        page = await visit.open_page(f"/my-jobs#token={make_token(ann.id)}")
        await expect(page.locator("#no-jobs")).to_contain_text("No jobs yet")
        await expect(page.locator("#no-files")).to_contain_text("No files yet")
        await ann.start_export(await ann.add_document())
        job = page.locator("#jobs > li")
        await expect(job).to_contain_text("Waiting")  # without a reload
        await job.get_by_role("button", name="Cancel").click()
        await page.click("dialog >> text=Cancel job")
        await expect(job).to_contain_text("Cancelled")
        await job.get_by_role("button", name="Retry").click()
        await expect(job).to_contain_text("Waiting")
        async with site.run_worker():
            await expect(job).to_contain_text("Done")
            await expect(page.locator("#files > li")).to_have_count(1)
        await expect(page.locator("#quota")).to_contain_text("of 1.0 MB")
        await expect(page.locator("#quota")).to_contain_text("1 of 10")
        await expect(job).to_have_count(1)  # nothing of Ben
        await check_page(page, "my-jobs-one", DESKTOP)


async def test_tabs_share_one_sign_in_and_one_sign_out(browser: Browser, site: SystemHarness) -> None:
    ann = site.create_user()
    async with open_visit(browser, site) as visit:
        first = await visit.open_page("/")
        await sign_in(first, ann)
        second = await visit.open_page("/exports")
        await expect(second.locator("#add-samples")).to_be_visible()
        await second.click("#sign-out")
        await expect(second.locator("#sign-in")).to_be_visible()
        await expect(first.locator("#sign-in")).to_be_visible()


async def test_the_cookie_of_the_application_signs_in_everywhere(
    browser: Browser, site: SystemHarness
) -> None:
    ann = site.create_user()
    async with open_visit(browser, site) as visit:
        cookie = {"name": COOKIE_NAME, "value": make_token(ann.id), "url": site.url}
        await visit.context.add_cookies([cookie])  # type: ignore[list-item]
        page = await visit.open_page("/")
        for path in ("/", "/bookmarks", "/clips", "/exports", "/media", "/reports", "/my-jobs"):
            await page.goto(site.url + path)
            await expect(page.locator("#content")).to_be_visible()
            await expect(page.locator("#sign-out")).to_be_hidden()  # the application signs out
        await page.goto(f"{site.url}/exports")
        await page.click("#add-samples")  # a change with the cookie alone
        await expect(page.locator("#documents input")).to_have_count(5)


@pytest.mark.timeout(600)
async def test_every_page_is_accessible_in_both_themes(browser: Browser, site: SystemHarness) -> None:
    ann, check = site.create_user(), AccessibilityCheck()
    paths = ("/", "/bookmarks", "/clips", "/exports", "/media", "/reports", "/my-jobs")
    async with open_visit(browser, site) as visit:
        page = await visit.open_page("/")
        await check.check(page, "sign-in")
        await sign_in(page, ann)
        for state in ("empty", "filled"):
            for path in paths:
                await page.goto(site.url + path)
                await expect(page.locator("#content")).to_be_visible()
                await check.check(page, f"{path} {state}")
            if state == "empty":
                await ann.post("/api/v1/bookmarks/add/data", {"url": "https://pages.test/"})
                await ann.post("/api/v1/clips", {"video_url": "https://videos.test/1"})
                await ann.post("/api/v1/export/samples")
                await ann.start_export(await ann.add_document())
    assert "\n".join(check.problems) == ""
