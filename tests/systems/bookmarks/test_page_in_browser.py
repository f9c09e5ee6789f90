"""The page at /bookmarks in a real browser: add, live cards, search, retry, delete, import, keyboard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from api_clients import make_token
from bookmarks_harness import BookmarksHarness, PageOfTest, permanent_error
from page_site import make_image
from playwright.async_api import Browser, expect
from system_harness import SystemUser
from system_tabs import DESKTOP, PAGE_TIMEOUT_MS, PHONE, SystemTab, open_tab, run_browser

HOSTILE_TITLE = '<img src=x onerror="window.hacked = 1"></li><script>window.hacked = 2</script> \u202etxt'


@pytest.fixture
async def browser() -> AsyncGenerator[Browser]:
    async with run_browser() as browser:
        yield browser


def open_bookmarks(
    browser: Browser, system: BookmarksHarness, user: SystemUser, size: tuple[int, int] = DESKTOP
) -> AbstractAsyncContextManager[SystemTab]:
    return open_tab(browser, f"{system.url}/bookmarks", user.id, size)


def set_page(system: BookmarksHarness, title: str, text: str = "Words") -> None:
    system.capture.page = PageOfTest(
        title=title, screenshot=make_image(800, 500, text=text), description=f"About {title}"
    )


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_added_card_fills_in_live_and_is_deleted_with_its_files(
    system: BookmarksHarness, browser: Browser, size: tuple[int, int]
) -> None:
    ann = system.create_user()
    set_page(system, "A kitchen garden")
    system.capture.gate = asyncio.Event()
    async with open_bookmarks(browser, system, ann, size) as tab, system.run_bookmark_worker():
        page = tab.page
        assert "token" not in page.url
        await expect(page.locator(".empty")).to_contain_text("No bookmarks yet")
        await tab.add("garden.test/plan")
        card = tab.card("garden.test")
        await expect(card.locator(".steps")).to_contain_text("Screenshot running")
        assert await card.get_attribute("data-status") in ("pending", "processing")
        system.capture.gate.set()
        await expect(card).to_have_attribute("data-status", "complete")
        await expect(card.locator("h2")).to_have_text("A kitchen garden")
        await expect(card.locator("img.picture")).to_have_js_property("naturalWidth", 800)
        await expect(page.locator("#usage")).to_have_text("1 bookmark")
        await tab.check_width()
        await card.locator("button.open").click()
        details = page.locator("dialog")
        await expect(details).to_contain_text("words in the picture")
        await expect(details).to_contain_text("Readable words")
        await expect(details.locator("a", has_text="garden.test/plan")).to_have_attribute(
            "rel", "noopener noreferrer nofollow"
        )
        await tab.check_width()
        await details.get_by_role("button", name="Delete").click()
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.locator("dialog")).to_have_count(1)
        await details.get_by_role("button", name="Delete").click()
        await page.locator("dialog.small").get_by_role("button", name="Delete").click()
        await expect(tab.cards).to_have_count(0)
        await expect(page.locator(".empty")).to_be_visible()
    assert await system.fetch("select 1 from public.bookmarks") == []
    assert await system.fetch("select 1 from holdfast.artifacts where status = 'visible'") == []


async def test_failed_steps_show_their_reason_and_are_retried(
    system: BookmarksHarness, browser: Browser
) -> None:
    ann = system.create_user()
    system.capture.errors = {"capture_page": permanent_error("The server answered with the status 404.")}
    async with open_bookmarks(browser, system, ann) as tab, system.run_bookmark_worker():
        await tab.add("https://broken.test/")
        card = tab.card("broken.test")
        await expect(card).to_have_attribute("data-status", "failed")
        await expect(card.locator(".reason")).to_contain_text("The server answered with the status 404.")
        images = system.capture.count("fetch_image")
        system.capture.errors.clear()
        set_page(system, "Mended")
        await card.get_by_role("button", name="Retry").click()
        await expect(tab.card("Mended")).to_have_attribute("data-status", "complete")
    assert system.capture.count("fetch_image") == images, "a step that had succeeded ran again"


async def test_search_category_paging_and_links(system: BookmarksHarness, browser: Browser) -> None:
    ann = system.create_user()
    urls = [f"https://pages.test/number-{number}" for number in range(150)]
    response = await ann.post("/api/v1/bookmarks/import", {"urls": urls})
    assert response.status_code == 202
    await system.add(ann, "https://trains.test/night", category_id=3, update_access=True)
    async with open_bookmarks(browser, system, ann) as tab:
        page = tab.page
        await expect(tab.cards).to_have_count(60)
        await page.locator("#more").scroll_into_view_if_needed()
        await expect(tab.cards).to_have_count(120)
        await page.locator("#more").scroll_into_view_if_needed()
        await expect(tab.cards).to_have_count(151)
        numbers = [int(await card.get_attribute("data-id") or 0) for card in await tab.cards.all()]
        assert numbers == sorted(set(numbers), reverse=True)
        await page.fill("#search", "trains night")
        await expect(tab.cards).to_have_count(1)
        assert page.url.endswith("?q=trains+night")
        await page.reload()
        await expect(tab.cards).to_have_count(1)
        await page.fill("#search", "<script>nothing</script>")
        await expect(page.locator(".empty")).to_contain_text("Nothing matches")
        await page.get_by_role("button", name="Clear the search").click()
        await expect(tab.cards).to_have_count(60)
        await page.select_option("#category", "3")
        await expect(tab.cards).to_have_count(1)
        await tab.add("https://trains.test/day")
        await expect(tab.cards).to_have_count(2)
    rows = await system.fetch("select url from public.bookmarks where category_id = 3 order by id")
    assert [row["url"] for row in rows] == ["https://trains.test/night", "https://trains.test/day"]


async def test_import_of_a_bookmarks_file_and_of_a_list(
    system: BookmarksHarness, browser: Browser, tmp_path: Path
) -> None:
    ann = system.create_user()
    file = tmp_path / "bookmarks.html"
    links = "".join(f'<DT><A HREF="https://site.test/{number}">Page {number}</A>\n' for number in range(12))
    bookmarklet = '<DT><A HREF="javascript:alert(1)">Run</A>\n'
    file.write_text(f"<!DOCTYPE NETSCAPE-Bookmark-file-1><DL>{links}{bookmarklet}</DL>", encoding="utf-8")
    async with open_bookmarks(browser, system, ann) as tab:
        page = tab.page
        await page.click("#import")
        await page.click("#start-import")
        await expect(page.locator("dialog")).to_contain_text("Choose a file or paste links.")
        await page.set_input_files("#import-file", file)
        await page.click("#start-import")
        await expect(tab.cards).to_have_count(12)
        await expect(page.locator(".import")).to_contain_text("Importing 12 links")
        async with system.run_bookmark_worker():
            await expect(page.locator(".import")).to_contain_text("Imported 12 links")
            await expect(page.locator(".import")).to_contain_text("12 complete")
        await page.click("#import")
        await page.fill("#import-urls", "https://site.test/1\nhttps://site.test/new\nnot a link\n")
        await page.click("#start-import")
        await expect(page.locator(".import")).to_contain_text("1 saved before")
        await expect(page.locator(".import")).to_contain_text("1 refused")
        await expect(tab.cards).to_have_count(13)


async def test_everything_works_with_the_keyboard(system: BookmarksHarness, browser: Browser) -> None:
    ann = system.create_user()
    for name in ("one", "two", "three"):
        await system.add(ann, f"https://{name}.test/")
    async with open_bookmarks(browser, system, ann) as tab:
        page, keys = tab.page, tab.page.keyboard
        await expect(tab.cards).to_have_count(3)
        await keys.press("?")
        await expect(page.locator("dialog")).to_contain_text("Next bookmark")
        await keys.press("j")  # a dialog is open: nothing moves
        await keys.press("Escape")
        await expect(page.locator("dialog")).to_have_count(0)
        await keys.press("j")
        await expect(tab.card("three.test")).to_be_focused()
        await keys.press("j")
        await keys.press("j")
        await keys.press("k")
        await expect(tab.card("two.test")).to_be_focused()
        await keys.press("Enter")
        await expect(page.locator("dialog")).to_contain_text("https://two.test/")
        await keys.press("Escape")
        await expect(tab.card("two.test")).to_be_focused()
        await keys.press("x")
        await expect(page.locator("dialog")).to_contain_text("Delete this bookmark?")
        await keys.press("Escape")
        await expect(tab.cards).to_have_count(3)
        await keys.press("Delete")
        await expect(page.locator("dialog")).to_be_visible()
        await keys.press("Enter")
        await expect(tab.cards).to_have_count(2)
        await expect(tab.card("one.test")).to_be_focused()
        await keys.press("a")
        await keys.type("four.test")
        await keys.press("Enter")
        await expect(tab.cards).to_have_count(3)
        await keys.press("Escape")
        await keys.press("/")
        await expect(page.locator("#search")).to_be_focused()
        await keys.type("jxk")  # letters in a field are text
        await expect(page.locator("#search")).to_have_value("jxk")


async def test_hostile_texts_stay_texts(system: BookmarksHarness, browser: Browser) -> None:
    ann = system.create_user()
    set_page(system, HOSTILE_TITLE)
    async with system.run_bookmark_worker():
        bookmark = await system.add(ann, "https://hostile.test/?q=<script>window.hacked=3</script>")
        async with open_bookmarks(browser, system, ann) as tab:
            card = tab.cards.first
            await expect(card).to_have_attribute("data-status", "complete")
            # Rows can come from elsewhere: the table itself takes any text as a URL.
            await system.fetch(
                "update public.bookmarks set url = 'javascript:window.hacked=4', ocr = $1, caption = $1,"
                " remaining_error = $1, screenshot_error = $1, status = 'failed'",
                HOSTILE_TITLE,
            )
            await expect(card).to_have_attribute("data-status", "failed")
            await expect(card.locator("h2")).to_contain_text("<img src=x onerror=")
            await card.locator("button.open").click()
            await expect(tab.page.locator("dialog")).to_contain_text("javascript:window.hacked=4")
            assert await tab.page.locator("[href^='javascript']").count() == 0
            assert await tab.page.locator("img[src='x'], li script, dialog script").count() == 0
            assert await tab.page.evaluate("() => window.hacked") is None
            await tab.check_width()
    assert bookmark["status"] == "pending"


async def test_the_page_reconnects_and_asks_to_sign_in_when_the_token_is_refused(
    system: BookmarksHarness, browser: Browser
) -> None:
    ann = system.create_user()
    context = await browser.new_context()
    page = await context.new_page()
    page.set_default_timeout(PAGE_TIMEOUT_MS)
    await page.goto(f"{system.url}/bookmarks")
    await expect(page.locator("#sign-in")).to_be_visible()
    await page.fill("#token", "nonsense")
    await page.click("#sign-in-form button")
    await expect(page.locator("#notice")).to_be_visible()
    await page.fill("#token", make_token(ann.id))
    await page.click("#sign-in-form button")
    await expect(page.locator(".empty")).to_be_visible()
    await context.set_offline(True)
    await context.set_offline(False)
    await system.add(ann, "https://later.test/")
    await expect(page.locator("li.bookmark")).to_have_count(1)
    await page.click("#sign-out")
    await expect(page.locator("#sign-in")).to_be_visible()
    await expect(page.locator("li.bookmark")).to_have_count(0)
    await context.close()
