"""Workers killed with -9 at every step of a bookmark: nothing is lost, repeated or left over."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_clients import serve_app
from bookmarks_harness import BookmarksHarness
from worker_processes import WorkerProcesses

from holdfast import Client
from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import bookmarks
from holdfast.testing import Clock, wait_until

SUPPORT = Path(__file__).parents[2] / "support"
STAGES_BEFORE_SCREENSHOT_IS_RECORDED = (
    *("before-step-screenshot", "before-capture", "after-capture", "before-upload-screenshot"),
    *(
        "before-bytes",
        "after-bytes",
        "after-upload-screenshot",
        "before-record-screenshot",
        "after-record-screenshot",
    ),
)
STAGES_BEFORE_REMAINING_IS_RECORDED = (
    *("after-step-screenshot", "before-step-remaining", "before-upload-image", "after-upload-image"),
    *("before-upload-favicon", "after-upload-favicon", "before-record-remaining", "after-record-remaining"),
)
LAST_STAGES = ("after-step-remaining", "before-completion", "after-completion")
STAGES = (*STAGES_BEFORE_SCREENSHOT_IS_RECORDED, *STAGES_BEFORE_REMAINING_IS_RECORDED, *LAST_STAGES)
WAIT_TIMEOUT = timedelta(minutes=4)


@pytest.fixture
async def system(url: Secret, system_settings: Settings, tmp_path: Path) -> AsyncGenerator[BookmarksHarness]:
    settings = replace(system_settings, storage_url=Secret(str(tmp_path / "files")))
    async with Database(url, settings) as db:
        async with db.connection() as connection:
            await bookmarks.install(connection)
        app = create_app(settings, database=db, **bookmarks.mount())
        async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
            yield BookmarksHarness(db, http, address, bookmarks.tasks)


@pytest.fixture
async def workers(
    system: BookmarksHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[WorkerProcesses]:
    gates = tmp_path / "gates"
    gates.mkdir()
    monkeypatch.setenv("HOLDFAST_GATES", str(gates))
    monkeypatch.setenv("HOLDFAST_STORAGE_URL", str(tmp_path / "files"))
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    processes = WorkerProcesses(system.db.url, gates, SUPPORT / "gated_bookmarks_app.py")
    yield processes
    for process in processes.started:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def kill_worker_at_stages(workers: WorkerProcesses, stages: tuple[str, ...]) -> None:
    """Start a worker, wait until its bookmarks have stopped at all these stages, and kill it with -9."""
    (workers.folder / "stop").touch()
    process = await workers.start()

    def find_missing() -> list[str]:
        return [stage for stage in stages if not (workers.folder / stage).exists()]

    await wait_until(
        lambda: process.returncode is not None or not find_missing(),
        within=WAIT_TIMEOUT,
        what="the worker has stopped at all stages",
    )
    assert not find_missing(), (find_missing(), (workers.folder / "worker0.log").read_text()[-3000:])
    process.kill()
    await process.wait()
    (workers.folder / "stop").unlink()


def read_calls(workers: WorkerProcesses) -> Counter[str]:
    """Count the calls of the capture: name and stage."""
    return Counter((workers.folder / "record").read_text().splitlines())


async def list_stored_keys(system: BookmarksHarness) -> set[str]:
    async with Client(system.db.url.reveal(), settings=system.db.settings) as client:
        while (await client.files.sweep()).deleted:
            pass
        return {stored.key async for page in client.files.store.list() for stored in page}


@pytest.mark.timeout(900)
async def test_bookmarks_survive_a_killed_worker_at_every_step(
    system: BookmarksHarness, workers: WorkerProcesses, clock: Clock
) -> None:
    users = {stage: system.create_user() for stage in STAGES}  # one each, because users take turns
    rows = {stage: await system.add(users[stage], f"https://example.com/at/{stage}") for stage in STAGES}
    await kill_worker_at_stages(workers, STAGES)
    await clock.advance(timedelta(minutes=3))  # the leases of the killed worker end
    second = await workers.start()

    async def find_unfinished() -> list[Any]:
        query = (
            "select url, status, screenshot_error, remaining_error from bookmarks where status <> 'complete'"
        )
        return [tuple(row) for row in await system.fetch(query)]

    async def all_are_complete() -> bool:
        return not await find_unfinished()

    try:
        await wait_until(all_are_complete, within=WAIT_TIMEOUT)
    except AssertionError as error:
        raise AssertionError(await find_unfinished()) from error
    assert (await system.count_messages(), await system.count_messages("a")) == (0, len(STAGES))

    # Steps that were recorded before the kill are not repeated. `read_page` is for failed screenshots only.
    calls = read_calls(workers)
    for stage in STAGES:
        repeats_screenshot = stage in STAGES_BEFORE_SCREENSHOT_IS_RECORDED
        repeats_remaining = stage in STAGES_BEFORE_REMAINING_IS_RECORDED[2:]  # these had fetched the image
        not_yet = stage in STAGES_BEFORE_SCREENSHOT_IS_RECORDED[:2]  # these had not opened the page
        assert calls[f"capture_page {stage}"] == 1 + repeats_screenshot - not_yet, stage
        assert calls[f"fetch_image {stage}"] == 1 + repeats_remaining, stage
        assert calls[f"read_page {stage}"] == 0

    # Every bookmark has three files. Files of the killed worker that no row refers to are deleted.
    second.terminate()
    await second.wait()
    stored: set[str] = set()
    for wait in (timedelta(hours=3), timedelta(days=2)):  # files without a bookmark; unfinished uploads
        await clock.advance(wait)
        stored = await list_stored_keys(system)
    kept = await system.fetch("select key from holdfast.artifacts where status = 'visible'")
    assert stored == {row["key"] for row in kept}
    assert len(stored) == 3 * len(STAGES)
    for stage, row in rows.items():
        bookmark = await system.get(users[stage], row["id"])
        for name in ("screenshot", "og_image", "favicon"):
            assert (await system.http.get(bookmark[name])).status_code == 200, (stage, name)
