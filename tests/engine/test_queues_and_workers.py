"""Task queues, workers, limits, job ids by prefix, and resubmission of a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from manual_worker import ManualWorker, expect_error, read_job, submit_graph, submit_job

from holdfast.engine import job_detail, jobs, limits, overview, queues, workers
from holdfast.engine.connection import Connection
from holdfast.engine.limits import LimitRule
from holdfast.testing import Clock


async def test_queues_are_listed_with_their_tasks_and_workers(conn: Connection, clock: Clock) -> None:
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


async def test_workers_are_listed_with_their_tasks(conn: Connection, clock: Clock) -> None:
    await submit_job(conn, timeout_s=300)
    (task,) = await ManualWorker(conn, "ann").claim_tasks(1)
    await ManualWorker(conn, "bob").claim_tasks(1)
    await clock.advance(timedelta(seconds=62))
    await ManualWorker(conn, "bob").claim_tasks(1)  # takes the lease back; the task rests for a few seconds
    await clock.advance(timedelta(seconds=30))
    await ManualWorker(conn, "bob").claim_tasks(1)
    by_name = {row["name"]: row for row in await workers.list_workers(conn)}
    assert (by_name["ann"]["state"], by_name["ann"]["running"]) == ("unresponsive", 0)  # bob has its lease
    assert (by_name["bob"]["state"], by_name["bob"]["running"]) == ("live", 1)
    (running,) = await workers.list_running_tasks_of_worker(conn, "bob")
    assert (running["task"], running["attempt"]) == (str(task.id), 2)
    assert await workers.list_running_tasks_of_worker(conn, "nobody") == []
    await clock.advance(timedelta(hours=2))
    assert [row["name"] for row in await workers.list_workers(conn)] == ["bob"]  # it still holds something


async def test_limits_are_listed_with_their_usage(conn: Connection) -> None:
    await limits.put_limit(conn, limits.LimitRule(name="each", queue="q", per_key=True, max_running=2))
    for key in ("a", "b", "b", "b"):
        await submit_job(conn, limit_key=key)
    assert len(await ManualWorker(conn).claim_tasks(9)) == 3
    (limit,) = await limits.list_limits(conn)
    assert (limit["name"], limit["running"], limit["keys"], limit["fullest"]) == ("each", 3, 2, ["b", "a"])


async def test_a_job_is_found_by_the_first_or_last_digits_of_its_id(conn: Connection) -> None:
    async def find(first: str, last: str = "") -> list[UUID]:
        return await job_detail.find_jobs_by_short_id(conn, first, last)

    first, second = await submit_job(conn), await submit_job(conn)
    await ManualWorker(conn).finish_task(await ManualWorker(conn).claim_one_task())
    assert await find(str(first)) == [first]
    assert await find(str(second)[:-1].upper()) == [second]
    assert await find(str(first)[:8]) == sorted([first, second])
    for each in (first, second):
        assert await find(str(each)[:8], str(each)[-5:]) == await find("", str(each)[-12:]) == [each]
    for wrong in ("", "abc", "zzzzzz", "'; --", str(first) + "0"):
        assert await find(wrong) == await find("", wrong) == []
    assert await conn.fetch("select holdfast.find_jobs_by_id_prefix($1) as id", str(first)) == [(first,)]


async def test_a_rerun_repeats_the_submitted_job(conn: Connection) -> None:
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


async def test_a_rerun_of_a_graph_omits_tasks_added_at_run_time(conn: Connection) -> None:
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


async def list_queues_up_to(conn: Connection, max_rows: int) -> dict[str, dict[str, Any]]:
    rows = await queues.list_task_queues(conn, max_rows=max_rows)
    return {row["queue"]: row for row in rows}


async def test_counts_above_the_limit_are_estimates_of_the_right_size(conn: Connection) -> None:
    """Two types in turn share the positions, and a part of the tasks is gone: the count is still right."""
    calls = [{"type": kind, "queue": "full"} for _ in range(4000) for kind in ("a", "b")]
    await jobs.submit_many(conn, calls)
    await jobs.submit(conn, {"type": "a", "queue": "short"})
    await conn.execute(
        "delete from holdfast.tasks t using holdfast.lanes l where l.id = t.lane_id and l.queue = 'full'"
        " and t.pos % 4000 between 500 and 1499"
    )
    by_queue = await list_queues_up_to(conn, 1000)
    assert by_queue["full"]["ready_exact"] is False
    assert by_queue["full"]["ready"] == pytest.approx(6000, rel=0.15)
    assert (by_queue["short"]["ready"], by_queue["short"]["ready_exact"]) == (1, True)
    assert by_queue["full"]["oldest_s"] >= by_queue["short"]["oldest_s"] >= 0
    again = (await list_queues_up_to(conn, 1000))["full"]["ready"]
    assert again == by_queue["full"]["ready"]  # a page that is updated does not flicker
    assert (await list_queues_up_to(conn, 10_000))["full"]["ready"] == 6000
    totals = await overview.get_engine_metrics(conn, max_rows=1000)
    by_type = {row["type"]: row for row in totals["queues"] if row["queue"] == "full"}
    assert {row["ready_exact"] for row in by_type.values()} == {False}
    assert sum(row["ready"] for row in by_type.values()) == pytest.approx(6000, rel=0.15)


async def test_many_lanes_are_estimated_together(conn: Connection) -> None:
    keys = [f"tenant-{n}" for n in range(1500)]
    await jobs.submit_many(conn, [{"type": "a", "queue": "q", "limit_key": key} for key in keys * 2])
    row = (await list_queues_up_to(conn, 1000))["q"]
    assert (row["ready"], row["ready_exact"]) == (pytest.approx(3000, rel=0.05), False)


async def test_scheduled_tasks_above_the_limit_are_estimated_by_queue(conn: Connection) -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    for queue, count in (("big", 9000), ("small", 3000)):
        await jobs.submit_many(
            conn, [{"type": "a", "queue": queue, "run_at": tomorrow} for _ in range(count)]
        )
    by_queue = await list_queues_up_to(conn, 1000)
    assert by_queue["big"]["scheduled_exact"] is False
    assert by_queue["big"]["scheduled"] == pytest.approx(9000, rel=0.3)
    assert by_queue["small"]["scheduled"] == pytest.approx(3000, rel=0.3)
    totals = msgspec.json.decode(await conn.fetchval("select holdfast.count_problems(now(), 1000)"))
    assert (totals["scheduled"], totals["scheduled_exact"]) == (pytest.approx(12_000, rel=0.2), False)
    assert totals["retrying"] == 0
