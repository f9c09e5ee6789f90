"""A page in a real browser: submits, watches through a cut connection, cancels another job, downloads a
result.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_clients import make_token, serve_app
from chromium import CHROMIUM_OPTIONS, find_chromium
from cutting import AbortableProxy, run_abortable_proxy
from playwright.async_api import Page, async_playwright
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from holdfast import Call, Ctx, job, task
from holdfast.engine.connection import Connection, Database
from holdfast.server import create_app
from holdfast.settings import Settings
from holdfast.testing import wait_until
from holdfast.worker.runtime import WorkerRuntime

gates: dict[int, asyncio.Event] = {}


class Letter(msgspec.Struct):
    text: str


@task(queue="q", name="type_letter")
async def type_letter(ctx: Ctx, text: str) -> int:
    """Write one line after each gate that the test opens."""
    for step in range(1, 5):
        await gates.setdefault(step, asyncio.Event()).wait()
        ctx.progress(step, 5, phase="typing", message=f"line {step}")
    await gates.setdefault(5, asyncio.Event()).wait()
    await ctx.save("letter.txt", text.encode(), "text/plain")
    return len(text)


@job("letter", params=Letter, public=True)
def letter_job(params: Letter) -> Call[int]:
    return type_letter(params.text)


PAGE = """<!doctype html><meta charset=utf-8><title>Letters</title>
<button id=send>Send</button> <button id=cancel>Cancel</button> <button id=fetch>Fetch</button>
<progress id=bar max=100></progress> <p id=state></p> <ol id=log></ol>
<script type=module>
  import { Holdfast } from "/api/holdfast.js";
  const holdfast = new Holdfast({ token: "TOKEN" });
  const show = (id, text) => { document.getElementById(id).textContent = text; };
  window.received = []; window.files = [];
  let current = null;
  send.onclick = async () => {
    window.received = [];
    current = (await holdfast.start("letter", { text: "Dear Ann" })).id;
    for await (const { event, data } of holdfast.watch(current)) {
      window.received.push([event, data.message ?? data.status ?? null]);
      if (data.percent != null) bar.value = data.percent;
      if (data.status) show("state", data.status);
      if (event === "end") { window.files = data.artifacts; show("state", `done: ${data.status}`); }
    }
  };
  cancel.onclick = () => holdfast.cancel(current);
  const fetching = document.getElementById("fetch");
  fetching.onclick = async () => { location.href = await holdfast.link(window.files[0].id); };
  show("state", "ready");
</script>"""


async def serve_page(_: Request) -> HTMLResponse:
    policy = "default-src 'self'; script-src 'self' 'unsafe-inline'"
    return HTMLResponse(PAGE.replace("TOKEN", make_token("ann")), headers={"Content-Security-Policy": policy})


@pytest.fixture
async def connection(db: Database, api_settings: Settings) -> AsyncGenerator[AbortableProxy]:
    gates.clear()
    app = create_app(api_settings, database=db, job_types=[letter_job], routes=[Route("/", serve_page)])
    stop = asyncio.Event()
    worker = WorkerRuntime(db, {type_letter.name: type_letter})
    running = asyncio.create_task(worker.run(stop))
    async with serve_app(app) as base, run_abortable_proxy(base) as created:
        yield created
    for gate in gates.values():
        gate.set()
    stop.set()
    await running


@pytest.fixture
async def page() -> AsyncGenerator[Page]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_OPTIONS)
        created = await (await browser.new_context(accept_downloads=True)).new_page()
        yield created
        await browser.close()


def open_gate(step: int) -> None:
    gates.setdefault(step, asyncio.Event()).set()


async def wait_for_message(page: Page, text: str) -> None:
    await page.wait_for_function(
        "text => window.received.some(([, message]) => message === text)", arg=text, timeout=60_000
    )


@pytest.mark.timeout(240)
async def test_a_page_starts_watches_cancels_and_downloads_across_lost_connections(
    connection: AbortableProxy, page: Page, conn: Connection, tmp_path: Path
) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    await page.goto(connection.url)
    await page.wait_for_function("() => state.textContent === 'ready'")
    await page.click("#send")
    open_gate(1)
    await wait_for_message(page, "line 1")
    connection.abort_connections()
    open_gate(2)  # happens while no client is connected
    done = "select count(*) from holdfast.events where body ->> 'message' = 'line 2'"
    await wait_until(lambda: conn.fetchval(done))
    open_gate(3)
    await wait_for_message(page, "line 3")
    events: list[list[Any]] = await page.evaluate("window.received")
    assert [event for event, _ in events].count("snapshot") == 1
    open_gate(4)
    await wait_for_message(page, "line 4")
    connection.abort_connections()
    open_gate(5)
    await page.wait_for_function("() => state.textContent === 'done: succeeded'", timeout=60_000)
    events = await page.evaluate("window.received")
    lines = [text for event, text in events if event == "progress" and text]
    assert lines == sorted(set(lines)), events  # every line once and in order
    assert lines[-1] == "line 4"
    assert await page.evaluate("bar.value") == 100
    async with page.expect_download() as download_info:
        await page.click("#fetch")
    download = await download_info.value
    assert download.suggested_filename == "letter.txt"
    saved_file = tmp_path / "letter.txt"
    await download.save_as(saved_file)
    assert saved_file.read_text() == "Dear Ann"

    gates.clear()
    await page.click("#send")
    open_gate(1)
    await wait_for_message(page, "line 1")
    await page.click("#cancel")
    await page.wait_for_function("() => state.textContent === 'done: cancelled'", timeout=60_000)
    assert errors == []
    assert connection.cuts == 2
