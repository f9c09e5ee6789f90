"""Pages of systems in a real browser: a tab of a signed-in user that notes every error."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from api_clients import make_token
from chromium import CHROMIUM_OPTIONS, find_chromium
from playwright.async_api import Browser, Locator, Page, async_playwright, expect

PAGE_TIMEOUT_MS = 120_000
DESKTOP, PHONE = (1280, 900), (390, 844)


@asynccontextmanager
async def run_browser() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_OPTIONS)
        expect.set_options(timeout=PAGE_TIMEOUT_MS)
        yield browser
        await browser.close()


@dataclass
class SystemTab:
    """The page of a signed-in user, and the errors that the browser reported."""

    page: Page
    errors: list[str] = field(default_factory=list[str])

    @property
    def cards(self) -> Locator:
        return self.page.locator("li.item")

    def card(self, text: str) -> Locator:
        return self.page.locator("li.item", has_text=text)

    async def add(self, url: str) -> None:
        await self.page.fill("#add-url", url)
        await self.page.click("#add")
        await expect(self.page.locator("#add-url")).to_have_value("")

    async def check_width(self) -> None:
        sizes = await self.page.evaluate("() => [document.documentElement.scrollWidth, window.innerWidth]")
        assert sizes[0] <= sizes[1], "the page scrolls sideways"


@asynccontextmanager
async def open_tab(
    browser: Browser,
    url: str,
    user_id: str,
    size: tuple[int, int] = DESKTOP,
    color_scheme: Literal["light", "dark"] = "light",
) -> AsyncGenerator[SystemTab]:
    """Open a page as a user. At the end, no error but refused requests may have happened."""
    context = await browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=color_scheme
    )
    context.set_default_timeout(PAGE_TIMEOUT_MS)
    tab = SystemTab(await context.new_page())
    tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.page.on("dialog", lambda dialog: tab.errors.append(dialog.message))
    tab.page.on("console", lambda log: tab.errors.append(log.text) if log.type == "error" else None)
    await tab.page.goto(f"{url}#token={make_token(user_id)}")
    await expect(tab.page.locator("#content")).to_be_visible()
    try:
        yield tab
        assert [error for error in tab.errors if "status of 4" not in error] == []
    finally:
        await context.close()
