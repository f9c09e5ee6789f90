"""Tests of the documentation site in Chromium, opened from disk: search, requests, width of pages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest
from chromium import CHROMIUM_OPTIONS, find_chromium
from playwright.async_api import Browser, async_playwright, expect

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(300)  # the first test builds the site
PAGES = (
    "index",
    "explain/concepts",
    "coming-from/celery",
    "tutorial/5-graph",
    "reference/python",
    "guide/jobs",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=280)
    return folder.as_uri()


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_OPTIONS)
        yield launched
        await launched.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
async def test_pages_fit_the_window_and_stay_on_this_host(
    browser: Browser, site: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    context = await browser.new_context(viewport={"width": width, "height": 850}, color_scheme=scheme)
    page = await context.new_page()
    requests: list[str] = []
    messages: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    for name in PAGES:
        await page.goto(f"{site}/{name}.html")
        await expect(page.locator("body")).to_have_attribute(
            "data-md-color-scheme", "slate" if scheme == "dark" else "default"
        )
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, name
    assert not [url for url in requests if not url.startswith((site, "data:", "blob:"))]
    assert not messages


async def test_search_finds_pages_from_disk(browser: Browser, site: str) -> None:
    page = await browser.new_page()
    await page.goto(f"{site}/index.html")
    await page.keyboard.press("f")
    await page.locator("input.md-search__input").press_sequentially("lease", delay=20)
    await expect(page.locator(".md-search-result__item h1").first).to_contain_text("Leases", timeout=20_000)
