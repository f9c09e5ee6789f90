"""The tasks of a night on call in a browser, with the number of clicks that each may take.

Each task starts on the overview. A backlog of a million ready jobs waits in the background, so the numbers
are estimates, and every page must still answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from uuid import UUID

import pytest
from chromium import CHROMIUM_OPTIONS, find_chromium
from dashboard_server import DashboardServer
from manual_worker import ManualWorker, build_outcome
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from sample_dashboard_data import send_worker_heartbeats

from bench.many_jobs import insert_waiting_jobs
from holdfast.engine import jobs, limits, search
from holdfast.engine.connection import Connection

BACKLOG = int(os.environ.get("NIGHT_BACKLOG", "1000000"))
FAILURES = 500

pytestmark = pytest.mark.timeout(900)  # the first test inserts the backlog


async def create_backlog(conn: Connection) -> None:
    """Insert the backlog and 500 failures of one cause, and leave a queue without a worker."""
    await insert_waiting_jobs(conn, BACKLOG, "backlog", "mail")
    body = {"type": "sync", "queue": "sync", "attempts": 1, "owner": "globex"}
    await jobs.submit_many(conn, [body for _ in range(FAILURES)])
    worker = ManualWorker(conn, "worker-1", ["sync"])
    while tasks := await worker.claim_tasks(100):
        error = {"type": "UpstreamError", "message": "503", "fingerprint": "UpstreamError sync.py:push"}
        await worker.finish_and_claim([build_outcome(task, "fail", error) for task in tasks])
    await jobs.submit_many(conn, [{**body, "type": "import"} for _ in range(30)])


@pytest.fixture(scope="module")
def browser(dashboard: DashboardServer) -> Generator[Browser]:
    dashboard.run_query(create_backlog, timeout_s=900)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_OPTIONS)
        yield browser
        browser.close()


class Operator:
    """A signed-in operator on the overview, who counts their clicks."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def click(self, target: Locator) -> None:
        target.click()
        self.clicks += 1

    def link(self, name: str) -> Locator:
        return self.page.get_by_role("link", name=name).first

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name).first

    def summary(self, name: str) -> Locator:
        return self.page.locator("summary", has_text=name).first

    def search(self, text: str) -> None:
        self.page.locator("#q").fill(text)
        self.page.locator("#q").press("Enter")


@pytest.fixture
def start(dashboard: DashboardServer, browser: Browser) -> Generator[Callable[[], Operator]]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    context.set_default_timeout(30_000)

    def open_overview() -> Operator:
        page = context.new_page()
        page.goto(dashboard.create_login_link("admin"))
        page.goto(f"{dashboard.base}/")
        return Operator(page)

    yield open_overview
    context.close()


def test_why_is_it_not_running(dashboard: DashboardServer, start: Callable[[], Operator]) -> None:
    operator = start()
    operator.search("task:legacy")
    operator.click(operator.page.locator("tr[data-row] a").first)
    expect(operator.page.locator(".reasons")).to_contain_text("No live worker serves queue old-queue")
    assert operator.clicks <= 1


def test_numbers_are_of_the_right_size(start: Callable[[], Operator]) -> None:
    operator = start()
    if BACKLOG >= 1_000_000:
        expect(operator.page.locator(".stat-tiles li").first).to_contain_text("~1M")
    row = operator.page.locator("tr", has_text="backlog").first
    expect(row).to_contain_text("~" if BACKLOG > 10_000 else f"{BACKLOG:,}")
    assert operator.clicks == 0


def test_500_failures_of_one_cause_are_retried_and_undone(
    dashboard: DashboardServer, start: Callable[[], Operator]
) -> None:
    operator = start()
    attention = operator.page.locator(".attention li", has_text="UpstreamError")
    expect(attention).to_contain_text("500 failed attempts")
    operator.click(attention.get_by_role("link").first)
    operator.click(operator.page.get_by_role("link", name="Retry 500 jobs"))
    operator.page.locator("input[name=reason]").fill("the provider is back")
    operator.click(operator.button("Retry 500 jobs"))
    expect(operator.page.locator("h1")).to_contain_text("Bulk retry")
    assert operator.clicks <= 3
    expect(operator.page.locator(".page-actions")).to_contain_text("Undo")
    operator.click(operator.summary("Undo"))
    operator.click(operator.button("Undo this bulk action"))
    expect(operator.page.locator(".flash")).to_contain_text("Undone for")
    assert operator.clicks <= 5


def test_cancel_a_tenant_and_undo(dashboard: DashboardServer, start: Callable[[], Operator]) -> None:
    operator = start()
    operator.search("owner:globex state:ready")
    operator.click(operator.page.get_by_label("matching jobs"))
    operator.click(operator.button("Cancel"))
    expect(operator.page.locator("h1")).to_have_text("Cancel 30 jobs")
    operator.page.locator("input[name=reason]").fill("they asked")
    operator.click(operator.button("Cancel 30 jobs"))
    expect(operator.page.locator(".flash")).to_contain_text("Bulk cancel of 30 jobs started")
    assert operator.clicks <= 3


def test_preview_of_a_million_answers(start: Callable[[], Operator]) -> None:
    operator = start()
    operator.search("queue:backlog")
    operator.click(operator.page.get_by_label("matching jobs"))
    operator.click(operator.button("Cancel"))
    if BACKLOG > 10_000:
        expect(operator.page.locator("h1")).to_contain_text("Cancel about")
    assert operator.clicks <= 2


def test_throughput_and_latency_of_yesterday(start: Callable[[], Operator]) -> None:
    operator = start()
    operator.click(operator.link("24h"))
    operator.click(operator.link("Compare with the day before"))
    expect(operator.page.locator("svg.chart .before.line").first).to_be_attached()
    chart = operator.page.locator("svg.chart").first
    chart.hover()
    expect(operator.page.locator(".chart-hint")).to_contain_text("succeeded")
    box = chart.bounding_box()
    assert box
    operator.page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
    operator.page.mouse.down()
    operator.page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60, steps=4)
    operator.page.mouse.up()
    operator.page.wait_for_url("**/*from=*")
    assert operator.clicks <= 2


def test_lost_worker_in_one_click(start: Callable[[], Operator]) -> None:
    operator = start()
    operator.click(operator.page.locator(".attention li", has_text="worker-3").get_by_role("link").first)
    expect(operator.page.locator(".page-header").first).to_contain_text("lost")
    assert operator.clicks <= 1


def test_drain_a_worker_and_undo(dashboard: DashboardServer, start: Callable[[], Operator]) -> None:
    dashboard.run_query(send_worker_heartbeats)  # the tasks before took longer than a worker may be silent
    operator = start()
    operator.click(operator.link("Workers"))
    operator.click(operator.summary("Drain"))
    expect(operator.page.locator(".popover[open]")).to_contain_text("claims no more tasks")
    operator.click(operator.button("Drain this worker"))
    expect(operator.page.locator(".page-header").first).to_contain_text("drain requested")
    assert operator.clicks <= 3
    operator.click(operator.button("Undo"))
    expect(operator.page.locator(".flash")).to_contain_text("withdrawn")


def test_logs_and_their_download(dashboard: DashboardServer, start: Callable[[], Operator]) -> None:
    operator = start()
    operator.page.goto(f"{dashboard.base}/jobs/{dashboard.ids['graph']}")
    operator.click(operator.link("Logs"))
    with operator.page.expect_download() as download:
        operator.click(operator.link("Download"))
    assert download.value.suggested_filename.endswith(".log")
    assert operator.clicks <= 2


def test_pause_a_queue_and_undo(start: Callable[[], Operator]) -> None:
    operator = start()
    operator.click(operator.page.locator("tr", has_text="backlog").get_by_role("link").first)
    operator.click(operator.summary("Pause"))
    operator.click(operator.page.locator("#pause button").last)
    expect(operator.page.locator(".flash")).to_contain_text("Queue backlog paused")
    assert operator.clicks <= 3
    operator.click(operator.button("Undo"))
    expect(operator.page.locator(".flash")).to_contain_text("Queue backlog resumed")


def test_change_a_limit_and_undo(dashboard: DashboardServer, start: Callable[[], Operator]) -> None:
    def read_maximum() -> int:
        rows = {row["name"]: row for row in dashboard.run_query(limits.list_limits)}
        return int(rows["openai"]["max_running"])

    operator = start()
    operator.click(operator.link("Limits"))
    row = operator.page.locator("tr", has_text="openai")
    operator.click(row.locator("summary", has_text="Edit"))
    row.locator("[name=max_running]").fill("1")
    operator.click(row.get_by_role("button", name="Save limit"))
    expect(operator.page.locator(".flash")).to_contain_text("Limit openai saved.")
    expect(operator.page.locator("tr", has_text="openai")).to_contain_text("/1")
    assert read_maximum() == 1
    assert operator.clicks <= 3
    operator.click(operator.button("Undo"))
    expect(operator.page.locator("tr", has_text="openai")).to_contain_text("/4")
    assert read_maximum() == 4


def test_rerun_with_changed_arguments(dashboard: DashboardServer, start: Callable[[], Operator]) -> None:
    operator = start()
    operator.page.goto(f"{dashboard.base}/jobs/{dashboard.ids['failed']}")
    operator.click(operator.link("Rerun as new job"))
    operator.page.locator('[name="arg.width"]').fill("1024")
    operator.click(operator.page.locator("main form button").last)
    operator.page.wait_for_url("**/jobs/*")
    new_job = UUID(operator.page.url.rpartition("/")[2])
    assert new_job != dashboard.ids["failed"]
    result = dashboard.run_query(lambda conn: search.search_jobs(conn, f"job:{new_job}"))
    assert result.rows[0]["params"]["width"] == 1024
    assert operator.clicks <= 2


def test_next_runs_of_a_schedule(start: Callable[[], Operator]) -> None:
    operator = start()
    operator.click(operator.link("Schedules"))
    row = operator.page.locator("tr", has_text="nightly-report")
    operator.click(row.locator("summary").first)
    expect(row.locator(".run-times")).to_be_visible()
    assert operator.clicks <= 2


def test_list_is_walked_and_selected_with_the_keyboard(start: Callable[[], Operator]) -> None:
    operator = start()
    page = operator.page
    operator.search("task:sync state:failed")
    expect(page.locator("tr[data-row]")).to_have_count(100)
    heights = page.locator("tr[data-row]").evaluate_all("rows => rows.map(row => row.offsetHeight)")
    assert max(heights) - min(heights) <= 1, "each job has one line"
    assert max(heights) < 45
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.keyboard.press("Escape")
    for key in ("j", "j", "k", "x"):
        page.keyboard.press(key)
    expect(page.locator("[data-selected-count]")).to_have_text("1 selected")
    expect(page.locator("tr[data-row]").first.locator("input")).to_be_checked()
    page.keyboard.press("d")
    expect(page.locator("html")).to_have_attribute("data-dense", "")
    page.keyboard.press("x")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/*")
    assert operator.clicks == 0
