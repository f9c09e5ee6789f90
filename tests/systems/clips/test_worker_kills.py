"""Real workers of clips, killed with -9 while providers answer: no clip is stuck, nothing is paid twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from clip_providers import ClipProviders, make_scraped_video
from clips_harness import ClipsHarness
from provider_server import ProviderServer
from worker_processes import WorkerProcesses

from holdfast.testing import Clock, wait_until

pytestmark = pytest.mark.timeout(600)
CLIPS = 12
KILLS = 6
WAIT_TIMEOUT = timedelta(minutes=4)


@pytest.fixture
async def workers(
    system: ClipsHarness, server: ProviderServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[WorkerProcesses]:
    settings = {
        "HOLDFAST_EGRESS_ALLOW": "127.0.0.1",
        "HOLDFAST_SCRAPING_URL": server.url.removesuffix("/v1"),
        "HOLDFAST_TEXT_URL": server.url,
        "HOLDFAST_EMBEDDINGS_URL": server.url,
        "HOLDFAST_CLIPS_SOURCES": "scraping",
        "HOLDFAST_STORAGE_URL": str(tmp_path / "files"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    processes = WorkerProcesses(system.db.url, tmp_path, Path("holdfast.systems.clips"), log_level="info")
    yield processes
    for process in processes.started:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_killed_workers_lose_no_clip_and_pay_nothing_twice(
    system: ClipsHarness, answers: ClipProviders, workers: WorkerProcesses, clock: Clock
) -> None:
    ann = system.create_user()
    words = tuple(f"Sentence number {number} about knives and stones and water." for number in range(900))
    for number in range(CLIPS):
        url = f"https://youtu.be/clip-{number}"
        answers.scraped[url] = make_scraped_video(url, words)  # parts, a summary, and several embeddings
        await system.add(ann, url)
    numbers = random.Random(5)
    for _ in range(KILLS):
        before = sum(answers.calls.values())
        target = before + numbers.randint(3, 14)
        process = await workers.start()

        async def is_killable(target: int = target) -> bool:
            return sum(answers.calls.values()) >= target or await count_unfinished(system) == 0

        await wait_until(is_killable, within=WAIT_TIMEOUT, what="the providers were called")
        process.kill()
        await process.wait()
        # Reads that a killed worker had begun are not counted here: no clip is killed more than twice.
        await system.fetch("update pgmq.q_scrape_jobs set read_ct = least(read_ct, 2)")
        await system.fetch("update pgmq.q_enrich_jobs set read_ct = least(read_ct, 2)")
        await clock.advance(timedelta(minutes=6))
    await workers.start()

    async def is_finished() -> bool:
        return await count_unfinished(system) == 0

    await wait_until(is_finished, within=WAIT_TIMEOUT, what="all clips are finished")
    rows = await system.fetch("select processing_status, count(*) from clipnest_videos group by 1")
    assert {row[0]: row[1] for row in rows} == {"done": CLIPS}
    for queue in ("scrape_jobs", "enrich_jobs"):
        assert (await system.count_messages(queue), await system.count_messages(queue, "a")) == (0, CLIPS)
    [steps] = await system.fetch("select count(*) from clip_steps")
    [doubles] = await system.fetch("select count(*) - count(distinct (clip_id, number)) from clip_passages")
    assert (steps[0], doubles[0]) == (0, 0)
    # An answer on its way when its worker died is asked for again: at most one for each running clip.
    needed = {"scraping": CLIPS, "text": CLIPS * 4}
    for kind, count in needed.items():
        assert count <= answers.calls[kind] <= count + KILLS * 8, (kind, answers.calls)


async def count_unfinished(system: ClipsHarness) -> int:
    [row] = await system.fetch(
        "select count(*) from clipnest_videos where processing_status not in ('done', 'failed')"
    )
    return int(row[0])


async def test_a_stopped_worker_gives_its_messages_back_at_once(
    system: ClipsHarness, answers: ClipProviders, workers: WorkerProcesses
) -> None:
    ann = system.create_user()
    answers.failures["text"] = [(429, {"content-type": "application/json", "retry-after": "60"}, b"{}")]
    clip = await system.add(ann, "https://youtu.be/one")
    process = await workers.start("--grace", "0s")
    await wait_until(lambda: answers.calls["text"] == 1, within=WAIT_TIMEOUT, what="the model was asked")
    await asyncio.sleep(0)
    process.terminate()
    await process.wait()
    [row] = await system.fetch("select read_ct, vt <= holdfast.now() as visible from pgmq.q_enrich_jobs")
    assert (row["read_ct"], row["visible"]) == (1, True)
    [row] = await system.fetch("select uncounted_reads, processing_status from clipnest_videos")
    assert tuple(row) == (1, "enriching")
    await workers.start()
    assert (await system.wait_for(ann, clip["id"], "done"))["summary"] == "How to sharpen a knife."
