"""Sample bookmarks for screenshots of the page: pages that the browser paints, and one that fails."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
from bookmarks_harness import ADD_PATH, ControlledCapture, ImageOfTest, PageOfTest, permanent_error
from page_site import make_image
from playwright.async_api import Browser

from holdfast import Client
from holdfast.engine.connection import Database
from holdfast.systems import bookmarks
from holdfast.systems.bookmarks.consumer import BookmarksWorkerState, create_bookmark_consumer
from holdfast.systems.providers import UsageAccount
from holdfast.testing import wait_until
from holdfast.worker.runtime import WorkerRuntime

# URL, title, description, background and accent of each page.
SAMPLE_PAGES = [
    ("https://allotment.example/plan", "A kitchen garden in twelve weeks",
     "What to sow, when to water, and a calendar for a small plot.", "#eef3e6", "#3d6b35"),
    ("https://sleeper.example/map", "Night trains: a map of every line",
     "Sleeper connections with operators, timetables and prices.", "#10182f", "#e8c46a"),
    ("https://slowbread.example/recipe", "Sourdough for busy people",
     "A starter, a schedule and three loaves that fit around a working day.", "#f7ecdd", "#a4582a"),
    ("https://db.example/mvcc", "Understanding snapshots in PostgreSQL",
     "What vacuum removes, and what happens to a row that nobody can see.", "#e9f0f6", "#24567c"),
    ("https://paperhouse.example/studio", "Making paper by hand",
     "Fibres, frames and patience: a studio visit in twenty pictures.", "#f2f0ea", "#6b5b4b"),
    ("https://tides.example/almanac", "A tide table that fits in a pocket",
     "How harbours predicted the sea for two hundred years.", "#dfeef0", "#1d6a74"),
]  # fmt: skip
FAILED_URL = "https://gone.example/article"
PAGE_HTML = """<body style="margin:0;background:{background};color:{accent};font:24px/1.5 Georgia,serif">
<header style="padding:28px 72px;border-bottom:2px solid {accent};font:600 22px sans-serif">{host}</header>
<main style="padding:72px;max-width:900px">
<h1 style="font-size:72px;line-height:1.05;margin:0 0 32px">{title}</h1>
<p style="font-size:30px">{description}</p><div style="height:300px;margin-top:48px;border-radius:12px;
background:linear-gradient(120deg,{accent},{background})"></div></main></body>"""


@dataclass
class SampleCapture(ControlledCapture):
    """A capture that answers with painted pages instead of reaching the web."""

    screenshots: dict[str, bytes] = field(default_factory=dict[str, bytes])

    async def capture_page(self, url: str) -> PageOfTest:
        if url == FAILED_URL:
            raise permanent_error()
        _, title, description, *_ = next(page for page in SAMPLE_PAGES if page[0] == url)
        return PageOfTest(
            title=title,
            description=description,
            screenshot=self.screenshots[url],
            screenshot_type="image/webp",
        )

    async def read_page(self, url: str) -> PageOfTest:
        raise permanent_error()

    async def fetch_image(self, url: str, *, account: UsageAccount) -> ImageOfTest:
        picture = make_image(600, 315, (61, 107, 53), text="Week 1")
        return ImageOfTest(content=picture, width=600, height=315, ocr_text="Week 1", caption="A green sign")

    async def find_favicon(self, page_url: str, icon_urls: Sequence[str]) -> tuple[bytes, str] | None:
        accent = next((page[4] for page in SAMPLE_PAGES if page[0] == page_url), "#888888")
        return make_image(32, 32, accent), "image/png"

    async def extract_text(self, page: Any, url: str) -> str | None:
        return "Begin with the soil.\n\nA plot of ten square metres feeds two people from May to October."


async def paint_sample_pages(browser: Browser) -> SampleCapture:
    """Paint the sample pages in the browser and return the capture that answers with them."""
    from PIL import Image  # noqa: PLC0415

    capture = SampleCapture()
    page = await browser.new_page(viewport={"width": 1280, "height": 800})
    for url, title, description, background, accent in SAMPLE_PAGES:
        values = {"title": title, "description": description, "background": background, "accent": accent}
        await page.set_content(PAGE_HTML.format(host=url.split("/")[2], **values))
        output = io.BytesIO()
        Image.open(io.BytesIO(await page.screenshot())).convert("RGB").save(output, "WEBP", quality=85)
        capture.screenshots[url] = output.getvalue()
    await page.close()
    return capture


@asynccontextmanager
async def run_sample_worker(database: Database, capture: SampleCapture) -> AsyncGenerator[None]:
    """Run a worker that completes bookmarks with the sample pages."""
    async with Client(database.url.reveal(), settings=database.settings) as client:
        state = BookmarksWorkerState(client, capture)
        tasks, consumers = (
            {task.name: task for task in bookmarks.tasks},
            [create_bookmark_consumer(lambda: state)],
        )
        worker = WorkerRuntime(database, tasks, consumers, state=state, grace=timedelta(0))
        stop = asyncio.Event()
        running = asyncio.create_task(worker.run(stop))
        try:
            yield
        finally:
            stop.set()
            await running


async def create_sample_bookmarks(base: str, headers: dict[str, str]) -> None:
    """Save the sample pages for a user, and wait until they are complete or have failed."""
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=60) as http:
        for url in [*(page[0] for page in reversed(SAMPLE_PAGES)), FAILED_URL]:
            (await http.post(ADD_PATH, json={"url": url})).raise_for_status()

        async def are_finished() -> bool:
            rows = (await http.get("/api/v1/bookmarks")).json()["bookmarks"]
            return all(row["status"] in ("complete", "failed") for row in rows)

        await wait_until(are_finished, within=timedelta(minutes=2), what="the sample bookmarks are complete")
