"""The dashboard of two shards in Chromium: the switch, sums, sections, live updates and a stopped shard."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Generator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from chromium import CHROMIUM_OPTIONS, find_chromium
from dashboard_server import ThreadedServer, run_in_thread
from playwright.sync_api import Page, expect, sync_playwright
from sample_dashboard_data import create_sample_data
from shard_databases import create_shard_databases

from holdfast import Client, task
from holdfast.server import create_app, create_dashboard
from holdfast.settings import Secret, Settings

pytestmark = pytest.mark.timeout(400)
KEY = "hf_test_key"
AXE_OPTIONS = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
PATHS = ("/", "/jobs", "/queues", "/workers", "/schedules", "/errors", "/messages", "/limits", "/alerts")


@task(queue="live-queue")
async def echo(text: str) -> str:
    return text


@dataclass
class ShardedServer:
    """A running dashboard of several shards."""

    base: str
    urls: dict[int, str]
    server_url: Secret

    def submit(self, number: int) -> None:
        async def run() -> None:
            async with Client(shards=self.urls) as client:
                await client.shard(number).submit(echo("x"))

        run_in_thread(run())

    def allow_connections(self, number: int, allowed: bool) -> None:
        """Let the database of a shard accept or refuse connections. Refusing also ends the open ones."""
        name = self.urls[number].rpartition("/")[2].partition("?")[0]

        async def run() -> None:
            connection = await asyncpg.connect(self.server_url.reveal())
            await connection.execute(f"alter database {name} with allow_connections {str(allowed).lower()}")
            if not allowed:
                await connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name
                )
            await connection.close()

        run_in_thread(run())


@pytest.fixture(scope="module")
def server(server_url: Secret, template: str, settings: Settings) -> Generator[ShardedServer]:
    urls = run_in_thread(create_shard_databases(server_url, template, settings, [1, 2]))

    async def insert_sample_data() -> None:
        for url in urls.values():
            connection = await asyncpg.connect(url)
            await create_sample_data(connection)
            await connection.close()

    run_in_thread(insert_sample_data())
    text = ",".join(f"{number}={url}" for number, url in urls.items())
    own = replace(
        settings,
        database_url=None,
        shards=Secret(text),
        service_key=Secret(KEY),
        connect_timeout=timedelta(seconds=2),
    )
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(own, dashboard=create_dashboard)
    uvicorn_server = ThreadedServer(
        uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, lifespan="on")
    )
    thread = threading.Thread(
        target=lambda: asyncio.run(uvicorn_server.serve(sockets=[listener])), daemon=True
    )
    thread.start()
    yield ShardedServer(f"http://127.0.0.1:{listener.getsockname()[1]}/dashboard", urls, server_url)
    uvicorn_server.should_exit = True
    thread.join(20)


@pytest.fixture(scope="module")
def page(server: ShardedServer) -> Generator[Page]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_OPTIONS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(20_000)
        page.goto(f"{server.base}/login")
        page.get_by_label("Service key").fill(KEY)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{server.base}/")
        yield page
        browser.close()


def test_pages_of_all_shards_are_shown_and_accessible(
    page: Page, server: ShardedServer, tmp_path: Path
) -> None:
    for path in PATHS:
        page.goto(f"{server.base}{path}")
        expect(page.get_by_role("link", name="All shards", exact=True)).to_have_attribute(
            "aria-current", "true"
        )
        page.screenshot(path=tmp_path / f"{path.strip('/') or 'overview'}.png", full_page=True)
        result = Axe().run(page, options=AXE_OPTIONS)
        assert result.violations_count == 0, f"{path}: {result.generate_report()}"


def test_switch_is_kept_from_page_to_page(page: Page, server: ShardedServer) -> None:
    page.goto(f"{server.base}/")
    page.get_by_role("navigation", name="Shards").get_by_role("link", name="Shard 2").click()
    page.wait_for_url(f"{server.base}/shards/2/")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Queues").click()
    page.wait_for_url(f"{server.base}/shards/2/queues")
    page.get_by_role("link", name="All shards", exact=True).click()
    page.wait_for_url(f"{server.base}/queues")
    expect(page.get_by_role("heading", name="Shard 1: Queues")).to_be_visible()
    expect(page.get_by_role("heading", name="Shard 2: Queues")).to_be_visible()


def test_sections_are_updated_live_and_name_a_stopped_shard(page: Page, server: ShardedServer) -> None:
    page.goto(f"{server.base}/queues")
    section = page.locator("#shard-2")
    expect(section.get_by_text("live-queue")).to_have_count(0)
    server.submit(2)
    expect(section.get_by_text("live-queue").first).to_be_visible()
    expect(page.locator("#shard-1").get_by_text("live-queue")).to_have_count(0)
    server.allow_connections(2, False)
    try:
        expect(section.get_by_text("Shard 2 does not answer.")).to_be_visible(timeout=60_000)
        expect(page.get_by_role("heading", name="Shard 1: Queues")).to_be_visible()
    finally:
        server.allow_connections(2, True)
    expect(section.get_by_role("heading", name="Shard 2: Queues")).to_be_visible(timeout=60_000)


def test_jobs_of_both_shards_are_cancelled_by_a_search(page: Page, server: ShardedServer) -> None:
    for number in (1, 2):
        server.submit(number)
    page.goto(f"{server.base}/jobs?q=queue:live-queue state:ready")
    page.get_by_label("matching jobs").check()
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_text("Shard 1: 1 job.")).to_be_visible()
    page.get_by_label("Reason").fill("test")
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_url(f"{server.base}/bulk")
    expect(page.get_by_text("Bulk cancel of")).to_be_visible()
    page.goto(f"{server.base}/jobs?q=queue:live-queue state:cancelled")
    expect(page.locator("tr[data-row]").nth(1)).to_be_visible(timeout=30_000)
