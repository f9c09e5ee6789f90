"""The web pages of the systems in a real browser: export and download documents, create and play a report."""

from __future__ import annotations

import os
import zipfile
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from api_clients import make_token
from chromium import CHROMIUM_OPTIONS, find_chromium
from playwright.async_api import Browser, Page, async_playwright, expect
from stub_text_providers import OneSentenceTextProvider
from system_harness import SystemHarness

SCREENSHOT_FOLDER = os.environ.get("HOLDFAST_SHOTS")  # optional: where to save screenshots
PAGE_TIMEOUT_MS = 60_000


@pytest.fixture
async def browser() -> AsyncGenerator[Browser]:
    path = find_chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=CHROMIUM_OPTIONS)
        yield browser
        await browser.close()


class BrowserTab:
    """A page and the errors that occurred in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "console", lambda message: self.errors.append(message.text) if message.type == "error" else None
        )
        page.set_default_timeout(PAGE_TIMEOUT_MS)
        expect.set_options(timeout=PAGE_TIMEOUT_MS)

    async def save_screenshot(self, name: str) -> None:
        if SCREENSHOT_FOLDER:
            await self.page.screenshot(path=Path(SCREENSHOT_FOLDER) / f"{name}.png", full_page=True)


async def open_page(browser: Browser, system: SystemHarness, path: str, user: str) -> BrowserTab:
    page = await browser.new_page(viewport={"width": 1180, "height": 900})
    tab = BrowserTab(page)
    await page.goto(f"{system.url}{path}#token={make_token(user)}")
    return tab


async def test_export_documents(exports_system: SystemHarness, browser: Browser, tmp_path: Path) -> None:
    ann = exports_system.create_user()
    tab = await open_page(browser, exports_system, "/exports", ann.id)
    page = tab.page
    assert "token" not in page.url
    await page.click("#add-samples")
    checkboxes = page.locator("#documents input")
    await expect(checkboxes).to_have_count(5)
    for name in ("Amara", "Jonas", "Lucía"):
        await page.locator("#documents label", has_text=name).click()
    await page.locator("#templates label", has_text="modern").click()
    await expect(page.locator("#preview")).to_be_visible()
    await tab.save_screenshot("exports-chosen")
    async with exports_system.run_worker():
        await page.click("#export")
        await expect(page.locator("#batch strong")).to_have_text("3 of 3")
        await expect(page.locator("#history li")).to_have_count(3)
        await tab.save_screenshot("exports-done")
        async with page.expect_download() as download:
            await page.locator("#exports button", has_text="Download").first.click()
        pdf = tmp_path / "one.pdf"
        await (await download.value).save_as(pdf)
        assert pdf.read_bytes().startswith(b"%PDF")
        async with page.expect_download() as download:
            await page.click("text=Download all as ZIP")
        await (await download.value).save_as(tmp_path / "all.zip")
        with zipfile.ZipFile(tmp_path / "all.zip") as archive:
            assert len([name for name in archive.namelist() if name.endswith(".pdf")]) == 3
        await page.locator("#history li").first.get_by_text("Delete").click()
        await expect(page.locator("#history li")).to_have_count(2)
    assert tab.errors == []


async def test_sign_in_and_markup_in_titles(exports_system: SystemHarness, browser: Browser) -> None:
    ann = exports_system.create_user()
    await ann.add_document(title="<img src=x onerror=alert(1)> & <b>bold</b>")
    page = await browser.new_page()
    tab = BrowserTab(page)
    await page.goto(f"{exports_system.url}/exports")
    await expect(page.locator("#sign-in")).to_be_visible()
    await expect(page.locator("#content")).to_be_hidden()
    await page.fill("#token", "nonsense")
    await page.click("#sign-in-form button")
    await expect(page.locator("#notice")).to_be_visible()
    await page.fill("#token", make_token(ann.id))
    await page.click("#sign-in-form button")
    await expect(page.locator("#documents .clip")).to_have_text("<img src=x onerror=alert(1)> & <b>bold</b>")
    assert await page.locator("#documents img").count() == 0
    assert [error for error in tab.errors if "401" not in error] == []


async def test_create_and_play_a_report(reports_system: SystemHarness, browser: Browser) -> None:
    ann = reports_system.create_user()
    tab = await open_page(browser, reports_system, "/reports", ann.id)
    page = tab.page
    await page.fill("#name1", "Ana <b>Ruiz</b>")
    await page.fill("#birth-date1", "1984-02-29")
    await page.fill("#name2", "Bo Lind")
    async with reports_system.run_worker(text_provider=OneSentenceTextProvider()):
        await page.click("#new-report button")
        play_buttons = page.locator("#chapters button", has_text="Play")
        await expect(play_buttons.first).to_be_visible()
        await tab.save_screenshot("reports-running")
        await play_buttons.first.click()
        await page.wait_for_function("() => document.querySelector('#player').duration > 1")
        await expect(page.locator("#percent")).to_have_text("100 %")
        await expect(play_buttons).to_have_count(16)
        await expect(page.locator("#book")).to_contain_text("Complete book")
        await tab.save_screenshot("reports-done")
    assert tab.errors == []


async def test_a_preview_that_fails_says_why(exports_system: SystemHarness, browser: Browser) -> None:
    ann = exports_system.create_user()
    document = await ann.add_document(title="Half a document")
    async with exports_system.db.connection() as connection:
        await connection.execute(
            "update public.documents set data = '{\"profile\": {}}' where id = $1", document
        )
    tab = await open_page(browser, exports_system, "/exports", ann.id)
    await tab.page.locator("#documents label").click()
    await expect(tab.page.locator("#no-preview")).to_contain_text("name")
    await expect(tab.page.locator("#no-preview")).not_to_contain_text("400")


async def test_a_running_report_is_shown_when_the_page_opens(
    reports_system: SystemHarness, browser: Browser
) -> None:
    ann = reports_system.create_user()
    params = {"person1": {"name": "Ann"}, "person2": {"name": "Bo"}, "systems": ["western"]}
    assert (await ann.post("/api/jobs/start", {"type": "nuclear_v2", "params": params})).status_code == 202
    tab = await open_page(browser, reports_system, "/reports", ann.id)
    await expect(tab.page.locator("#report")).to_be_visible()
    async with reports_system.run_worker(text_provider=OneSentenceTextProvider()):
        await expect(tab.page.locator("#percent")).not_to_have_text("0 %")
        await tab.page.click("#cancel")
        await expect(tab.page.locator("#message")).to_have_text("cancelled")
        await expect(tab.page.locator("#retry")).to_be_visible()
        await tab.page.click("#retry")
        await expect(tab.page.locator("#percent")).to_have_text("100 %")
        await expect(tab.page.locator("#retry")).to_be_hidden()
    assert tab.errors == []
