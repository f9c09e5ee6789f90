"""The page at /media in a real browser: live progress, player, transcript, files, errors, keyboard."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import httpx
import pytest
from api_clients import serve_app
from media_harness import MediaHarness, MediaSite, MediaUser, media_url
from playwright.async_api import Browser, Page, expect
from sample_media import make_media, make_mp4
from system_tabs import DESKTOP, PHONE, SystemTab, open_tab, run_browser
from web_servers import WebServer, respond, run_web_server

from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import media

FILM_SECONDS = 40
LINES = [f"This is sentence number {number} of the film." for number in range(1, 21)]
HOSTILE_TEXT = '<img src=x onerror="window.hacked = 1"></li><script>window.hacked = 2</script> \u202etxt'
SCREENSHOT_FOLDER = os.environ.get("HOLDFAST_SCREENSHOTS")  # where to put pictures of the page, if anywhere
LINE_IN_VIEW = """() => {
  const list = document.querySelector(".segments").getBoundingClientRect();
  const line = document.querySelector("button.segment[aria-current]").getBoundingClientRect();
  return list.top > 0 && line.top >= list.top && line.bottom <= list.bottom;
}"""


def make_transcription(lines: list[str]) -> bytes:
    """Return what a transcription server answers: a line every two seconds."""
    segments = [
        {"id": number, "start": 2.0 * number, "end": 2.0 * number + 1.5, "text": line}
        for number, line in enumerate(lines)
    ]
    return json.dumps({"text": " ".join(lines), "language": "english", "segments": segments}).encode()


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("film") / "film.mp4"
    return make_mp4(path, FILM_SECONDS, "320x180", "-g", "10", "-movflags", "faststart").read_bytes()


@pytest.fixture
async def browser() -> AsyncGenerator[Browser]:
    async with run_browser() as browser:
        yield browser


@pytest.fixture
async def transcription_server() -> AsyncGenerator[WebServer]:
    answer = respond(make_transcription(LINES), close=True, Content_Type="application/json")
    async with run_web_server(answer) as server:
        yield server


@pytest.fixture
async def media_system(
    url: Secret, media_settings: Settings, transcription_server: WebServer
) -> AsyncGenerator[MediaHarness]:
    """The media system with a transcription server. No worker runs until the test starts one."""
    settings = replace(
        media_settings,
        egress_allow=f"{media_settings.egress_allow},{transcription_server.authority}",
        transcription_url=f"{transcription_server.url}/v1",
    )
    async with Database(url, settings) as db:
        async with db.connection() as connection:
            await media.install(connection)
        app = create_app(settings, database=db, **media.mount())
        async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
            yield MediaHarness(db, http)


def open_media(
    browser: Browser,
    system: MediaHarness,
    user: MediaUser,
    size: tuple[int, int] = DESKTOP,
    color_scheme: Literal["light", "dark"] = "light",
) -> AbstractAsyncContextManager[SystemTab]:
    return open_tab(browser, f"{system.url}/media", user.id, size, color_scheme)


async def take_screenshot(page: Page, name: str) -> None:
    if SCREENSHOT_FOLDER:
        await page.screenshot(path=Path(SCREENSHOT_FOLDER) / f"{name}.png")


async def wait_for_time(page: Page, seconds: float) -> None:
    """Wait until the player plays and has passed a time."""
    await page.wait_for_function(f"() => document.querySelector('video').currentTime >= {seconds}")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_a_film_is_downloaded_live_played_and_read_along(
    media_system: MediaHarness,
    website: WebServer,
    site: MediaSite,
    film: bytes,
    browser: Browser,
    size: tuple[int, int],
) -> None:
    site.content, site.stall_after = film, len(film) // 2
    user = media_system.create_user()
    phone = size == PHONE
    async with (
        open_media(browser, media_system, user, size, "dark" if phone else "light") as tab,
        media_system.run_worker(),
    ):
        page = tab.page
        await expect(page.locator(".empty")).to_contain_text("Nothing downloaded yet")
        await tab.add(media_url(website, "harbour.mp4"))
        card = tab.card("harbour.mp4")
        await site.stalled.wait()
        half, whole = f"{len(film) // 2 / 1024:.0f} kB", f"{len(film) / 1024:.0f} kB"
        await expect(card.locator(".progress")).to_contain_text(f"{half} of {whole}")
        await expect(card.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "49")
        await expect(card.locator(".steps")).to_contain_text("Download running")
        await take_screenshot(page, f"media-progress-{'phone' if phone else 'desktop'}")
        site.resume.set()
        await expect(card).to_have_attribute("data-status", "finished")
        await expect(card.locator("img.picture")).not_to_have_js_property("naturalWidth", 0)
        await expect(card.locator(".duration")).to_have_text("0:40")
        await expect(page.locator("#announcement")).to_have_text("harbour.mp4: ready.")
        await expect(page.locator("#usage")).to_contain_text("of 10.0 GB used")
        await tab.check_width()
        await take_screenshot(page, f"media-list-{'phone' if phone else 'desktop'}")

        await card.locator("button.open").click()
        dialog = page.locator("dialog")
        await expect(dialog.locator("button.segment")).to_have_count(len(LINES))
        await page.evaluate("() => { document.querySelector('video').muted = true; }")
        await dialog.locator("button.segment", has_text="number 12 ").click()
        await wait_for_time(page, 22.2)
        current = dialog.locator("button.segment[aria-current]")
        await expect(current).to_contain_text("number 1")  # 12, or what follows
        # The transcript has scrolled along: the spoken line is in view, and the dialog has not moved.
        await page.wait_for_function(LINE_IN_VIEW)
        await expect(dialog.locator("track")).to_have_count(1)
        await tab.check_width()
        await take_screenshot(page, f"media-player-{'phone' if phone else 'desktop'}")
        position = await page.evaluate("() => document.querySelector('video').currentTime")
        await page.keyboard.press("k")
        assert await page.evaluate("() => document.querySelector('video').paused")
        assert position >= 22


async def test_the_player_seeks_with_range_requests_and_gets_a_new_link(
    media_system: MediaHarness, website: WebServer, site: MediaSite, film: bytes, browser: Browser
) -> None:
    site.content = film
    user = media_system.create_user()
    share = await user.share(media_url(website))
    async with media_system.run_worker():
        await user.wait_until_finished(share["id"])
    async with open_media(browser, media_system, user) as tab:
        page, ranges = tab.page, list[str]()
        page.on("request", lambda request: ranges.append(request.headers.get("range", "")))
        await tab.cards.first.locator("button.open").click()
        video = page.locator("video")
        await expect(video).to_have_js_property("readyState", 4)
        await page.evaluate("() => { document.querySelector('video').currentTime = 35; }")
        await expect(video).to_have_js_property("seeking", False)
        assert any(value.startswith("bytes=") for value in ranges), ranges
        # A link that has expired: the player asks for a new one and continues where it was.
        expired = "() => { const v = document.querySelector('video'); v.src = v.src.slice(0, -3) + 'abc'; }"
        await page.evaluate(expired)
        await expect(video).to_have_js_property("readyState", 4)
        assert await page.locator(".player .reason").count() == 0


async def test_files_are_saved(
    media_system: MediaHarness, website: WebServer, site: MediaSite, film: bytes, browser: Browser
) -> None:
    site.content = film
    user = media_system.create_user()
    share = await user.share(media_url(website))
    async with media_system.run_worker():
        await user.wait_until_finished(share["id"])
    async with open_media(browser, media_system, user) as tab:
        page, saved = tab.page, dict[str, bytes]()
        await tab.cards.first.locator("button.open").click()
        dialog = page.locator("dialog")
        for name in ("Save file", "Save sound", "SRT", "VTT"):
            async with page.expect_download() as download:
                await dialog.get_by_role("button", name=name).click()
            file = await download.value
            saved[file.suggested_filename] = await asyncio.to_thread(Path(await file.path()).read_bytes)
        assert saved.pop("video.mp4") == film
        assert saved["transcript.srt"].startswith(b"1\n00:00:00,000 --> 00:00:01,500\nThis is sentence")
        assert saved["transcript.vtt"].startswith(b"WEBVTT")
        assert len(saved.pop("audio.m4a")) > 1000


async def test_refused_links_and_failed_downloads_say_why_and_can_be_retried(
    media_system: MediaHarness, website: WebServer, site: MediaSite, film: bytes, browser: Browser
) -> None:
    user = media_system.create_user()
    async with open_media(browser, media_system, user) as tab, media_system.run_worker():
        page, error = tab.page, tab.page.locator("#add-error")
        await page.click("#add")
        await expect(error).to_have_text("Paste or type a link first.")
        await page.fill("#add-url", "ftp://example.com/film.mp4")
        await page.click("#add")
        await expect(error).to_contain_text("must begin with http:// or https://")
        await page.fill("#add-url", "http://127.0.0.1:1/secret.mp4")
        await page.click("#add")
        await expect(error).to_be_visible()
        await expect(tab.cards).to_have_count(0)
        site.status = [404]
        await tab.add(media_url(website, "gone.mp4"))
        card = tab.card("gone.mp4")
        await expect(card).to_have_attribute("data-status", "failed")
        await expect(card.locator(".reason")).not_to_be_empty()
        assert "404" not in await card.locator(".reason").inner_text()
        await take_screenshot(page, "media-failed")
        site.content = film
        await card.get_by_role("button", name="Retry").click()
        await expect(card).to_have_attribute("data-status", "finished")
        await tab.add(media_url(website, "gone.mp4"))
        await expect(page.locator(".toast")).to_contain_text("You have added this link before.")
        await expect(tab.cards).to_have_count(1)


async def test_a_share_is_deleted_while_it_is_downloaded(
    media_system: MediaHarness, website: WebServer, site: MediaSite, browser: Browser
) -> None:
    site.stall_after = 100_000
    user = media_system.create_user()
    async with open_media(browser, media_system, user) as tab, media_system.run_worker():
        await tab.add(media_url(website))
        await site.stalled.wait()
        await tab.cards.first.get_by_role("button", name="Delete").click()
        await expect(tab.page.locator("dialog")).to_contain_text("Stop and delete this download?")
        await tab.page.locator("dialog").get_by_role("button", name="Delete").click()
        await expect(tab.cards).to_have_count(0)
        await expect(tab.page.locator(".empty")).to_be_visible()
        site.resume.set()
    assert await media_system.fetch("select 1 from public.shares") == []
    assert await media_system.count_stored_objects() == 0


async def test_sound_and_pictures_have_their_own_player(
    media_system: MediaHarness, website: WebServer, site: MediaSite, browser: Browser, tmp_path: Path
) -> None:
    sound = await asyncio.to_thread(make_media, tmp_path / "talk.mp3", "-vn", "-c:a", "libmp3lame")
    site.content, site.content_type = sound.read_bytes(), "audio/mpeg"
    user = media_system.create_user()
    async with open_media(browser, media_system, user) as tab, media_system.run_worker():
        await tab.add(media_url(website, "talk.mp3"))
        card = tab.card("talk.mp3")
        await expect(card).to_have_attribute("data-status", "finished")
        await card.locator("button.open").click()
        await expect(tab.page.locator("dialog audio")).to_have_js_property("error", None)
        await expect(tab.page.locator("dialog audio")).not_to_have_js_property("duration", None)
        await expect(tab.page.locator("dialog button.segment")).to_have_count(len(LINES))
        await tab.page.keyboard.press("Escape")
        await expect(card).to_be_focused()


async def test_everything_works_with_the_keyboard(
    media_system: MediaHarness, website: WebServer, browser: Browser
) -> None:
    user = media_system.create_user()
    for name in ("one", "two", "three"):
        await user.share(media_url(website, f"{name}.mp4"))
    async with open_media(browser, media_system, user) as tab:
        page, keys = tab.page, tab.page.keyboard
        await expect(tab.cards).to_have_count(3)
        await keys.press("?")
        await expect(page.locator("dialog")).to_contain_text("Next card")
        await keys.press("Escape")
        await keys.press("j")
        await expect(tab.card("three.mp4")).to_be_focused()
        await keys.press("j")
        await expect(tab.card("two.mp4")).to_be_focused()
        await keys.press("Enter")
        await expect(page.locator("dialog")).to_contain_text("two.mp4")
        await keys.press("Escape")
        await expect(tab.card("two.mp4")).to_be_focused()
        await keys.press("x")
        await expect(page.locator("dialog")).to_contain_text("Stop and delete")
        await keys.press("Enter")
        await expect(tab.cards).to_have_count(2)
        await expect(tab.card("one.mp4")).to_be_focused()
        await keys.press("a")
        await expect(page.locator("#add-url")).to_be_focused()
        await keys.type(media_url(website, "four.mp4"))
        await keys.press("Enter")
        await expect(tab.cards).to_have_count(3)


async def test_hostile_texts_stay_texts(
    media_system: MediaHarness, website: WebServer, browser: Browser
) -> None:
    user = media_system.create_user()
    await user.share(media_url(website))
    async with open_media(browser, media_system, user) as tab:
        # Titles, authors and notices come from strangers, and rows can come from elsewhere.
        facts = dict.fromkeys(("title", "author", "platform", "notice"), HOSTILE_TEXT)
        await media_system.fetch(
            "update public.shares set url = 'javascript:window.hacked=4', platform_data = $1::jsonb,"
            " download_error = $2, download_status = 'failed'",
            json.dumps(facts),
            HOSTILE_TEXT,
        )
        card = tab.cards.first
        await expect(card).to_have_attribute("data-status", "failed")
        await expect(card.locator("h2")).to_contain_text("<img src=x onerror=")
        await card.locator("button.open").click()
        await expect(tab.page.locator("dialog")).to_contain_text("javascript:window.hacked=4")
        assert (
            await tab.page.locator("[href^='javascript'], img[src='x'], li script, dialog script").count()
            == 0
        )
        assert await tab.page.evaluate("() => window.hacked") is None
        await tab.check_width()
