"""Options that are computed for each call leave neither lanes nor policies behind."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from manual_worker import ManualWorker, run_ticks

from holdfast.engine import jobs
from holdfast.engine.connection import Connection
from holdfast.testing import Clock, wait_until

COUNT_LANES = "select count(*) from holdfast.lanes"
COUNT_POLICIES = "select count(*) from holdfast.task_policies"
KEPT_LANES = 20


async def submit_with_timeouts(conn: Connection, count: int) -> None:
    """Submit tasks that each have another time limit."""
    for number in range(count):
        await submit_task(conn, timeout_s=10 + number)


async def submit_task(conn: Connection, **options: Any) -> None:
    await jobs.submit(conn, {"type": "t", "queue": "q", **options})


async def finish_all(conn: Connection) -> None:
    manual_worker = ManualWorker(conn)
    while tasks := await manual_worker.claim_tasks(50):
        for task in tasks:
            await manual_worker.finish_task(task)


async def count_after(conn: Connection, clock: Clock, delay: timedelta, query: str) -> int:
    await clock.advance(delay)
    await run_ticks(conn)
    count: int = await conn.fetchval(query)
    return count


async def test_lanes_of_computed_options_are_removed(conn: Connection, clock: Clock) -> None:
    await submit_with_timeouts(conn, 60)
    await finish_all(conn)
    await submit_task(conn, timeout_s=10)
    assert await conn.fetchval(COUNT_LANES) == 60

    async def few_lanes() -> bool:  # a transaction of another test on the same server delays it
        return await count_after(conn, clock, timedelta(hours=1), COUNT_LANES) == KEPT_LANES + 1

    await wait_until(few_lanes)
    await submit_task(conn, timeout_s=11)
    assert len(await ManualWorker(conn).claim_tasks(5)) == 2
    assert await conn.fetchval(COUNT_POLICIES) == 60


async def test_policies_are_removed_after_their_history(conn: Connection, clock: Clock) -> None:
    await submit_with_timeouts(conn, 130)
    await finish_all(conn)
    for _ in range(4):  # the ended jobs are kept for a day
        assert await count_after(conn, clock, timedelta(hours=5), COUNT_POLICIES) == 130

    async def few_policies() -> bool:
        return await count_after(conn, clock, timedelta(days=2), COUNT_POLICIES) == KEPT_LANES

    await wait_until(few_policies)
    await submit_with_timeouts(conn, 3)
    assert len(await ManualWorker(conn).claim_tasks(5)) == 3


async def test_a_few_lanes_stay_when_they_are_empty(conn: Connection, clock: Clock) -> None:
    await submit_with_timeouts(conn, KEPT_LANES)
    await finish_all(conn)
    for _ in range(4):
        assert await count_after(conn, clock, timedelta(hours=3), COUNT_LANES) == KEPT_LANES
