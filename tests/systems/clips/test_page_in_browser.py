"""The page at /clips in a real browser: add, live stages, details, search, hostile text, phone, keyboard."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from clip_providers import ClipProviders, make_scraped_video
from clips_harness import ClipsHarness
from media_site import MediaSite, run_media_site
from playwright.async_api import Browser, Page, expect
from system_tabs import PHONE, open_tab, run_browser

from holdfast.systems.media.ffmpeg import find_ffmpeg

HOSTILE = '<img src=x onerror="window.hacked = 1"> \u202etxt'
SCREENSHOT_FOLDER = os.environ.get("HOLDFAST_SCREENSHOTS")  # where to put pictures of the page, if anywhere
VIDEOS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "knife": ("How to sharpen a kitchen knife", "The Quiet Cook", (
        "Today we sharpen a kitchen knife on a wet stone.", "Soak the stone in water for ten minutes.",
        "Hold the blade at fifteen degrees and move it slowly, from the heel to the tip.",
        "A dull knife is dangerous because it slips.")),
    "bread": ("Rye bread without a machine", "Grain and Water", (
        "Rye flour needs more water than wheat flour.", "Let the dough rest for an hour.",
        "Bake it hot at first and then turn the oven down.")),
    "river": ("A week on the river", "Slow Travel", (
        "We packed the canoe early in the morning.", "The first rapids were easier than we expected.",
        "At night we slept under the stars.")),
}  # fmt: skip


@pytest.fixture
async def browser() -> AsyncGenerator[Browser]:
    async with run_browser() as browser:
        yield browser


@pytest.fixture
async def site() -> AsyncGenerator[MediaSite]:
    async with run_media_site() as site:
        yield site


def add_videos(answers: ClipProviders, site: MediaSite, folder: Path) -> None:
    for number, (name, (title, author, sentences)) in enumerate(VIDEOS.items()):
        picture = folder / f"{name}.png"
        source = f"gradients=s=640x360:seed={number + 3}:n=4"
        subprocess.run([str(find_ffmpeg()), "-v", "error", "-f", "lavfi", "-i", source, "-frames:v", "1",
                        str(picture)], check=True)  # fmt: skip
        url = f"https://www.youtube.com/watch?v={name}"
        answers.scraped[url] = {
            **make_scraped_video(url, sentences),
            "title": title,
            "channel": {"title": author},
            "durationSeconds": 372 + 200 * number,
            "thumbnail": site.add(f"/{name}.png", "image/png", picture.read_bytes()),
        }
        answers.answers.append(
            json.dumps({"title": "x", "summary": " ".join(sentences[:2]), "tags": [name, "step by step"]})
        )


async def take_screenshot(page: Page, name: str) -> None:
    if SCREENSHOT_FOLDER:
        await page.screenshot(path=str(Path(SCREENSHOT_FOLDER) / f"{name}.png"))


async def test_add_follow_read_and_search(
    system: ClipsHarness, browser: Browser, answers: ClipProviders, site: MediaSite, tmp_path: Path
) -> None:
    add_videos(answers, site, tmp_path)
    ann = system.create_user()
    address = f"{system.url}/clips"
    async with open_tab(browser, address, ann.id) as tab:
        page = tab.page
        await expect(page.locator(".empty")).to_contain_text("No clips yet")
        await page.fill("#add-url", "ftp://nowhere")
        await page.click("#add")
        await expect(page.locator("#add-error")).to_be_visible()
        await tab.add("www.youtube.com/watch?v=knife")
        await expect(tab.card("Waiting")).to_be_visible()
        async with system.run_clip_worker():
            await expect(tab.card("How to sharpen a kitchen knife")).to_have_attribute("data-status", "done")
            for name in ("bread", "river"):
                await tab.add(f"https://www.youtube.com/watch?v={name}")
                await expect(tab.card(VIDEOS[name][0])).to_have_attribute("data-status", "done")
        await expect(page.locator("img.picture").first).to_be_visible()
        await expect(page.locator("#usage")).to_have_text("3 clips")
        await tab.check_width()
        await take_screenshot(page, "clips")
        await page.fill("#search", "dangerous blade")
        await expect(page.locator("button.hit").first).to_contain_text("How to sharpen")
        await take_screenshot(page, "clips-search")
        await page.locator("button.hit").first.click()
        await expect(page.locator(".segments li")).to_have_count(4)
        await expect(page.locator(".segments li[aria-current]")).to_have_count(1)
        await expect(page.locator(".segments a").nth(2)).to_have_attribute(
            "href", "https://www.youtube.com/watch?v=knife&t=20"
        )
        await take_screenshot(page, "clips-details")
        await page.keyboard.press("Escape")
        await page.fill("#search", "")
        await expect(page.locator("#clips")).to_be_visible()
        await page.keyboard.press("Escape")
        await page.locator("body").click(position={"x": 2, "y": 500})
        await page.keyboard.press("j")
        await page.keyboard.press("x")
        await page.get_by_role("button", name="Delete", exact=True).last.click()
        await expect(tab.cards).to_have_count(2)
    async with open_tab(browser, address, ann.id, PHONE, "dark") as phone:
        await expect(phone.cards).to_have_count(2)
        await phone.check_width()
        await take_screenshot(phone.page, "clips-phone")


async def test_hostile_text_stays_text_and_failures_can_be_retried(
    system: ClipsHarness, browser: Browser, answers: ClipProviders
) -> None:
    ann = system.create_user()
    url = "https://www.youtube.com/watch?v=bad"
    video: dict[str, Any] = make_scraped_video(url, (HOSTILE, "javascript:alert(1)"))
    answers.scraped[url] = {**video, "title": HOSTILE, "thumbnail": "javascript:alert(1)"}
    answers.failures["scraping"] = [(401, {"content-type": "application/json"}, b"{}")]
    async with open_tab(browser, f"{system.url}/clips", ann.id) as tab, system.run_clip_worker():
        await tab.add(url)
        await expect(tab.card("rejected the API key")).to_be_visible()
        await tab.page.get_by_role("button", name="Retry").click()
        await expect(tab.cards.first).to_have_attribute("data-status", "done")
        await tab.page.locator("button.open").click()
        await expect(tab.page.locator(".segments li")).to_have_count(2)
        assert await tab.page.evaluate("() => window.hacked") is None
        await tab.page.keyboard.press("Escape")
