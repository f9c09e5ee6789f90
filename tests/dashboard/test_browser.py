"""The dashboard in Chromium: accessibility, hostile text, live updates, keyboard, and no JavaScript."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any
from uuid import UUID

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from chromium import CHROMIUM_OPTIONS, find_chromium
from dashboard_server import DashboardServer
from hostile_data import create_hostile_data
from manual_worker import ManualWorker, build_outcome
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from holdfast.engine import jobs
from holdfast.engine.connection import Connection

AXE_OPTIONS = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
# The dark theme changes only colours.
DARK_AXE_OPTIONS = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_OPTIONS)
        yield browser
        browser.close()


class MonitoredTab:
    """A browser tab that records console messages, errors and dialogs."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.messages: list[str] = []
        self.page.on("console", lambda message: self.messages.append(f"{self.page.url}: {message.text}"))
        self.page.on("pageerror", lambda error: self.messages.append(f"{self.page.url}: {error}"))
        self.page.on(
            "dialog", lambda dialog: self.messages.append(f"{self.page.url}: dialog {dialog.message}")
        )

    def open(self, url: str) -> Page:
        response = self.page.goto(url)
        assert response is not None
        assert response.status == 200, url
        return self.page


@pytest.fixture
def open_tab(dashboard: DashboardServer, browser: Browser) -> Generator[Callable[..., MonitoredTab]]:
    opened: list[tuple[BrowserContext, MonitoredTab]] = []

    def open_signed_in(role: str = "admin", **options: Any) -> MonitoredTab:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(20_000)
        tab = MonitoredTab(context)
        opened.append((context, tab))
        tab.page.goto(dashboard.create_login_link(role))
        return tab

    yield open_signed_in
    for context, tab in opened:
        context.close()
        assert tab.messages == []


def list_paths(ids: dict[str, Any]) -> list[str]:
    return [
        "/",
        "/jobs",
        "/jobs?q=state:failed",
        "/jobs?q=nosuch:1",
        f"/jobs/{ids['graph']}",
        f"/jobs/{ids['failed']}?tab=payload",
        f"/jobs/{ids['running']}?tab=events",
        f"/jobs/{ids['graph']}?tab=tasks",
        f"/jobs/{ids['failed']}/rerun",
        "/errors",
        "/error?cause=TimeoutError%20render.py:goto",
        "/queues",
        "/queue?name=ai",
        "/tasks",
        "/task?name=screenshot",
        "/messages",
        "/messages?queue=clips",
        "/workers",
        "/charts?by=owner",
        "/worker?name=worker-1",
        "/schedules",
        "/schedules/edit?name=nightly-report",
        "/schedules/show?name=nightly-report",
        "/limits?history=browser",
        *(f"/files/{file}" for file in ids["files"].values()),
        "/webhooks",
        "/alerts",
        "/alerts/rules",
        "/bulk",
        "/bulk/new?verb=retry&q=state:failed",
        f"/bulk/{ids['bulk']}",
        f"/batches/{ids['batch']}",
        "/files",
        "/limits",
        "/database",
        "/audit",
        "/sessions",
        "/settings",
    ]


def get_widths(page: Page) -> tuple[int, int]:
    """Return the width of the content and of the window."""
    size = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    return size[0], size[1]


@pytest.mark.timeout(600)
def test_every_page_is_accessible_in_both_themes_and_sizes(
    dashboard: DashboardServer, open_tab: Callable[..., MonitoredTab]
) -> None:
    """No console message, no CSP report, no axe violation and no horizontal scrolling."""
    light = open_tab(color_scheme="light", bypass_csp=True)
    problems: list[Any] = []
    for path in list_paths(dashboard.ids):
        page = light.open(dashboard.base + path)
        report = Axe().run(page, options=AXE_OPTIONS)
        problems += [(path, report.generate_report())] if report.violations_count else []
        page.emulate_media(color_scheme="dark")
        dark = Axe().run(page, options=DARK_AXE_OPTIONS)
        problems += [(path, "dark", dark.generate_report())] if dark.violations_count else []
        page.emulate_media(color_scheme="light")
        content_width, window_width = get_widths(page)
        problems += [(path, content_width, window_width)] if content_width > window_width else []
    phone = open_tab(viewport={"width": 390, "height": 844})
    for path in list_paths(dashboard.ids):
        content_width, window_width = get_widths(phone.open(dashboard.base + path))
        problems += [(path, "phone", content_width, window_width)] if content_width > window_width else []
    assert problems == []


def test_hostile_text_is_shown_as_text(
    dashboard: DashboardServer, open_tab: Callable[..., MonitoredTab]
) -> None:
    hostile = dashboard.run_query(create_hostile_data)
    tab = open_tab("admin")
    paths = [*list_paths(dashboard.ids), "/messages?queue=clips&after=12", "/errors?span=7d"]
    for n, job in enumerate(hostile["jobs"]):
        paths += [f"/jobs/{job}", f"/jobs/{job}{('?tab=payload', '/rerun')[n % 2]}"]
    for path in paths:
        page = tab.open(dashboard.base + path)
        assert page.evaluate("window.hacked") is None, path
        content_width, window_width = get_widths(page)
        assert content_width <= window_width, (path, "the layout broke")
    tab.page.goto(f"{dashboard.base}/jobs?q=%22%3E%3Cscript%3Ewindow.hacked%3D1%3C%2Fscript%3E")
    assert tab.page.evaluate("window.hacked") is None
    body = (
        tab.open(f"{dashboard.base}/jobs/{hostile['jobs'][0]}?tab=payload")
        .locator("pre.json")
        .first.inner_text()
    )
    assert "<script>window.hacked=1</script>" in body


def test_live_updates_keep_selection_and_input(
    dashboard: DashboardServer, open_tab: Callable[..., MonitoredTab]
) -> None:
    async def submit_jobs(conn: Connection) -> list[UUID]:
        submitted = await jobs.submit_many(conn, [{"type": "lively", "queue": "lively"} for _ in range(3)])
        return [job.id for job in submitted]

    first = dashboard.run_query(submit_jobs)
    page = open_tab("operator").open(f"{dashboard.base}/jobs?q=task:lively")
    expect(page.locator("#live-status")).to_have_text("Live")
    row = page.locator(f'tr[data-row="{first[0]}"]')
    expect(row).to_contain_text("ready")
    row.evaluate("node => (node.marker = 'same')")

    async def claim(conn: Connection) -> Any:
        return (await ManualWorker(conn, "lively", ["lively"]).claim_tasks(1))[0]

    task = dashboard.run_query(claim)
    started_at = time.monotonic()
    expect(page.locator(f'tr[data-row="{task.id}"]')).to_contain_text("running")
    assert time.monotonic() - started_at < 10, "it takes a second on an idle machine; this one may be busy"
    assert row.evaluate("node => node.marker") == "same", "the row is still the same node"

    # Selected rows stay selected, and updates wait behind a button.
    checkbox = page.locator(f'tr[data-row="{first[1]}"] input[type=checkbox]')
    checkbox.check()
    search = page.locator("#q")
    search.fill("typed but not sent")
    dashboard.run_query(submit_jobs)
    pending = page.locator("#pending-updates")
    expect(pending).to_be_visible()
    assert page.locator("tr[data-row]").count() == 3
    pending.click()
    expect(page.locator("tr[data-row]")).to_have_count(6)
    expect(checkbox).to_be_checked()
    assert search.input_value() == "typed but not sent"
    expect(page.locator("[data-selected-count]")).to_have_text("1 selected")


def set_page_hidden(page: Page, hidden: bool) -> None:
    """Make the page believe that it became hidden or visible."""
    script = """hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
      document.dispatchEvent(new Event('visibilitychange')) }"""
    page.evaluate(script, hidden)


def test_hidden_page_has_no_stream_and_resumes(
    dashboard: DashboardServer, open_tab: Callable[..., MonitoredTab]
) -> None:
    page = open_tab("viewer").open(f"{dashboard.base}/queues")
    expect(page.locator("#live-status")).to_have_text("Live")
    assert dashboard.app.live.stream_count >= 1
    set_page_hidden(page, True)
    wait_until(lambda: dashboard.app.live.stream_count == 0)
    dashboard.run_query(lambda conn: jobs.submit(conn, {"type": "t", "queue": "while-hidden"}))
    set_page_hidden(page, False)
    expect(page.locator("#content")).to_contain_text("while-hidden")
    assert dashboard.app.live.stream_count == 1


def test_database_outage(dashboard: DashboardServer, open_tab: Callable[..., MonitoredTab]) -> None:
    page = open_tab("viewer").open(f"{dashboard.base}/workers")
    expect(page.locator("#live-status")).to_have_text("Live")
    dashboard.allow_connections(False)
    try:
        expect(page.locator("#banner")).to_contain_text("database does not respond")
        expect(page.locator("#content")).to_contain_text("worker-1")
        other = page.context.new_page()
        other.goto(f"{dashboard.base}/workers")
        expect(other.locator("#banner")).to_be_visible()
        expect(other.locator("#content")).to_contain_text("worker-1")
        other.close()
    finally:
        dashboard.allow_connections(True)
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator("#live-status")).to_have_text("Live")


def wait_until(check: Callable[[], bool], timeout_s: float = 30) -> None:
    """Poll a function until it returns true."""
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_without_javascript(dashboard: DashboardServer, open_tab: Callable[..., MonitoredTab]) -> None:
    """Filter, open the next page, retry, cancel and export, with plain links and forms."""

    async def create_jobs(conn: Connection) -> tuple[UUID, UUID]:
        await jobs.submit_many(conn, [{"type": "plain", "queue": "plain"} for _ in range(110)])
        alive = await jobs.submit(conn, {"type": "plain-alive", "queue": "plain"})
        broken = await jobs.submit(conn, {"type": "plain-broken", "queue": "plain-broken", "attempts": 1})
        manual_worker = ManualWorker(conn, "plain", ["plain-broken"])
        (task,) = await manual_worker.claim_tasks(1)
        await manual_worker.finish_and_claim([build_outcome(task, "fail", {"type": "E", "message": "m"})])
        return alive.id, broken.id

    alive, broken = dashboard.run_query(create_jobs)
    page = open_tab("operator", java_script_enabled=False).open(f"{dashboard.base}/jobs")
    page.locator("#q").fill("task:plain")
    page.locator("#q").press("Enter")
    expect(page.locator("tr[data-row]")).to_have_count(100)
    page.get_by_role("link", name="Older »").click()
    expect(page.locator("tr[data-row]")).to_have_count(10)
    page.goto(f"{dashboard.base}/jobs/{alive}")
    page.locator("#cancel > summary").click()
    page.get_by_role("button", name="Cancel this job").click()
    expect(page.locator(".flash")).to_contain_text("Job cancelled.")
    page.goto(f"{dashboard.base}/jobs/{broken}")
    page.locator("#retry > summary").click()
    page.get_by_role("button", name="Retry this job").click()
    expect(page.locator(".flash")).to_contain_text("1 task will run again.")
    with page.expect_download() as download:
        page.goto(f"{dashboard.base}/jobs?q=task:plain-broken")
        page.locator("#export > summary").click()
        page.get_by_role("link", name="JSON Lines").click()
    assert download.value.suggested_filename == "jobs.jsonl"


def test_keyboard_shortcuts(dashboard: DashboardServer, open_tab: Callable[..., MonitoredTab]) -> None:
    async def create_failed_job(conn: Connection) -> UUID:
        submitted = await jobs.submit(conn, {"type": "keyed", "queue": "keyed", "attempts": 1})
        manual_worker = ManualWorker(conn, "keyed", ["keyed"])
        (task,) = await manual_worker.claim_tasks(1)
        await manual_worker.finish_and_claim([build_outcome(task, "fail", {"type": "E", "message": "m"})])
        return submitted.id

    job = dashboard.run_query(create_failed_job)
    page = open_tab("operator").open(f"{dashboard.base}/")
    keys = page.keyboard
    keys.press("g")
    keys.press("j")
    page.wait_for_url("**/jobs")
    keys.press("/")
    keys.type("state:failed task:keyed")
    keys.press("Enter")
    expect(page.locator("tr[data-row]")).to_have_count(1)
    page.locator("body").press("j")
    keys.press("Enter")
    page.wait_for_url(f"**/jobs/{job}")
    keys.press("r")
    expect(page.locator("#retry")).to_have_attribute("open", "")
    keys.type("mended")
    keys.press("Enter")
    expect(page.locator(".flash")).to_contain_text("1 task will run again.")
    keys.press("?")
    expect(page.locator("#shortcuts-help")).to_be_visible()
    keys.press("Escape")
    theme = page.locator("html")
    page.locator("body").press("t")
    expect(theme).to_have_attribute("data-theme", "light")

    # With shortcuts off, keys do nothing.
    page.goto(f"{dashboard.base}/settings")
    page.locator('input[name="keys"][value="off"]').check()
    page.get_by_role("button", name="Save").click()
    page.locator("body").press("?")
    expect(page.locator("#shortcuts-help")).to_be_hidden()
    expect(theme).to_have_attribute("data-theme", "light")


def test_bulk_action_on_selected_rows(
    dashboard: DashboardServer, open_tab: Callable[..., MonitoredTab]
) -> None:
    async def submit_jobs(conn: Connection) -> None:
        await jobs.submit_many(conn, [{"type": "ticked", "queue": "ticked"} for _ in range(5)])

    dashboard.run_query(submit_jobs)
    page = open_tab("operator").open(f"{dashboard.base}/jobs?q=task:ticked")
    for checkbox in page.locator("td.select-cell input").all()[:3]:
        checkbox.check()
    page.get_by_role("button", name="Cancel…").click()
    expect(page.locator("h1")).to_have_text("Cancel 3 jobs")
    page.locator('input[name="reason"]').fill("not needed")
    page.get_by_role("button", name="Cancel 3 jobs").click()
    expect(page.locator(".page-header .state")).to_have_text("done")
    expect(page.locator("tbody")).to_contain_text("cancelled")


def test_open_pages_go_to_the_login_when_their_session_ends(
    dashboard: DashboardServer, open_tab: Callable[..., MonitoredTab]
) -> None:
    visible, hidden = open_tab("viewer"), open_tab("viewer")
    visible.open(f"{dashboard.base}/queues")
    hidden.open(f"{dashboard.base}/queues")
    for tab in (visible, hidden):
        expect(tab.page.locator("#live-status")).to_have_text("Live")
    set_page_hidden(hidden.page, True)
    dashboard.run_query(lambda conn: conn.execute("select holdfast.end_dashboard_sessions()"))
    expect(visible.page).to_have_url(f"{dashboard.base}/login?next=%2Fqueues", timeout=60_000)
    set_page_hidden(hidden.page, False)  # its stream is refused with 401
    expect(hidden.page).to_have_url(f"{dashboard.base}/login?next=%2Fqueues", timeout=60_000)
    for tab in (visible, hidden):
        tab.page.goto("about:blank")
        tab.messages.clear()  # the browser reports the refused stream, and a hint about the login form
