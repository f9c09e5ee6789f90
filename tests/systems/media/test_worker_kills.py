"""A worker that is killed while it downloads: another one takes over, and exactly one file exists."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from media_harness import MediaHarness, MediaSite, make_video_bytes, media_url
from web_servers import WebServer
from worker_processes import WorkerProcesses

from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

APP = Path(__file__).parents[2] / "support" / "media_worker_app.py"


@pytest.fixture
async def workers(
    url: Secret, tmp_path: Path, media_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[WorkerProcesses]:
    monkeypatch.setenv("HOLDFAST_HOME", str(media_settings.home))
    monkeypatch.setenv("HOLDFAST_EGRESS_ALLOW", media_settings.egress_allow)
    workers = WorkerProcesses(url, tmp_path, APP)
    yield workers
    for process in workers.started:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.timeout(300)
async def test_a_download_survives_a_killed_worker(
    media_system: MediaHarness, website: WebServer, site: MediaSite, workers: WorkerProcesses
) -> None:
    """The kill comes in the middle of a multipart upload. What it left is deleted with the first sweep."""
    site.content = make_video_bytes(12_000_000)
    site.stall_after = 11_000_000
    user = media_system.create_user()
    share = await user.share(media_url(website))
    first = await workers.start()
    await site.stalled.wait()
    first.kill()
    await first.wait()
    site.resume.set()
    await workers.start()
    done = await user.wait_for(share["id"], "completed")
    assert done["download_attempts"] == 0, "a killed worker is not a failed attempt"
    assert (await user.download(share["id"])).content == site.content
    assert len([file for file in done["files"] if file["kind"] == "media"]) == 1
    await media_system.fetch(
        "update holdfast.artifacts set touched_at = now() - interval '10 minutes' where status <> 'visible'"
    )
    async with media_system.db.connection() as connection:
        await connection.execute("select holdfast.tick_artifacts()")
    media = await media_system.fetchval("select count(*) from holdfast.artifacts where status = 'visible'")
    assert await media_system.count_stored_objects() == media


@pytest.mark.timeout(300)
async def test_download_workers_sets_the_number_of_processes(
    media_system: MediaHarness,
    website: WebServer,
    site: MediaSite,
    url: Secret,
    media_settings: Settings,
) -> None:
    """`DOWNLOAD_WORKERS` is the variable of the original system. Each process is a worker of its own."""
    environment = {
        **os.environ,
        "HOLDFAST_DATABASE_URL": url.reveal(),
        "HOLDFAST_HOME": str(media_settings.home),
        "HOLDFAST_EGRESS_ALLOW": media_settings.egress_allow,
        "DOWNLOAD_WORKERS": "2",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", "worker", "holdfast.systems.media"), env=environment
    )
    try:
        running = "select count(*) from holdfast.workers where stopped_at is null and 'media' = any (queues)"

        async def count_workers() -> bool:
            return bool(await media_system.fetchval(running) == 2)

        await wait_until(count_workers, within=timedelta(minutes=2))
        user = media_system.create_user()
        share = await user.share(media_url(website))
        await user.wait_for(share["id"], "completed")
    finally:
        process.terminate()
        await process.wait()
    assert await media_system.fetchval(running) == 0
