"""The small pages in a real browser: pick, export, watch, download; write a report and hear it."""

from __future__ import annotations

import os
import zipfile
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from callers import token
from chromium import OPTIONS, program
from homes import House
from playwright.async_api import Browser, Page, async_playwright, expect
from writers import BriefWriter

SHOTS = os.environ.get("HOLDFAST_SHOTS")  # a folder for pictures, for whoever wants to look
PATIENCE = 60_000


@pytest.fixture
async def browser() -> AsyncGenerator[Browser]:
    path = program()
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=path, args=OPTIONS)
        yield opened
        await opened.close()


class Tab:
    """A page, and everything that went wrong in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("pageerror", lambda problem: self.problems.append(str(problem)))
        page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)

    async def shot(self, name: str) -> None:
        if SHOTS:
            await self.page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


async def opened(browser: Browser, house: House, path: str, user: str) -> Tab:
    page = await browser.new_page(viewport={"width": 1180, "height": 900})
    tab = Tab(page)
    await page.goto(f"{house.url}{path}#token={token(user)}")
    return tab


async def test_a_person_exports_documents(house: House, browser: Browser, tmp_path: Path) -> None:
    ann = house.user()
    tab = await opened(browser, house, "/exports", ann.id)
    page = tab.page
    assert "token" not in page.url
    await page.click("#samples")
    boxes = page.locator("#documents input")
    await expect(boxes).to_have_count(5)
    for name in ("Amara", "Jonas", "Lucía"):
        await page.locator("#documents label", has_text=name).click()
    await page.locator("#templates label", has_text="modern").click()
    await expect(page.locator("#preview")).to_be_visible()
    await tab.shot("exports-chosen")
    async with house.worker():
        await page.click("#export")
        await expect(page.locator("#batch strong")).to_have_text("3 of 3")
        await expect(page.locator("#history li")).to_have_count(3)
        await tab.shot("exports-done")
        async with page.expect_download() as coming:
            await page.locator("#running button", has_text="Download").first.click()
        pdf = tmp_path / "one.pdf"
        await (await coming.value).save_as(pdf)
        assert pdf.read_bytes().startswith(b"%PDF")
        async with page.expect_download() as coming:
            await page.click("text=All as ZIP")
        await (await coming.value).save_as(tmp_path / "all.zip")
        with zipfile.ZipFile(tmp_path / "all.zip") as archive:
            assert len([name for name in archive.namelist() if name.endswith(".pdf")]) == 3
        await page.locator("#history li").first.get_by_text("Delete").click()
        await expect(page.locator("#history li")).to_have_count(2)
    assert tab.problems == []


async def test_a_stranger_is_asked_to_sign_in_and_markup_is_text(house: House, browser: Browser) -> None:
    ann = house.user()
    await ann.document(title="<img src=x onerror=alert(1)> & <b>bold</b>")
    page = await browser.new_page()
    tab = Tab(page)
    await page.goto(f"{house.url}/exports")
    await expect(page.locator("#door")).to_be_visible()
    await expect(page.locator("#inside")).to_be_hidden()
    await page.fill("#token", "nonsense")
    await page.click("#enter button")
    await expect(page.locator("#notice")).to_be_visible()
    await page.fill("#token", token(ann.id))
    await page.click("#enter button")
    await expect(page.locator("#documents .clip")).to_have_text("<img src=x onerror=alert(1)> & <b>bold</b>")
    assert await page.locator("#documents img").count() == 0
    assert [problem for problem in tab.problems if "401" not in problem] == []


async def test_a_person_writes_a_report_and_hears_it(bindery: House, browser: Browser) -> None:
    ann = bindery.user()
    tab = await opened(browser, bindery, "/reports", ann.id)
    page = tab.page
    await page.fill("#name1", "Ana <b>Ruiz</b>")
    await page.fill("#born1", "1984-02-29")
    await page.fill("#name2", "Bo Lind")
    async with bindery.worker(writer=BriefWriter()):
        await page.click("#new button")
        play = page.locator("#chapters button", has_text="Play")
        await expect(play.first).to_be_visible()
        await tab.shot("reports-running")
        await play.first.click()
        await page.wait_for_function("() => document.querySelector('#player').duration > 1")
        await expect(page.locator("#percent")).to_have_text("100 %")
        await expect(play).to_have_count(16)
        await expect(page.locator("#whole")).to_contain_text("The whole book")
        await tab.shot("reports-done")
    assert tab.problems == []
