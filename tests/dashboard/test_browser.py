"""The dashboard in a real Chromium: clean pages, harmless text, live, by keyboard, without script."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Generator
from typing import Any
from uuid import UUID

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from chromium import OPTIONS, program
from exhibition import Exhibition
from hands import Hand, outcome
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from holdfast.engine import artifacts, insight, jobs
from holdfast.engine.connection import Connection

AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
# Colours are what changes in the dark; the rest of a page is the same.
DARK = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
HOSTILE = [
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "{{ 7 * 7 }}{% raise %}",
    "</textarea></title></style><svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "\u202etxt.exe\u2066\u200f",
    "\u0001\u0007\u001b[31m ﷽ 𒐫",
    "'; drop table holdfast.jobs; --",
    "A" * 200_000,  # the longest that fits into a payload with the rest
]


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=program(), args=OPTIONS)
        yield found
        found.close()


class Tab:
    """A page that remembers whatever went wrong on it."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{self.page.url}: {message.text}"))
        self.page.on("pageerror", lambda problem: self.said.append(f"{self.page.url}: {problem}"))
        self.page.on("dialog", lambda dialog: self.said.append(f"{self.page.url}: dialog {dialog.message}"))

    def open(self, url: str) -> Page:
        answer = self.page.goto(url)
        assert answer is not None
        assert answer.status == 200, url
        return self.page


@pytest.fixture
def tab(shown: Exhibition, browser: Browser) -> Generator[Callable[..., Tab]]:
    made: list[tuple[BrowserContext, Tab]] = []

    def new(role: str = "admin", **options: Any) -> Tab:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(20_000)
        found = Tab(context)
        made.append((context, found))
        found.page.goto(shown.link(role))
        return found

    yield new
    for context, found in made:
        context.close()
        assert found.said == []


def pages(ids: dict[str, Any]) -> list[str]:
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
        "/worker?name=worker-1",
        "/schedules",
        "/schedules/edit?name=nightly-report",
        *(f"/files/{file}" for file in ids["files"].values()),
        "/webhooks",
        "/bulk",
        "/bulk/new?verb=retry&q=state:failed",
        f"/bulk/{ids['bulk']}",
        f"/batches/{ids['batch']}",
        "/files",
        "/limits",
        "/database",
        "/audit",
        "/settings",
    ]


def wide(page: Page) -> tuple[int, int]:
    size = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    return size[0], size[1]


def test_every_page_is_clean_light_and_dark_wide_and_narrow(
    shown: Exhibition, tab: Callable[..., Tab]
) -> None:
    """No message in the console, no report of the policy, nothing that axe finds, no sideways scroll."""
    light = tab(color_scheme="light", bypass_csp=True)
    wrong: list[Any] = []
    for path in pages(shown.ids):
        page = light.open(shown.base + path)
        found = Axe().run(page, options=AXE)
        wrong += [(path, found.generate_report())] if found.violations_count else []
        page.emulate_media(color_scheme="dark")
        dark = Axe().run(page, options=DARK)
        wrong += [(path, "dark", dark.generate_report())] if dark.violations_count else []
        page.emulate_media(color_scheme="light")
        full, seen = wide(page)
        wrong += [(path, full, seen)] if full > seen else []
    phone = tab(viewport={"width": 390, "height": 844})
    for path in pages(shown.ids):
        full, seen = wide(phone.open(shown.base + path))
        wrong += [(path, "phone", full, seen)] if full > seen else []
    assert wrong == []


async def _poison(conn: Connection) -> dict[str, Any]:
    """Hostile text wherever a payload, a name, an error, a log line or a progress message can put it."""
    made: list[UUID] = []
    for text in HOSTILE:
        name = re.sub(r"[\x01-\x1f]", "", text)[:60]
        one = await jobs.submit(
            conn,
            {
                "type": name,
                "queue": name,
                "owner": name,
                "labels": {name: text},
                "args": {name: text, "big": "x" * 1000},
                "attempts": 1,
            },
        )
        made.append(one.id)
        hand = Hand(conn, name, [name])
        (task,) = await hand.take(1)
        progress = json.dumps({str(task.id): {"percent": 50, "phase": text[:200], "message": text[:2000]}})
        await conn.execute("select holdfast.keep_progress($1, $2, holdfast.now())", progress, [task.id])
        about = {"host": text[:200], "version": text[:50]}
        await conn.execute("select holdfast.beat_worker($1, $2)", name, json.dumps(about))
        error = {
            "type": text[:200],
            "message": text,
            "traceback": f'  File "{text}", line 1\n    {text}',
            "fingerprint": f"x {text}"[:200],
        }
        await hand.exchange([outcome(task, "fail", error)])
        await insight.pause_queue_until(conn, name, None, why=text[:200], by=name)
        safe = text.replace("/", "_").replace("\u0001", "").replace("\u0007", "").replace("\u001b", "")[:200]
        staged = await artifacts.stage_file(
            conn, {"name": safe, "content_type": "text/html", "job": str(one.id)}
        )
        await artifacts.record(conn, staged.id, None, size=1, sha256="0" * 64, meta={})
        await conn.execute("select pgmq.send('clips', $1::jsonb)", json.dumps({text: text}))
        await insight.save_view(conn, name, "jobs", text[:500].replace("\0", ""), by="ann")
    return {
        "jobs": made,
        "types": [row["type"] for row in await conn.fetch("select distinct type from holdfast.kinds")],
    }


def test_hostile_text_is_text(shown: Exhibition, tab: Callable[..., Tab]) -> None:
    poisoned = shown.ask(_poison)
    one = tab("admin")
    paths = [*pages(shown.ids), "/messages?queue=clips&after=12", "/errors?span=7d"]
    for n, job in enumerate(poisoned["jobs"]):
        paths += [f"/jobs/{job}", f"/jobs/{job}{('?tab=payload', '/rerun')[n % 2]}"]
    for path in paths:
        page = one.open(shown.base + path)
        assert page.evaluate("window.hacked") is None, path
        full, seen = wide(page)
        assert full <= seen, (path, "the layout broke")
    one.page.goto(f"{shown.base}/jobs?q=%22%3E%3Cscript%3Ewindow.hacked%3D1%3C%2Fscript%3E")
    assert one.page.evaluate("window.hacked") is None
    body = (
        one.open(f"{shown.base}/jobs/{poisoned['jobs'][0]}?tab=payload")
        .locator("pre.json")
        .first.inner_text()
    )
    assert "<script>window.hacked=1</script>" in body


def test_pages_follow_what_happens_and_keep_what_is_yours(shown: Exhibition, tab: Callable[..., Tab]) -> None:
    async def ready(conn: Connection) -> list[UUID]:
        made = await jobs.submit_many(conn, [{"type": "lively", "queue": "lively"} for _ in range(3)])
        return [one.id for one in made]

    first = shown.ask(ready)
    page = tab("operator").open(f"{shown.base}/jobs?q=task:lively")
    expect(page.locator("#pulse")).to_have_text("live")
    row = page.locator(f'tr[data-row="{first[0]}"]')
    expect(row).to_contain_text("ready")
    row.evaluate("node => (node.mark = 'same')")

    async def claim(conn: Connection) -> Any:
        return (await Hand(conn, "lively", ["lively"]).take(1))[0]

    task = shown.ask(claim)
    began = time.monotonic()
    expect(page.locator(f'tr[data-row="{task.id}"]')).to_contain_text("running")
    seconds = time.monotonic() - began
    assert seconds < 10, "a second on an idle machine; this one may be busy"
    assert row.evaluate("node => node.mark") == "same", "the row is still the same node"

    # Ticked rows keep their ticks, and what is new waits behind a button.
    box = page.locator(f'tr[data-row="{first[1]}"] input[type=checkbox]')
    box.check()
    search = page.locator("#q")
    search.fill("typed but not sent")
    shown.ask(ready)
    waiting = page.locator("#waiting")
    expect(waiting).to_be_visible()
    assert page.locator("tr[data-row]").count() == 3
    waiting.click()
    expect(page.locator("tr[data-row]")).to_have_count(6)
    expect(box).to_be_checked()
    assert search.input_value() == "typed but not sent"
    expect(page.locator("[data-selected]")).to_have_text("1 selected")


def test_a_stream_that_was_cut_goes_on_and_a_hidden_page_has_none(
    shown: Exhibition, tab: Callable[..., Tab]
) -> None:
    page = tab("viewer").open(f"{shown.base}/queues")
    expect(page.locator("#pulse")).to_have_text("live")
    assert shown.dashboard.live.viewers >= 1
    hide = """hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
      document.dispatchEvent(new Event('visibilitychange')) }"""
    page.evaluate(hide, True)
    wait_for(lambda: shown.dashboard.live.viewers == 0)
    shown.ask(lambda conn: jobs.submit(conn, {"type": "t", "queue": "while-hidden"}))
    page.evaluate(hide, False)
    expect(page.locator("#live")).to_contain_text("while-hidden")
    assert shown.dashboard.live.viewers == 1


def test_the_database_goes_away_and_comes_back(shown: Exhibition, tab: Callable[..., Tab]) -> None:
    page = tab("viewer").open(f"{shown.base}/workers")
    expect(page.locator("#pulse")).to_have_text("live")
    shown.let_in(False)
    try:
        expect(page.locator("#banner")).to_contain_text("database does not answer")
        expect(page.locator("#live")).to_contain_text("worker-1")
        again = page.context.new_page()
        again.goto(f"{shown.base}/workers")
        expect(again.locator("#banner")).to_be_visible()
        expect(again.locator("#live")).to_contain_text("worker-1")
        again.close()
    finally:
        shown.let_in(True)
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator("#pulse")).to_have_text("live")


def wait_for(check: Callable[[], bool], within: float = 30) -> None:
    deadline = time.monotonic() + within
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_without_script(shown: Exhibition, tab: Callable[..., Tab]) -> None:
    """Filter, page on, retry, cancel, fetch: as plain links and forms."""

    async def make(conn: Connection) -> tuple[UUID, UUID]:
        await jobs.submit_many(conn, [{"type": "plain", "queue": "plain"} for _ in range(60)])
        alive = await jobs.submit(conn, {"type": "plain-alive", "queue": "plain"})
        broken = await jobs.submit(conn, {"type": "plain-broken", "queue": "plain-broken", "attempts": 1})
        hand = Hand(conn, "plain", ["plain-broken"])
        (task,) = await hand.take(1)
        await hand.exchange([outcome(task, "fail", {"type": "E", "message": "m"})])
        return alive.id, broken.id

    alive, broken = shown.ask(make)
    page = tab("operator", java_script_enabled=False).open(f"{shown.base}/jobs")
    page.locator("#q").fill("task:plain")
    page.locator("#q").press("Enter")
    expect(page.locator("tr[data-row]")).to_have_count(50)
    page.get_by_role("link", name="older »").click()
    expect(page.locator("tr[data-row]")).to_have_count(10)
    page.goto(f"{shown.base}/jobs/{alive}")
    page.locator("#cancel > summary").click()
    page.get_by_role("button", name="Cancel this job").click()
    expect(page.locator(".flash")).to_have_text("Cancelled.")
    page.goto(f"{shown.base}/jobs/{broken}")
    page.locator("#retry > summary").click()
    page.get_by_role("button", name="Put it back to work").click()
    expect(page.locator(".flash")).to_contain_text("1 task put back")
    with page.expect_download() as fetched:
        page.goto(f"{shown.base}/jobs?q=task:plain-broken")
        page.get_by_role("link", name="JSONL").click()
    assert fetched.value.suggested_filename == "jobs.jsonl"


def test_by_keyboard_alone(shown: Exhibition, tab: Callable[..., Tab]) -> None:
    async def make(conn: Connection) -> UUID:
        made = await jobs.submit(conn, {"type": "keyed", "queue": "keyed", "attempts": 1})
        hand = Hand(conn, "keyed", ["keyed"])
        (task,) = await hand.take(1)
        await hand.exchange([outcome(task, "fail", {"type": "E", "message": "m"})])
        return made.id

    job = shown.ask(make)
    page = tab("operator").open(f"{shown.base}/")
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
    expect(page.locator(".flash")).to_contain_text("put back to work")
    keys.press("?")
    expect(page.locator("#help")).to_be_visible()
    keys.press("Escape")
    theme = page.locator("html")
    page.locator("body").press("t")
    expect(theme).to_have_attribute("data-theme", "light")

    # Switched off, letters are letters.
    page.goto(f"{shown.base}/settings")
    page.locator('input[name="keys"][value="off"]').check()
    page.get_by_role("button", name="Save").click()
    page.locator("body").press("?")
    expect(page.locator("#help")).to_be_hidden()
    expect(theme).to_have_attribute("data-theme", "light")


def test_bulk_from_ticked_rows(shown: Exhibition, tab: Callable[..., Tab]) -> None:
    async def make(conn: Connection) -> None:
        await jobs.submit_many(conn, [{"type": "ticked", "queue": "ticked"} for _ in range(5)])

    shown.ask(make)
    page = tab("operator").open(f"{shown.base}/jobs?q=task:ticked")
    for box in page.locator("td.tick input").all()[:3]:
        box.check()
    page.get_by_role("button", name="Cancel…").click()
    expect(page.locator("h1")).to_have_text("Cancel 3 jobs")
    page.locator('input[name="why"]').fill("not needed")
    page.get_by_role("button", name="Cancel 3 jobs").click()
    expect(page.locator(".bar .state")).to_have_text("done")
    expect(page.locator("tbody")).to_contain_text("cancelled")
