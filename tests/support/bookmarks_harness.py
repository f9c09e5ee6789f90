"""A running bookmark system for tests, with a capture that the test controls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from system_harness import SystemHarness, SystemUser

from holdfast import Client
from holdfast.engine.connection import Database
from holdfast.systems.bookmarks.capture_port import BookmarkCapture
from holdfast.systems.bookmarks.consumer import BookmarksWorkerState, create_bookmark_consumer
from holdfast.systems.capture.errors import CaptureError
from holdfast.systems.providers import UsageAccount
from holdfast.worker.runtime import WorkerRuntime

ADD_PATH = "/api/v1/bookmarks/add/data"
CONSUMER_PATH = "/api/v1/bookmarks/add/tasks/queue-consumer"
CRON_SECRET = "a secret for the cron jobs of the tests"
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360f8cfc0f01f0005000180d0a35c7f0000000049454e44ae426082"
)


@dataclass(frozen=True)
class PageOfTest:
    title: str | None = "A page"
    description: str | None = "About something"
    og_image_url: str | None = "https://pictures.test/og.png"
    favicon_urls: Sequence[str] = ("https://pictures.test/icon.png",)
    manifest_url: str | None = None
    final_url: str = "https://pages.test/"
    html: str = "<p>Readable words</p>"
    text: str | None = None
    screenshot: bytes = PIXEL
    screenshot_type: str = "image/png"


@dataclass(frozen=True)
class ImageOfTest:
    content: bytes = PIXEL
    content_type: str = "image/png"
    width: int = 1
    height: int = 1
    blurhash: str = "LEHV6nWB2yk8pyo0adR*.7kCMdnj"
    ocr_text: str | None = "words in the picture"
    caption: str | None = "a small picture"


@dataclass
class ControlledCapture:
    """A capture whose answers, errors and pauses the test decides. It counts the calls by name and URL."""

    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    errors: dict[str, Exception] = field(default_factory=dict[str, Exception])
    page: PageOfTest = field(default_factory=PageOfTest)
    gate: asyncio.Event | None = None
    accounts: list[UsageAccount] = field(default_factory=list[UsageAccount])

    def count(self, name: str) -> int:
        return sum(called == name for called, _ in self.calls)

    async def _answer(self, name: str, url: str) -> None:
        self.calls.append((name, url))
        if self.gate is not None:
            await self.gate.wait()
        if name in self.errors:
            raise self.errors[name]

    async def capture_page(self, url: str) -> PageOfTest:
        await self._answer("capture_page", url)
        return self.page

    async def read_page(self, url: str) -> PageOfTest:
        await self._answer("read_page", url)
        return replace(self.page, title="A page without a browser")

    async def fetch_image(self, url: str, *, account: UsageAccount) -> ImageOfTest:
        self.accounts.append(account)
        await self._answer("fetch_image", url)
        return ImageOfTest()

    async def list_icon_urls(self, page: Any) -> Sequence[str]:
        urls: Sequence[str] = page.favicon_urls
        return urls

    async def find_favicon(self, page_url: str, icon_urls: Sequence[str]) -> tuple[bytes, str] | None:
        await self._answer("find_favicon", page_url)
        return (PIXEL, "image/png") if icon_urls else None

    async def extract_text(self, page: Any, url: str) -> str | None:
        return "Readable words"

    async def close(self) -> None:
        pass


def temporary_error(reason: str = "The page did not load in time.") -> CaptureError:
    return CaptureError(reason, retry=True)


def permanent_error(reason: str = "The server answered with the status 404.") -> CaptureError:
    return CaptureError(reason, retry=False)


@dataclass
class BookmarksHarness(SystemHarness):
    """The bookmark system, and the capture that its API and its workers use."""

    capture: ControlledCapture = field(default_factory=ControlledCapture)

    async def add(self, user: SystemUser, url: str, **fields: Any) -> dict[str, Any]:
        response = await user.post(ADD_PATH, {"url": url, **fields})
        assert response.status_code == 200, response.text
        return dict(response.json())

    async def get(self, user: SystemUser, bookmark_id: int) -> dict[str, Any]:
        return dict((await user.get(f"/api/v1/bookmarks/{bookmark_id}")).json())

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        async with self.db.connection() as connection:
            return list(await connection.fetch(query, *arguments))

    async def count_messages(self, place: str = "q") -> int:
        [row] = await self.fetch(f'select count(*) from pgmq."{place}_add-bookmark-url-queue"')
        return int(row[0])

    @asynccontextmanager
    async def run_bookmark_worker(
        self, capture: BookmarkCapture | None = None, db: Database | None = None
    ) -> AsyncGenerator[BookmarksWorkerState]:
        """Run a worker in this event loop, with its own client. `db` has the login of the worker."""
        db = db or self.db
        async with Client(db.url.reveal(), settings=db.settings) as client:
            state = BookmarksWorkerState(client, capture or self.capture)
            worker = WorkerRuntime(
                db,
                {task.name: task for task in self.tasks},
                [create_bookmark_consumer(lambda: state)],
                state=state,
                grace=timedelta(0),
            )
            stop = asyncio.Event()
            running = asyncio.create_task(worker.run(stop))
            try:
                yield state
            finally:
                stop.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
