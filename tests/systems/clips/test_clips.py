"""Add, list, read, delete and retry clips over HTTP and in SQL, and what users may do."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest
from api_clients import bearer_headers
from clips_harness import CLIPS_PATH, INGEST_SECRET, ClipsHarness
from system_harness import SERVICE_KEY

from holdfast.errors import ConflictError, DatabasePermissionError, TooManyRequestsError

URL = "https://video.example.com/watch?v=1"
INSERT = "insert into clipnest_videos (user_id, video_url) values ($1, $2) returning id::text"


async def test_adding_a_url_creates_the_row_and_its_message(system: ClipsHarness) -> None:
    ann = system.create_user()
    response = await ann.post(CLIPS_PATH, {"video_url": URL})
    clip = response.json()
    assert (response.status_code, clip["processing_status"], clip["video_url"]) == (201, "pending", URL)
    [row] = await system.fetch("select msg_id, message::text from pgmq.q_scrape_jobs")
    assert json.loads(row["message"]) == {"video_id": clip["id"], "user_id": ann.id, "video_url": URL}
    assert (await system.get(ann, clip["id"]))["segments"] == []


async def test_the_same_url_of_the_same_user_is_the_same_clip(system: ClipsHarness) -> None:
    ann, bob = system.create_user(), system.create_user()
    first = await system.add(ann, URL)
    again = await ann.post(CLIPS_PATH, {"video_url": " HTTPS://Video.Example.com:443/watch?v=1#t=3 "})
    assert (again.status_code, again.json()["id"]) == (200, first["id"])
    assert (await system.add(bob, URL))["id"] != first["id"]
    with pytest.raises(ConflictError):
        await system.fetch(INSERT, ann.id, URL)
    assert await system.count_messages() == 2


async def test_an_insert_in_sql_sends_in_the_same_transaction(system: ClipsHarness) -> None:
    ann = system.create_user()
    async with system.db.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.fetch(INSERT, ann.id, URL)
        assert await connection.fetchval("select count(*) from pgmq.q_scrape_jobs") == 1
        await transaction.rollback()
    assert await system.count_messages() == 0
    await system.fetch(
        "insert into clipnest_videos (user_id, video_url, processing_status) values ($1, $2, 'done')",
        ann.id,
        URL,
    )
    assert await system.count_messages() == 0  # what is done needs no work


async def test_many_clips_of_one_user_wait_for_their_turn(system: ClipsHarness) -> None:
    ann, bob = system.create_user(), system.create_user()
    await system.fetch(
        "insert into clipnest_videos (user_id, video_url) select $1, 'https://e.com/' || n"
        " from generate_series(1, 40) n",
        ann.id,
    )
    await system.add(bob, URL)
    visible = "select message ->> 'user_id' from pgmq.q_scrape_jobs where vt <= clock_timestamp()"
    users = [row[0] for row in await system.fetch(visible)]
    assert (users.count(ann.id), users.count(bob.id), await system.count_messages()) == (16, 1, 41)
    await system.fetch("delete from pgmq.q_scrape_jobs where vt <= clock_timestamp()")
    await system.fetch("select release_waiting_clips()")
    assert len(await system.fetch(visible)) == 16


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (7, "must be a text"),
        ("ftp://example.com/x", "http"),
        ("https://", "URL"),
        ("https://e.com/" + "x" * 9000, "longer"),
        ("nonsense", "URL"),
    ],
)
async def test_a_url_that_is_not_valid_names_the_field(system: ClipsHarness, value: Any, part: str) -> None:
    response = await system.create_user().post(CLIPS_PATH, {"video_url": value})
    assert response.status_code == 422
    assert part in response.text
    assert '"video_url"' in response.text


async def test_lists_have_pages_and_filters(system: ClipsHarness) -> None:
    ann = system.create_user()
    for number in range(5):
        await system.add(ann, f"https://e.com/{number}")
    await system.fetch("update clipnest_videos set tags = '{cats,\"a b\"}' where video_url like '%/3'")
    first = (await ann.get(f"{CLIPS_PATH}?limit=3")).json()
    second = (await ann.get(CLIPS_PATH, params={"limit": 3, "before": first["next"]})).json()
    urls = [clip["video_url"][-1] for clip in first["clips"] + second["clips"]]
    assert (urls, second["next"], first["total"]) == (["4", "3", "2", "1", "0"], None, 5)
    tagged = (await ann.get(f"{CLIPS_PATH}?tag=a%20b")).json()["clips"]
    assert [clip["tags"] for clip in tagged] == [["cats", "a b"]]
    for query in ("limit=0", "status=lost", "before=x", "before=2020-01-01~x", "tag=%00", "nonsense=1"):
        assert (await ann.get(f"{CLIPS_PATH}?{query}")).status_code == 422, query


async def test_users_see_and_change_only_their_own_clips(system: ClipsHarness) -> None:
    ann, bob = system.create_user(), system.create_user()
    clip = await system.add(ann, URL)
    path = f"{CLIPS_PATH}/{clip['id']}"
    for answer in (
        await bob.get(path),
        await bob.delete(path),
        await bob.post(f"{path}/retry"),
        await bob.get(f"{path}/events"),
        await ann.get(f"{CLIPS_PATH}/not-an-id"),
        await ann.get(f"{CLIPS_PATH}/%00"),
        await ann.get(f"{CLIPS_PATH}/{uuid4()}"),
    ):
        assert answer.status_code == 404, answer.text
    assert (await bob.get(CLIPS_PATH)).json()["clips"] == []
    assert (await ann.delete(path)).status_code == 204
    assert (await system.count_messages(), await system.count_messages(place="a")) == (0, 1)


async def test_a_user_inserts_in_sql_under_the_own_id_only(system: ClipsHarness) -> None:
    ann, bob = system.create_user(), system.create_user()

    async def act_as_ann(statement: str, *arguments: Any) -> Any:
        async with system.db.connection() as connection, connection.transaction():
            await connection.execute("select set_config('request.jwt.claim.sub', $1, true)", ann.id)
            await connection.execute("set local role authenticated")
            return await connection.fetch(statement, *arguments)

    [row] = await act_as_ann(INSERT, ann.id, URL)
    assert await system.count_messages() == 1
    for statement, arguments in (
        (INSERT, (bob.id, URL)),
        ("update clipnest_videos set processing_status = 'done'", ()),
        ("insert into clipnest_videos (user_id, video_url, message_id) values ($1, 'x', 1)", (ann.id,)),
        ("select pgmq_read('scrape_jobs', 30, 10)", ()),
        ("select enqueue_clip('x')", ()),
        ("select * from clip_steps", ()),
    ):
        with pytest.raises(DatabasePermissionError):
            await act_as_ann(statement, *arguments)
    await system.fetch("update clip_limits set max_unfinished = 1")
    with pytest.raises(TooManyRequestsError):
        await act_as_ann(INSERT, ann.id, "https://e.com/2")
    await act_as_ann("delete from clipnest_videos where id = $1", row[0])
    assert await system.count_messages() == 0


async def test_the_limits_of_a_user(system: ClipsHarness) -> None:
    ann = system.create_user()
    await system.fetch("update clip_limits set max_clips = 3, max_unfinished = 2")
    answers = await asyncio.gather(
        *(ann.post(CLIPS_PATH, {"video_url": f"https://e.com/{number}"}) for number in range(5))
    )
    assert sorted(answer.status_code for answer in answers) == [201, 201, 429, 429, 429]
    await system.fetch("update clipnest_videos set processing_status = 'done'")
    assert (await ann.post(CLIPS_PATH, {"video_url": "https://e.com/a"})).status_code == 201
    assert (await ann.post(CLIPS_PATH, {"video_url": "https://e.com/b"})).status_code == 507
    assert (await ann.post(CLIPS_PATH, {"video_url": "https://e.com/a"})).status_code == 200


async def test_the_webhook_does_not_double_what_the_trigger_sent(system: ClipsHarness) -> None:
    ann = system.create_user()
    clip = await system.add(ann, URL)

    async def post(clip_id: Any, headers: dict[str, str], **changes: Any) -> Any:
        body = {"type": "INSERT", "table": "clipnest_videos", "schema": "public", "old_record": None,
                "record": {"id": clip_id, "video_url": URL}, **changes}  # fmt: skip
        return await system.http.post(f"{CLIPS_PATH}/ingest", json=body, headers=headers)

    secret = {"x-webhook-secret": INGEST_SECRET}
    assert (await post(clip["id"], secret)).json() == {"queued": False}
    await system.fetch("alter table clipnest_videos disable trigger send_inserted_clips")
    [row] = await system.fetch(INSERT, ann.id, "https://e.com/2")
    answers = await asyncio.gather(*(post(row[0], bearer_headers(INGEST_SECRET)) for _ in range(4)))
    assert sorted(answer.json()["queued"] for answer in answers) == [False, False, False, True]
    assert await system.count_messages() == 2
    assert (await post(row[0], bearer_headers(SERVICE_KEY))).json() == {"queued": False}
    assert (await post(row[0], bearer_headers(SERVICE_KEY), type="DELETE")).json() == {"queued": False}
    for headers in ({}, bearer_headers("wrong"), {"x-webhook-secret": ""}, ann.headers):
        assert (await post(row[0], headers)).status_code in (401, 403)
    assert (await post(None, secret)).status_code == 422
    assert (await post(row[0], secret, table="other")).status_code == 422


async def test_a_clip_that_has_not_failed_is_not_retried(system: ClipsHarness) -> None:
    ann = system.create_user()
    clip = await system.add(ann, URL)
    assert (await ann.post(f"{CLIPS_PATH}/{clip['id']}/retry")).status_code == 409
    await system.fetch("update clipnest_videos set processing_status = 'failed', processing_error = 'x'")
    await system.fetch("select pgmq.archive('scrape_jobs', 1)")
    answer = await ann.post(f"{CLIPS_PATH}/{clip['id']}/retry")
    assert (answer.status_code, answer.json()["processing_status"], answer.json()["processing_error"]) == (
        202, "pending", None)  # fmt: skip
    assert await system.count_messages() == 1


async def test_metrics_count_clips_by_status(system: ClipsHarness) -> None:
    await system.add(system.create_user(), URL)
    text = (await system.http.get("/metrics", headers=bearer_headers(SERVICE_KEY))).text
    assert 'holdfast_clips{status="pending"} 1' in text
    assert 'holdfast_clips_ended_last_hour{outcome="failed"} 0' in text
    assert 'holdfast_clips_wait_seconds{queue="enrich_jobs"} 0' in text
