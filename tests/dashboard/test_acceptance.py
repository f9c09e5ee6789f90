"""What the acceptance list asks of the dashboard and real workers together: one is killed with -9."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
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
from chromium import OPTIONS, program
from exhibition import Exhibition
from playwright.sync_api import Browser, expect, sync_playwright

from holdfast.engine import jobs
from holdfast.engine.connection import Connection

PAGES = 500
MISSING = {number for number in range(PAGES) if number % 100 == 7}


@pytest.fixture
def workers(shown: Exhibition) -> Generator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts real workers on the database of the dashboard, with its store of files."""
    started: list[subprocess.Popen[bytes]] = []
    environ = {**os.environ, "HOLDFAST_DATABASE_URL": shown.url.reveal()}
    environ |= {"HOLDFAST_HOME": str(shown.settings.home)}

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
        found = driver.chromium.launch(executable_path=program(), args=OPTIONS)
        yield found
        found.close()


def until(check: Callable[[], Any], what: str, within: float = 150) -> Any:
    deadline = time.monotonic() + within
    while not (found := check()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def manifest_of(content: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        found: dict[str, Any] = json.loads(archive.read("manifest.json"))
        for file in found["files"]:
            assert hashlib.sha256(archive.read(file["name"])).hexdigest() == file["sha256"]
        assert set(archive.namelist()) == {file["name"] for file in found["files"]} | {"manifest.json"}
    return found


def test_a_batch_of_five_hundred_as_a_zip_while_a_worker_is_killed(
    shown: Exhibition, workers: Callable[[], subprocess.Popen[bytes]]
) -> None:
    async def begin(conn: Connection) -> UUID:
        batch = await jobs.open_batch(conn, "pages")
        pages = [{"type": "print_page", "queue": "pages", "args": {"number": n}} for n in range(PAGES)]
        await jobs.submit_many(conn, [{**page, "batch": str(batch), "lease_s": 5} for page in pages])
        await jobs.close_batch(conn, batch)
        return batch

    batch = shown.ask(begin)

    def far() -> dict[str, Any]:
        return shown.ask(lambda conn: jobs.get_batch(conn, batch)) or {}

    first = workers()
    until(lambda: far()["ended"] > 40, "a worker prints pages")
    first.kill()
    with shown.visitor("viewer") as client:
        early = manifest_of(client.get(f"/batches/{batch}/zip").content)
        assert early["complete"] is False
        assert early["ended"] is False
        assert 0 < len(early["files"]) < PAGES
        workers()
        until(lambda: far()["finished_at"], "another worker prints the rest")
        whole = manifest_of(client.get(f"/batches/{batch}/zip").content)
    assert {file["name"] for file in whole["files"]} == {
        f"page-{number}.txt" for number in range(PAGES) if number not in MISSING
    }
    assert whole["batch"] == {"total": PAGES, "ended": PAGES, "failed": len(MISSING)}
    told = {failed["error"]["message"] for failed in whole["failed_jobs"]}
    assert told == {f"page {number} has no text" for number in MISSING}
    assert whole["complete"] is False


def test_a_killed_worker_is_lost_at_once_and_its_job_shows_the_next_attempt(
    shown: Exhibition, browser: Browser, workers: Callable[[], subprocess.Popen[bytes]]
) -> None:
    job = shown.ask(lambda conn: jobs.submit(conn, {"type": "hold", "queue": "holds", "base_s": 0})).id
    process = workers()

    def running() -> str | None:
        async def ask(conn: Connection) -> str | None:
            workers = "select w.name from holdfast.tasks t join holdfast.workers w on w.id = t.worker_id"
            held = "where t.id = $1 and t.status = 'running'"
            found: str | None = await conn.fetchval(f"{workers} {held}", job)
            return found

        return shown.ask(ask)

    name = until(running, "a worker holds the task")
    with contextlib.closing(browser.new_context()) as context:
        context.set_default_timeout(60_000)
        page, other = context.new_page(), context.new_page()
        page.goto(shown.link("viewer"))
        page.goto(f"{shown.base}/workers")
        row = page.locator("tr", has_text=name)
        expect(row).to_contain_text("live")
        process.kill()
        process.wait(30)
        # The process that renewed its lease outlives it for a moment and tells. Where a whole machine is gone
        # workers are quiet first, then lost: tests/dashboard/test_pages.py.
        expect(row).to_contain_text("lost", timeout=60_000)
        other.goto(f"{shown.base}/jobs/{job}")
        workers()
        expect(other.locator("dl.facts")).to_contain_text("attempt2", timeout=120_000)
        expect(other.locator("#live")).to_contain_text("WorkerLost", timeout=60_000)
