"""The two stages: from a row to a searchable clip, failures, limits of providers, and what is paid for."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from clip_providers import JSON_TYPE, ClipProviders, make_scraped_video
from clips_harness import CLIPS_PATH, ClipsHarness

from holdfast.engine.connection import Database
from holdfast.settings import Secret
from holdfast.testing import Clock, wait_until

URL = "https://www.youtube.com/watch?v=knife"


async def test_an_inserted_row_becomes_a_searchable_clip(system: ClipsHarness) -> None:
    ann = system.create_user()
    await system.fetch("insert into clipnest_videos (user_id, video_url) values ($1, $2)", ann.id, URL)
    [row] = await system.fetch("select id::text from clipnest_videos")
    async with system.run_clip_worker():
        clip = await system.wait_for(ann, row[0], "done")
    assert (clip["title"], clip["author"], clip["summary"]) == (
        "Video atch?v=knife", "A cook", "How to sharpen a knife.")  # fmt: skip
    assert (clip["tags"], clip["language"], clip["duration_s"]) == (["knife", "stone"], "en", 30)
    assert clip["segments"][1] == {"start": 10, "end": 19,
        "text": "Hold the blade at fifteen degrees and move it slowly."}  # fmt: skip
    assert (clip["transcript_by"], clip["enriched_by"]) == ("scrapecreators", "test-model")
    assert (clip["embedding_model"], clip["embedding_dimension"], clip["percent"]) == ("words-64", 64, 100)
    assert (clip["tokens_in"], clip["tokens_out"]) == (120 + 5 + 5, 45)
    assert abs(clip["cost"] - (0.002 + 120 / 1e6 + 90 / 1e6)) < 1e-9
    for queue in ("scrape_jobs", "enrich_jobs"):
        assert (await system.count_messages(queue), await system.count_messages(queue, "a")) == (0, 1)
    [stored] = await system.fetch(
        "select cardinality(embedding), (select count(*) from clip_steps),"
        " (select count(*) from clip_passages) from clipnest_videos"
    )
    assert tuple(stored) == (64, 0, 1)


async def test_a_video_without_a_transcript_is_done_without_a_model(
    system: ClipsHarness, answers: ClipProviders
) -> None:
    ann = system.create_user()
    answers.scraped[URL] = {"success": True, "title": "Silent", "transcript": None}
    clip = await system.add(ann, URL)
    async with system.run_clip_worker():
        done = await system.wait_for(ann, clip["id"], "done")
    assert (done["title"], done["summary"], done["transcript"]) == ("Silent", None, None)
    assert (answers.calls["text"], answers.calls["embeddings"]) == (0, 0)


async def test_a_malformed_answer_is_repaired_or_asked_for_again(
    system: ClipsHarness, answers: ClipProviders
) -> None:
    ann = system.create_user()
    answers.answers = [
        "I am sorry, I cannot do that.",
        '{"title": "Knives", "summary": 7, "tags": []}',
        'Sure!\n```json\n{"title": "Sharp", "summary": "A {sharp} blade.", "tags": ["a", "a", 3,],}\n```',
    ]
    clip = await system.add(ann, URL)
    async with system.run_clip_worker():
        done = await system.wait_for(ann, clip["id"], "done")
    assert (done["summary"], done["tags"], answers.calls["text"]) == ("A {sharp} blade.", ["a"], 3)


async def test_a_model_that_never_answers_with_json_fails_the_clip(
    system: ClipsHarness, answers: ClipProviders, clock: Clock
) -> None:
    ann = system.create_user()
    answers.answers = ["nothing"] * 9
    clip = await system.add(ann, URL)
    async with system.run_clip_worker():
        for _ in range(2):
            await wait_for_error(system, ann, clip["id"])
            await clock.advance(timedelta(minutes=10))
        failed = await system.wait_for(ann, clip["id"], "failed")
    assert (
        failed["processing_error"] == "The text provider did not return a summary in the form of the schema."
    )
    assert (answers.calls["text"], answers.calls["scraping"]) == (9, 1)
    assert (await system.count_messages("enrich_jobs"), await system.count_messages("enrich_jobs", "a")) == (
        0,
        1,
    )
    answer = await ann.post(f"{CLIPS_PATH}/{clip['id']}/retry")
    assert answer.json()["processing_status"] == "enriching"  # what was scraped is not scraped again
    async with system.run_clip_worker():
        await system.wait_for(ann, clip["id"], "done")
    assert answers.calls["scraping"] == 1


async def wait_for_error(system: ClipsHarness, user: Any, clip_id: str) -> None:
    """Wait until an attempt has failed and its message waits, then forget the error."""

    async def has_failed() -> bool:
        rows = await system.fetch(
            "select from clipnest_videos c join pgmq.q_enrich_jobs q on q.msg_id = c.message_id"
            " where c.id::text = $1 and c.processing_error is not null and q.vt > holdfast.now()"
            " and q.vt < holdfast.now() + interval '100 seconds'",
            clip_id,
        )
        return bool(rows)

    await wait_until(has_failed, within=timedelta(seconds=30), what="an attempt failed")
    await system.fetch("update clipnest_videos set processing_error = null")


async def test_a_refused_request_fails_at_once(system: ClipsHarness, answers: ClipProviders) -> None:
    ann = system.create_user()
    answers.failures["scraping"] = [(401, JSON_TYPE, b"{}")]
    clip = await system.add(ann, URL)
    async with system.run_clip_worker():
        failed = await system.wait_for(ann, clip["id"], "failed")
    assert "rejected the API key" in failed["processing_error"]
    assert answers.calls["scraping"] == 1


async def test_a_message_that_was_read_too_often_fails_the_clip(system: ClipsHarness) -> None:
    ann = system.create_user()
    clip = await system.add(ann, URL)
    await system.fetch("update pgmq.q_scrape_jobs set read_ct = 3")
    async with system.run_clip_worker():
        failed = await system.wait_for(ann, clip["id"], "failed")
    assert "three times" in failed["processing_error"]
    assert (await system.count_messages(), await system.count_messages(place="a")) == (0, 1)


async def test_a_limit_of_the_provider_pauses_all_clips_and_costs_no_attempt(
    system: ClipsHarness, answers: ClipProviders
) -> None:
    ann = system.create_user()
    limited = (429, {**JSON_TYPE, "retry-after": "1"}, b"{}")
    answers.failures["text"] = [limited] * 12
    clips = [await system.add(ann, f"https://youtu.be/{number}") for number in range(10)]
    async with system.run_clip_worker():
        for clip in clips:
            await system.wait_for(ann, clip["id"], "done")
    rows = await system.fetch("select read_ct from pgmq.a_enrich_jobs")
    assert {row[0] for row in rows} == {1}
    assert answers.calls["text"] <= 12 + 10


async def test_nothing_is_paid_twice_when_a_worker_is_stopped(
    system: ClipsHarness, answers: ClipProviders
) -> None:
    ann = system.create_user()
    words = tuple(f"Sentence number {number} about knives and stones and water." for number in range(1_000))
    answers.scraped[URL] = make_scraped_video(URL, words)  # three parts and a summary
    clip = await system.add(ann, URL)
    for calls in (1, 2, 3):

        def was_called(calls: int = calls) -> bool:
            return answers.calls["text"] >= calls

        async with system.run_clip_worker():
            await wait_until(was_called, within=timedelta(seconds=30), what="a call")
    async with system.run_clip_worker():
        done = await system.wait_for(ann, clip["id"], "done")
    assert (answers.calls["scraping"], done["summary"]) == (1, "How to sharpen a knife.")
    [row] = await system.fetch("select read_ct from pgmq.a_enrich_jobs")
    assert row[0] <= 4
    [passages] = await system.fetch("select count(*), count(distinct number) from clip_passages")
    assert passages[0] == passages[1] > 64
    # A call may be cut off before its answer is kept, at most once for each stop.
    assert answers.calls["text"] <= 4 + 3


async def test_a_clip_that_is_deleted_while_it_is_processed(
    system: ClipsHarness, answers: ClipProviders
) -> None:
    ann = system.create_user()
    clip = await system.add(ann, URL)
    limited = (429, {**JSON_TYPE, "retry-after": "1"}, b"{}")
    answers.failures["text"] = [limited]
    async with system.run_clip_worker():
        await wait_until(lambda: answers.calls["text"] >= 1, within=timedelta(seconds=30), what="a call")
        assert (await ann.delete(f"{CLIPS_PATH}/{clip['id']}")).status_code == 204
        other = await system.add(ann, "https://youtu.be/other")
        await system.wait_for(ann, other["id"], "done")
    assert await system.count_messages("enrich_jobs") == 0
    [row] = await system.fetch("select count(*) from clip_passages where clip_id::text = $1", clip["id"])
    assert row[0] == 0


async def test_messages_of_others_are_understood_and_doubles_ignored(
    system: ClipsHarness, answers: ClipProviders
) -> None:
    ann = system.create_user()
    clip = await system.add(ann, URL)
    await system.fetch(
        "select pgmq.send('scrape_jobs', $1::text::jsonb)", json.dumps({"record": {"id": clip["id"]}})
    )
    await system.fetch("select pgmq.send('scrape_jobs', '{\"video_id\": \"nobody\"}')")
    await system.fetch("select pgmq.send('scrape_jobs', '[1]')")
    async with system.run_clip_worker():
        await system.wait_for(ann, clip["id"], "done")

        async def is_empty() -> bool:
            return await system.count_messages() == 0

        await wait_until(is_empty, within=timedelta(seconds=30), what="the queue is empty")
    assert (answers.calls["scraping"], answers.calls["text"]) == (1, 1)


async def test_events_of_a_clip_end_with_it(system: ClipsHarness) -> None:
    ann = system.create_user()
    clip = await system.add(ann, URL)
    events: list[str] = []

    async def follow() -> None:
        path = f"{CLIPS_PATH}/{clip['id']}/events"
        async with system.http.stream("GET", path, headers=ann.headers) as response:
            lines = [line async for line in response.aiter_lines()]
        events.extend(line.removeprefix("event: ") for line in lines if line.startswith("event: "))

    following = asyncio.create_task(follow())
    async with system.run_clip_worker():
        await asyncio.wait_for(following, 60)
    assert events[0] == "progress"
    assert events[-1] == "end"


async def test_another_model_embeds_finished_clips_again(
    system: ClipsHarness, answers: ClipProviders
) -> None:
    ann = system.create_user()
    clip = await system.add(ann, URL)
    async with system.run_clip_worker():
        await system.wait_for(ann, clip["id"], "done")
    answers.dimension = 32
    async with system.run_clip_worker() as state:
        await state.client.submit(system_task(system, "reembed_clips")())

        async def is_embedded() -> bool:
            rows = await system.fetch(
                "select from clipnest_videos c join clip_passages p on p.clip_id = c.id"
                " where c.embedding_dimension = 32 and p.embedding_dimension = 32"
                " and c.embedding_model = 'words-32' and cardinality(c.embedding) = 32"
            )
            return len(rows) == 1

        await wait_until(is_embedded, within=timedelta(seconds=30), what="the clip is embedded again")


def system_task(system: ClipsHarness, name: str) -> Any:
    return next(task for task in system.tasks if task.name == name)


@pytest.fixture
async def worker_db(system: ClipsHarness) -> AsyncGenerator[Database]:
    """The database of the system with a login that has the rights of a worker only."""
    name = f"hf_worker_{uuid.uuid4().hex[:12]}"
    await system.fetch(f"create role {name} login password 'x'")
    await system.fetch(f"grant holdfast_worker to {name}")
    url = urlsplit(system.db.url.reveal())
    netloc = f"{name}:x@{url.netloc.rpartition('@')[2]}"
    db = Database(Secret(url._replace(netloc=netloc).geturl()), system.db.settings)
    yield db
    await db.close()
    await system.fetch(f"drop owned by {name}")
    await system.fetch(f"drop role {name}")


async def test_a_worker_needs_no_more_than_the_role_of_workers(
    system: ClipsHarness, worker_db: Database
) -> None:
    ann = system.create_user()
    clips = [await system.add(ann, f"https://youtu.be/{number}") for number in range(20)]
    async with system.run_clip_worker(db=worker_db):
        for clip in clips:
            await system.wait_for(ann, clip["id"], "done")
