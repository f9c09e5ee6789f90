"""The lines of `holdfast doctor` for bookmarks, and the start of a worker without Chromium."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta

import pytest
from bookmarks_harness import BookmarksHarness
from chromium import find_chromium

from holdfast.cli.root import run_command_line
from holdfast.systems.bookmarks import processing_queries
from holdfast.testing import Clock

QUEUE = "add-bookmark-url-queue"


async def read_doctor_lines(
    system: BookmarksHarness, capsys: pytest.CaptureFixture[str], prefix: str = "bookmarks"
) -> list[str]:
    command = ["--database-url", system.db.url.reveal(), "--home", str(system.db.settings.home), "doctor"]
    await asyncio.to_thread(run_command_line, command)
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if line[6:].startswith(prefix)]


async def test_doctor_reports_the_browser_the_libraries_the_queue_and_the_store(
    system: BookmarksHarness, capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    find_chromium()
    browser, libraries, queue, dead, storage = await read_doctor_lines(system, capsys)
    assert browser.startswith("ok")
    assert "starts in its sandbox" in browser
    assert "OCR can be loaded" in libraries
    assert "No bookmark is waiting" in queue
    assert "no dead letters" in dead
    assert storage.startswith("ok")

    await system.add(system.create_user(), "https://example.com/")
    await system.add(system.create_user(), "https://example.com/")
    await system.fetch(f"select pgmq.send('{QUEUE}-dead', '{{}}')")
    await clock.advance(timedelta(hours=3))
    _, _, queue, dead, _ = await read_doctor_lines(system, capsys)
    assert queue.startswith("warn")
    assert "2 messages are in the queue; the oldest is 3 hours old" in queue
    assert "due for 3 hours without being read" in queue
    assert dead.startswith("warn")
    assert "1 messages are in the dead letters" in dead


async def test_doctor_reports_a_browser_that_is_missing_or_has_no_sandbox(
    system: BookmarksHarness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CHROMIUM", "/nonexistent/chromium")
    monkeypatch.setenv("HOLDFAST_CHROMIUM_SANDBOX", "off")
    browser, *_ = await read_doctor_lines(system, capsys)
    assert browser.startswith("warn")
    assert "cannot run bookmark workers: The Chromium '/nonexistent/chromium' does not exist" in browser
    sandbox = (await read_doctor_lines(system, capsys, "chromium"))[-1]
    assert sandbox.startswith("warn")
    assert "without its sandbox" in sandbox


async def test_doctor_says_nothing_without_the_bookmark_system(
    system: BookmarksHarness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SYSTEMS_SCHEMA", "elsewhere")
    assert await read_doctor_lines(system, capsys) == []


async def test_a_worker_without_chromium_ends_at_once_with_the_reason(system: BookmarksHarness) -> None:
    """It reads no message, so no read is counted for a bookmark that this worker cannot capture."""
    await system.add(system.create_user(), "https://example.com/")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", "worker", "holdfast.systems.bookmarks"),
        env={
            **os.environ,
            "HOLDFAST_DATABASE_URL": system.db.url.reveal(),
            "HOLDFAST_CHROMIUM": "/nonexistent/chromium",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 1
    assert b"The Chromium '/nonexistent/chromium' does not exist or is not executable." in output
    assert b"HOLDFAST_CHROMIUM" in output
    [row] = await system.fetch(f'select read_ct from pgmq."q_{QUEUE}"')
    assert row["read_ct"] == 0


async def test_a_bookmark_whose_message_is_gone_can_be_retried(system: BookmarksHarness) -> None:
    """Workers that are killed on each read never record a failure. Maintenance moves the message away."""
    ann = system.create_user()
    gone = await system.add(ann, "https://example.com/gone")
    waiting = await system.add(ann, "https://example.com/waiting")
    await system.fetch("update bookmarks set status = 'processing' where id = $1", gone["id"])
    await system.fetch(f"select pgmq.archive('{QUEUE}', message_id) from bookmarks where id = $1", gone["id"])
    async with system.db.connection() as connection:
        early = await processing_queries.mark_abandoned_as_failed(connection, "public", timedelta(minutes=5))
        count = await processing_queries.mark_abandoned_as_failed(connection, "public", timedelta(0))
    assert (early, count) == (0, 1)
    assert (await system.get(ann, gone["id"]))["status"] == "failed"
    assert (await system.get(ann, waiting["id"]))["status"] == "pending"
    assert (await ann.post(f"/api/v1/bookmarks/{gone['id']}/retry")).status_code == 200
