"""Throughput charts, pauses with an end, job details, saved views and login links."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from manual_worker import ManualWorker, expect_error, run_ticks, submit_graph, submit_job

from holdfast.engine import (
    access,
    artifacts,
    batches,
    explain,
    job_detail,
    jobs,
    limits,
    maintenance,
    overview,
    queues,
    saved_views,
)
from holdfast.engine.connection import Connection, Database
from holdfast.testing import Clock


def sum_chart_series(chart: dict[str, Any], name: str) -> int:
    return sum(point[name] for point in chart["points"])


async def run_tasks(conn: Connection, count: int, kind: Any = "succeed", **job: Any) -> None:
    await jobs.submit_many(conn, [{"type": "t", "queue": "q", "attempts": 1, **job} for _ in range(count)])
    manual_worker = ManualWorker(conn)
    for task in await manual_worker.claim_tasks(count):
        await manual_worker.finish_task(task, kind, {"type": "E", "message": "m"} if kind == "fail" else None)


async def test_repeated_samples_count_each_ended_job_once(conn: Connection, clock: Clock) -> None:
    await run_tasks(conn, 20)
    await run_tasks(conn, 5, "fail", type="other")
    pair = await submit_graph(conn, {"name": "a"}, {"name": "b", "after": ["a"]})
    manual_worker = ManualWorker(conn)
    for _ in range(2):
        await manual_worker.finish_task(await manual_worker.claim_one_task())
    await submit_job(conn, queue="deep")
    await clock.advance(timedelta(minutes=2))
    for _ in range(3):
        await run_ticks(conn)
    await clock.advance(timedelta(minutes=20))
    await run_ticks(conn)
    chart = await overview.get_throughput_chart(conn, 1)
    assert (sum_chart_series(chart, "succeeded"), sum_chart_series(chart, "failed")) == (22, 5)
    assert max(point["ready"] for point in chart["depths"]) == 1
    assert all(0 <= point["wait_p50"] <= point["wait_p95"] < 60 for point in chart["points"])
    assert sum_chart_series(await overview.get_throughput_chart(conn, 1, task_type="other"), "failed") == 5
    assert sum_chart_series(await overview.get_throughput_chart(conn, 24, queue="q"), "succeeded") == 22
    by_type = {row["type"]: row for row in await overview.get_task_type_stats(conn)}
    assert (by_type["other"]["failed"], by_type["t"]["succeeded"], by_type["t"]["failed"]) == (5, 22, 0)
    assert by_type["t"]["run_p95"] is not None
    assert str(pair.id)


async def test_concurrent_samples_count_each_job_once(db: Database, clock: Clock) -> None:
    async with db.connection() as conn:
        await run_tasks(conn, 30)
    await clock.advance(timedelta(minutes=2))

    async def look() -> None:
        async with db.connection() as other:
            await maintenance.tick_operations(other)

    await asyncio.gather(*[look() for _ in range(6)])
    async with db.connection() as conn:
        assert sum_chart_series(await overview.get_throughput_chart(conn, 1), "succeeded") == 30


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0, 1), (0.0005, 1), (0.0011, 2), (0.0025, 3), (1, 11), (1e6, 24)]
)
async def test_buckets(conn: Connection, seconds: float, bucket: int) -> None:
    assert (
        await conn.fetchval("select holdfast.find_histogram_bucket($1)", timedelta(seconds=seconds)) == bucket
    )


async def test_quantiles_lie_within_their_bucket(conn: Connection) -> None:
    counts = [0] * 24
    counts[10] = 90  # 0.512 to 1.024 s
    counts[13] = 10  # 4.1 to 8.2 s
    p50, p95 = await conn.fetchrow(
        "select holdfast.compute_histogram_quantile($1, 0.5), holdfast.compute_histogram_quantile($1, 0.95)",
        counts,
    )  # type: ignore[misc]
    assert 0.512 <= p50 <= 1.024
    assert 4.096 <= p95 <= 8.192
    assert await conn.fetchval("select holdfast.compute_histogram_quantile($1, 0.5)", [0] * 24) is None


async def test_a_pause_ends_by_itself_and_says_until_when(conn: Connection, clock: Clock) -> None:
    task = await submit_job(conn)
    until = await conn.fetchval("select holdfast.now() + interval '10 minutes'")
    await queues.pause_queue_until(conn, "q", until, reason="storm", by="ann")
    assert await ManualWorker(conn).claim_tasks(1) == []
    (why, *_) = (await explain.explain_task(conn, task))["reasons"]
    assert (why["reason"], why["by"], why["paused_reason"], why["until"] is not None) == (
        "paused",
        "ann",
        "storm",
        True,
    )
    await clock.advance(timedelta(minutes=9))
    await run_ticks(conn)
    assert await ManualWorker(conn).claim_tasks(1) == []
    await clock.advance(timedelta(minutes=2))
    await run_ticks(conn)
    assert len(await ManualWorker(conn).claim_tasks(1)) == 1
    # A later pause without an end is not touched by the end of the former one.
    await limits.pause_queue(conn, "q", reason="again")
    await submit_job(conn)
    await clock.advance(timedelta(hours=1))
    await run_ticks(conn)
    assert await ManualWorker(conn).claim_tasks(5) == []
    with expect_error("HF004", "until"):
        await queues.pause_queue_until(conn, "q", until, reason=None, by="ann")


async def test_a_job_as_its_page_shows_it(conn: Connection) -> None:
    submitted = await submit_graph(
        conn, {"name": "a", "attempts": 1}, {"name": "b", "after": ["a"]}, {"name": "c"}, owner="acme"
    )
    assert submitted.tasks is not None
    manual_worker = ManualWorker(conn)
    for task in await manual_worker.claim_tasks(2):
        if task.id == submitted.tasks["a"]:
            await manual_worker.finish_task(
                task, "fail", {"type": "E", "message": "m", "traceback": "T" * 100}
            )
    page = await job_detail.get_job_detail(conn, submitted.id)
    assert page is not None
    assert {t["name"]: t["status"] for t in page["tasks"]} == {
        "a": "failed",
        "b": "failed",
        "c": "running",
    }
    assert page["edges"] == [[str(submitted.tasks["a"]), str(submitted.tasks["b"])]]
    assert [a["error_type"] for a in page["attempts"]] == ["E"]
    assert "args" not in page["tasks"][0]
    (attempt,) = await job_detail.list_job_attempts(conn, submitted.id)
    assert (attempt["name"], attempt["traceback"], attempt["worker"]) == ("a", "T" * 100, "hand")
    single = await submit_job(conn, args={"x": 1})
    one = await job_detail.get_job_detail(conn, single)
    assert one is not None
    assert [t["id"] for t in one["tasks"]] == [str(single)]
    payload = await job_detail.get_task_payload(conn, single)
    assert payload is not None
    assert payload["args"] == {"x": 1}
    assert await job_detail.get_job_detail(conn, UUID(int=1)) is None
    assert await job_detail.get_task_payload(conn, UUID(int=1)) is None


async def test_a_job_of_five_thousand_tasks_shows_what_matters(conn: Connection) -> None:
    submitted = await submit_graph(conn, *[{"name": f"t{n:04}", "attempts": 1} for n in range(5000)])
    manual_worker = ManualWorker(conn)
    (first,) = await manual_worker.claim_tasks(1)
    await manual_worker.finish_task(first, "fail", {"type": "E", "message": "m"})
    page = await job_detail.get_job_detail(conn, submitted.id, max_tasks=100)
    assert page is not None
    assert len(page["tasks"]) == 100
    assert page["counts"]["total"] == 5000
    assert "failed" in {t["status"] for t in page["tasks"]}


async def test_queries_of_the_other_dashboard_pages(conn: Connection) -> None:
    await run_tasks(conn, 3, "fail")
    later = await conn.fetchval("select holdfast.now() - interval '1 hour'")
    assert (await overview.count_problems(conn, later))["failed"] == 3
    batch = await jobs.open_batch(conn, "night", owner="acme")
    assert [b["id"] for b in await batches.list_batches(conn, owner="acme", before=None)] == [str(batch)]
    assert await batches.list_batches(conn, owner="zeta", before=None) == []
    database = await overview.get_database_health(conn)
    assert {"tasks", "history", "jobs"} <= {table["name"] for table in database["tables"]}
    assert (await artifacts.get_files_overview(conn, owner=None, before=None))["files"] == []
    before = await overview.get_database_change_token(conn)
    await submit_job(conn)
    assert await overview.get_database_change_token(conn) != before


async def test_a_batch_whose_queue_is_paused_is_paused(conn: Connection) -> None:
    async def read_state() -> str:
        listed = await batches.list_batches(conn, owner=None, before=None)
        return (await batches.list_batch_states(conn, listed))[str(batch)]

    batch = await jobs.open_batch(conn, "night")
    assert await read_state() == "open"
    await jobs.submit_many(conn, [{"type": "t", "queue": "q", "batch": str(batch)} for _ in range(2)])
    await submit_graph(conn, {"name": "a"}, {"name": "b", "after": ["a"]}, queue="q", batch=str(batch))
    await jobs.close_batch(conn, batch)
    assert await read_state() == "queued"
    await limits.pause_queue(conn, "q", reason="storm", by="ann")
    assert await read_state() == "paused"
    await limits.resume_queue(conn, "q")
    manual_worker = ManualWorker(conn)
    tasks = await manual_worker.claim_tasks(1)
    await limits.pause_queue(conn, "q", reason="storm", by="ann")
    assert await read_state() == "running"
    await limits.resume_queue(conn, "q")
    while tasks:
        for task in tasks:
            await manual_worker.finish_task(task)
        tasks = await manual_worker.claim_tasks(5)
    assert await read_state() == "done"


async def test_charts_of_any_period(conn: Connection, clock: Clock) -> None:
    await run_tasks(conn, 7)
    await clock.advance(timedelta(hours=24))
    await run_tasks(conn, 5)
    await clock.advance(timedelta(minutes=2))
    await conn.fetchval("select holdfast.record_throughput_samples(holdfast.now())")
    now = await conn.fetchval("select holdfast.now()")
    today = await overview.get_throughput_range(conn, now - timedelta(hours=1), now)
    assert (sum_chart_series(today, "succeeded"), today["step_s"]) == (5, 60)
    long = await overview.get_throughput_range(conn, now - timedelta(days=30), now, queue="q")
    assert long["step_s"] == 28_800
    assert len(today["points"]) < 61
    none = await overview.get_throughput_range(conn, now - timedelta(hours=1), now, queue="other")
    assert none["points"] == []


async def test_views_are_saved_shared_and_deleted(conn: Connection) -> None:
    mine = await saved_views.put_saved_view(
        conn, "my failures", "jobs", "state:failed", by="ann", shared=False
    )
    await saved_views.put_saved_view(conn, "slow", "jobs", "run:>1m", by="bob")
    assert (
        await saved_views.put_saved_view(conn, "my failures", "jobs", "state:partial", by="ann", shared=False)
        == mine
    )
    assert [v["name"] for v in await saved_views.list_saved_views(conn, "ann")] == ["my failures", "slow"]
    assert [v["name"] for v in await saved_views.list_saved_views(conn, "bob")] == ["slow"]
    assert not await saved_views.delete_saved_view(conn, mine, "bob")
    assert await saved_views.delete_saved_view(conn, mine, "ann")
    with expect_error("HF004", "name"):
        await saved_views.put_saved_view(conn, " ", "jobs", "", by="ann")


async def test_a_login_link_opens_once(db: Database, conn: Connection, clock: Clock) -> None:
    await access.store_login_link(conn, b"a" * 32, name="ann", role="admin", lifetime=timedelta(minutes=5))
    await access.store_login_link(conn, b"b" * 32, name="bob", role="viewer", lifetime=timedelta(minutes=5))

    async def use() -> Any:
        async with db.connection() as other:
            return await access.redeem_login_link(other, b"a" * 32)

    answers = await asyncio.gather(*[use() for _ in range(8)])
    assert [a for a in answers if a] == [{"name": "ann", "role": "admin"}]
    await clock.advance(timedelta(minutes=6))
    assert await access.redeem_login_link(conn, b"b" * 32) is None
