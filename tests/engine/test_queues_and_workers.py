"""Task queues, workers, limits, job ids by prefix, and resubmission of a job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
from manual_worker import ManualWorker, expect_error, read_job, submit_graph, submit_job

from holdfast.engine import job_detail, jobs, limits, queues, workers
from holdfast.engine.connection import Connection
from holdfast.engine.limits import LimitRule
from holdfast.testing import Clock


async def test_queues_with_what_waits_and_who_serves_them(conn: Connection, clock: Clock) -> None:
    for _ in range(3):
        await submit_job(conn)
    await submit_job(conn, queue="other", delay_s=60)
    await limits.pause_queue(conn, "third", reason="maintenance", by="ann")
    await ManualWorker(conn).claim_tasks(1)
    await clock.advance(timedelta(seconds=90))
    by_queue = {row["queue"]: row for row in await queues.list_task_queues(conn)}
    q = by_queue["q"]
    assert (q["ready"], q["running"], q["scheduled"], q["workers"]) == (2, 1, 0, 1)
    assert q["oldest_s"] >= 90
    assert (by_queue["other"]["scheduled"], by_queue["other"]["workers"]) == (1, 0)
    assert (by_queue["third"]["paused_by"], by_queue["third"]["paused_reason"]) == ("ann", "maintenance")
    assert [row["queue"] for row in await queues.list_task_queues(conn, "other")] == ["other"]
    assert await queues.list_task_queues(conn, "none") == []


async def test_how_many_workers_a_queue_could_use(conn: Connection, clock: Clock) -> None:
    assert await workers.count_desired_workers(conn, "none") == 0
    for _ in range(17):
        await submit_job(conn)
    assert await workers.count_desired_workers(conn, "q") == 2
    assert await workers.count_desired_workers(conn, "q", per_worker=8) == 3
    await clock.advance(timedelta(minutes=2, seconds=5))
    assert await workers.count_desired_workers(conn, "q", per_worker=8) == 5  # two minutes of waiting
    await clock.advance(timedelta(hours=2))
    assert await workers.count_desired_workers(conn, "q") == 4  # never more than twice as many
    await limits.pause_queue(conn, "q")
    assert await workers.count_desired_workers(conn, "q") == 0
    with expect_error("HF004", "per_worker"):
        await workers.count_desired_workers(conn, "q", per_worker=0)


async def test_tasks_that_wait_for_a_limit_need_no_workers(conn: Connection, clock: Clock) -> None:
    for n in range(40):
        await submit_job(conn, limit_key=f"key {n % 4}", priority=n % 2)
    await limits.put_limit(conn, LimitRule(name="all", queue="q", max_running=6))
    assert await workers.count_desired_workers(conn, "q", per_worker=1) == 6
    await clock.advance(timedelta(minutes=10))
    assert await workers.count_desired_workers(conn, "q", per_worker=1) == 6  # more workers would only wait
    assert len(await ManualWorker(conn).claim_tasks(100)) == 6
    assert await workers.count_desired_workers(conn, "q", per_worker=1) == 6  # those that run
    await limits.put_limit(conn, LimitRule(name="all", queue="q", max_running=100))
    await limits.put_limit(conn, LimitRule(name="each", queue="q", per_key=True, max_running=2))
    await limits.put_limit(conn, LimitRule(name="others", queue="another", max_running=1))
    desired = await workers.count_desired_workers(conn, "q", per_worker=1)
    assert desired == 6 + len(await ManualWorker(conn).claim_tasks(100))
    assert 6 < desired <= 14  # two for each of four keys, beside those that ran before the limit


async def test_a_rate_allows_the_workers_of_its_next_half_minute(conn: Connection) -> None:
    for _ in range(100):
        await submit_job(conn)
    await limits.put_limit(conn, LimitRule(name="rate", queue="q", rate=1.0, burst=2.0))
    assert await workers.count_desired_workers(conn, "q", per_worker=1) == 32
    await limits.put_limit(conn, LimitRule(name="rate", queue="q", max_running=0))
    assert await workers.count_desired_workers(conn, "q", per_worker=1) == 0


async def test_workers_and_what_they_run(conn: Connection, clock: Clock) -> None:
    await submit_job(conn, timeout_s=300)
    (task,) = await ManualWorker(conn, "ann").claim_tasks(1)
    await ManualWorker(conn, "bob").claim_tasks(1)
    await clock.advance(timedelta(seconds=62))
    await ManualWorker(conn, "bob").claim_tasks(1)  # takes the lease back; the task rests for a few seconds
    await clock.advance(timedelta(seconds=30))
    await ManualWorker(conn, "bob").claim_tasks(1)
    by_name = {row["name"]: row for row in await workers.list_workers(conn)}
    assert (by_name["ann"]["state"], by_name["ann"]["running"]) == ("quiet", 0)  # its lease went to bob
    assert (by_name["bob"]["state"], by_name["bob"]["running"]) == ("live", 1)
    (running,) = await workers.list_running_tasks_of_worker(conn, "bob")
    assert (running["task"], running["attempt"]) == (str(task.id), 2)
    assert await workers.list_running_tasks_of_worker(conn, "nobody") == []
    await clock.advance(timedelta(hours=2))
    assert [row["name"] for row in await workers.list_workers(conn)] == ["bob"]  # it still holds something


async def test_limits_with_what_is_in_use(conn: Connection) -> None:
    await limits.put_limit(conn, limits.LimitRule(name="each", queue="q", per_key=True, max_running=2))
    for key in ("a", "b", "b", "b"):
        await submit_job(conn, limit_key=key)
    assert len(await ManualWorker(conn).claim_tasks(9)) == 3
    (limit,) = await limits.list_limits(conn)
    assert (limit["name"], limit["running"], limit["keys"], limit["fullest"]) == ("each", 3, 2, ["b", "a"])


async def test_an_id_by_its_beginning(conn: Connection) -> None:
    first, second = await submit_job(conn), await submit_job(conn)
    await ManualWorker(conn).finish_task(await ManualWorker(conn).claim_one_task())
    assert await job_detail.find_jobs_by_id_prefix(conn, str(first)) == [first]
    assert await job_detail.find_jobs_by_id_prefix(conn, str(second)[:-1].upper()) == [second]
    assert await job_detail.find_jobs_by_id_prefix(conn, str(first)[:8]) == sorted([first, second])
    for wrong in ("", "abc", "zzzzzz", "'; --", str(first) + "0"):
        assert await job_detail.find_jobs_by_id_prefix(conn, wrong) == []


async def test_a_job_again_as_it_was_submitted(conn: Connection) -> None:
    submission: dict[str, Any] = {
        "args": {"url": "x", "nothing": None}, "priority": 3, "limit_key": "k", "attempts": 2,
        "owner": "ann", "labels": {"a": "b"}, "type": "t", "queue": "q",
    }  # fmt: skip
    submitted = await jobs.submit(conn, {**submission, "key": "once"})
    assert await job_detail.build_job_resubmission(conn, submitted.id) == submission
    await ManualWorker(conn).finish_task(await ManualWorker(conn).claim_one_task())
    assert await job_detail.build_job_resubmission(conn, submitted.id) == submission
    with expect_error("HF002"):
        await job_detail.build_job_resubmission(conn, UUID(int=1))


async def test_a_graph_again_without_what_its_tasks_added(conn: Connection) -> None:
    submitted = await submit_graph(
        conn,
        {"name": "a", "type": "t", "args": {"n": 1}, "weight": 2},
        {"name": "b", "type": "t", "after": [{"name": "a", "on_failure": "skip"}]},
        type="pair", params={"p": 1},
    )  # fmt: skip
    task = await ManualWorker(conn).claim_one_task()
    await conn.fetchval(
        "select holdfast.add_tasks($1, $2, $3, $4)",
        task.id,
        task.attempt,
        task.nonce,
        '[{"name":"c","type":"t"}]',
    )
    body = await job_detail.build_job_resubmission(conn, submitted.id)
    assert [(t["name"], t["args"], t.get("after")) for t in body["tasks"]] == [
        ("a", {"n": 1}, None),
        ("b", None, [{"name": "a", "on_failure": "skip"}]),
    ]
    assert (body["type"], body["params"]) == ("pair", {"p": 1})
    again = await jobs.submit(conn, body)
    assert [t["name"] for t in (await read_job(conn, again.id))["tasks"]] == ["a", "b"]


async def test_a_count_of_what_is_ready_stops_in_each_queue_and_says_so(conn: Connection) -> None:
    for kind in ("a", "b", "c"):  # a lane each
        await jobs.submit_many(conn, [{"type": kind, "queue": "full"} for _ in range(10)])
    await jobs.submit(conn, {"type": "a", "queue": "short"})
    rows = await conn.fetch("select q from holdfast.list_task_queues(null, 25) as q")
    by_queue = {row["queue"]: row for row in (msgspec.json.decode(each["q"]) for each in rows)}
    assert (by_queue["full"]["ready"], by_queue["full"]["ready_exact"]) == (25, False)
    assert (by_queue["short"]["ready"], by_queue["short"]["ready_exact"]) == (1, True)
    assert by_queue["full"]["oldest_s"] >= by_queue["short"]["oldest_s"] >= 0
