"""The dashboard with real workers, one of which is killed with SIGKILL."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from uuid import UUID

import acceptance_app
import pytest
from chromium import CHROMIUM_OPTIONS, find_chromium
from dashboard_server import DashboardServer
from playwright.sync_api import Browser, expect, sync_playwright

from holdfast.engine import jobs
from holdfast.engine.connection import Connection

PAGE_COUNT = 500
FAILING_PAGES = {number for number in range(PAGE_COUNT) if number % 100 == 7}


@pytest.fixture
def start_worker(dashboard: DashboardServer) -> Generator[Callable[[], subprocess.Popen[bytes]]]:
    """A function that starts a worker process on the database and the object store of the dashboard."""
    started: list[subprocess.Popen[bytes]] = []
    environ = {**os.environ, "HOLDFAST_DATABASE_URL": dashboard.url.reveal()}
    environ |= {"HOLDFAST_HOME": str(dashboard.settings.home)}

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "holdfast", "worker", str(Path(acceptance_app.__file__))]
        started.append(subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(30)


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_OPTIONS)
        yield browser
        browser.close()


def wait_until(check: Callable[[], Any], what: str, timeout_s: float = 150) -> Any:
    """Poll a function until its result is true, and return the result."""
    deadline = time.monotonic() + timeout_s
    while not (result := check()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return result


def read_manifest(content: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        manifest: dict[str, Any] = json.loads(archive.read("manifest.json"))
        for file in manifest["files"]:
            assert hashlib.sha256(archive.read(file["name"])).hexdigest() == file["sha256"]
        assert set(archive.namelist()) == {file["name"] for file in manifest["files"]} | {"manifest.json"}
    return manifest


def test_zip_of_a_batch_with_500_jobs_while_a_worker_is_killed(
    dashboard: DashboardServer, start_worker: Callable[[], subprocess.Popen[bytes]]
) -> None:
    async def submit_batch(conn: Connection) -> UUID:
        batch = await jobs.open_batch(conn, "pages")
        pages = [{"type": "print_page", "queue": "pages", "args": {"number": n}} for n in range(PAGE_COUNT)]
        await jobs.submit_many(conn, [{**page, "batch": str(batch), "lease_s": 5} for page in pages])
        await jobs.close_batch(conn, batch)
        return batch

    batch = dashboard.run_query(submit_batch)

    def get_batch() -> dict[str, Any]:
        return dashboard.run_query(lambda conn: jobs.get_batch(conn, batch)) or {}

    first = start_worker()
    wait_until(lambda: get_batch()["ended"] > 40, "no pages printed")
    first.kill()
    with dashboard.sign_in("viewer") as client:
        early = read_manifest(client.get(f"/batches/{batch}/zip").content)
        assert early["complete"] is False
        assert early["ended"] is False
        assert 0 < len(early["files"]) < PAGE_COUNT
        start_worker()
        wait_until(lambda: get_batch()["finished_at"], "the second worker did not print the rest")
        whole = read_manifest(client.get(f"/batches/{batch}/zip").content)
    assert {file["name"] for file in whole["files"]} == {
        f"page-{number}.txt" for number in range(PAGE_COUNT) if number not in FAILING_PAGES
    }
    assert whole["batch"] == {"total": PAGE_COUNT, "ended": PAGE_COUNT, "failed": len(FAILING_PAGES)}
    messages = {failed["error"]["message"] for failed in whole["failed_jobs"]}
    assert messages == {f"page {number} has no text" for number in FAILING_PAGES}
    assert whole["complete"] is False


def test_killed_worker_is_lost_and_its_job_shows_the_next_attempt(
    dashboard: DashboardServer, browser: Browser, start_worker: Callable[[], subprocess.Popen[bytes]]
) -> None:
    job = dashboard.run_query(
        lambda conn: jobs.submit(conn, {"type": "hold", "queue": "holds", "base_s": 0})
    ).id
    process = start_worker()

    def find_running_worker() -> str | None:
        async def query_worker(conn: Connection) -> str | None:
            workers = "select w.name from holdfast.tasks t join holdfast.workers w on w.id = t.worker_id"
            held = "where t.id = $1 and t.status = 'running'"
            name: str | None = await conn.fetchval(f"{workers} {held}", job)
            return name

        return dashboard.run_query(query_worker)

    name = wait_until(find_running_worker, "no worker claimed the task")
    with contextlib.closing(browser.new_context()) as context:
        context.set_default_timeout(60_000)
        page, other = context.new_page(), context.new_page()
        page.goto(dashboard.create_login_link("viewer"))
        page.goto(f"{dashboard.base}/workers")
        row = page.locator("tr", has_text=name)
        expect(row).to_contain_text("live")
        process.kill()
        process.wait(30)
        # The heartbeat process outlives the worker for a moment and reports the loss. If a whole machine is
        # gone, workers are unresponsive first, then lost: tests/dashboard/test_pages.py.
        expect(row).to_contain_text("lost", timeout=60_000)
        other.goto(f"{dashboard.base}/jobs/{job}")
        start_worker()
        expect(other.locator("dl.properties")).to_contain_text(re.compile(r"Attempt\s*2"), timeout=60_000)
        expect(other.locator("#content")).to_contain_text("WorkerLost", timeout=60_000)
