"""Short tasks are claimed ahead of free slots. They never run beyond the concurrency and are given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Client, task, telemetry
from holdfast.engine import jobs
from holdfast.engine.connection import Connection, Database
from holdfast.testing import wait_until
from holdfast.worker.prefetch import MAX_TASKS_IN_WORKER, PrefetchPlanner
from holdfast.worker.queue_shares import QueueShare
from holdfast.worker.runtime import WorkerRuntime

CONCURRENCY = 4


class Activity:
    """What the tasks of this module do: how many run, which have run, and whether they may end."""

    def __init__(self) -> None:
        self.running = self.most_running = 0
        self.started: list[int] = []
        self.blocked = False
        self.may_end = asyncio.Event()


activity = Activity()


@pytest.fixture(autouse=True)
def _activity() -> None:
    global activity  # noqa: PLW0603  (the tasks look at it)
    activity = Activity()


@task(queue="short", timeout=timedelta(seconds=60))
async def short(n: int) -> None:
    activity.started.append(n)
    activity.running += 1
    activity.most_running = max(activity.most_running, activity.running)
    try:
        if activity.blocked:
            await activity.may_end.wait()
        else:
            await asyncio.sleep(0)
    finally:
        activity.running -= 1


@asynccontextmanager
async def run_worker(db: Database, **options: Any) -> AsyncGenerator[tuple[WorkerRuntime, asyncio.Event]]:
    stop = asyncio.Event()
    runtime = WorkerRuntime(db, {short.name: short}, **{"concurrency": CONCURRENCY, **options})
    running = asyncio.create_task(runtime.run(stop))
    try:
        yield runtime, stop
    finally:
        stop.set()
        activity.may_end.set()
        async with asyncio.timeout(30):
            await running


async def submit_short_tasks(client: Client, count: int) -> None:
    for start in range(0, count, 1000):
        await client.submit_many([short(n) for n in range(start, min(start + 1000, count))])


async def wait_until_drained(conn: Connection) -> None:
    async def is_drained() -> bool:
        return not await conn.fetchval("select exists (select from holdfast.tasks)")

    await wait_until(is_drained, what="all tasks have ended")


async def block_worker_with_waiting_tasks(runtime: WorkerRuntime) -> None:
    """Let the worker run short tasks until it has claimed some ahead, and then let no task end."""

    async def has_waiting_tasks() -> bool:
        return runtime._executor.waiting_count >= CONCURRENCY

    await wait_until(has_waiting_tasks, what="tasks were claimed ahead")
    activity.blocked = True


def record_claims() -> tuple[list[int], Callable[[], None]]:
    requested: list[int] = []
    stop = telemetry.subscribe(
        lambda _, fields: requested.append(fields["requested"]), only=["tasks.claimed"]
    )
    return requested, stop


async def test_short_tasks_are_claimed_ahead_and_never_run_beyond_the_concurrency(
    client: Client, conn: Connection, db: Database
) -> None:
    await submit_short_tasks(client, 4000)
    requested, unsubscribe = record_claims()
    async with run_worker(db):
        await wait_until_drained(conn)
    unsubscribe()
    assert max(requested) > CONCURRENCY
    assert activity.most_running <= CONCURRENCY
    assert sorted(activity.started) == list(range(4000))
    assert await conn.fetchval("select count(*) from holdfast.history where status = 'succeeded'") == 4000
    # On a busy machine some may be given back before they start, which costs a number and no attempt.
    outcomes = await conn.fetch("select distinct outcome from holdfast.attempts")
    assert {row["outcome"] for row in outcomes} <= {"released", "succeeded"}


@pytest.mark.parametrize("options", [{"max_tasks": 500}, {"queues": [QueueShare("short", max_running=3)]}])
async def test_bounded_workers_claim_nothing_ahead(
    client: Client, conn: Connection, db: Database, options: dict[str, Any]
) -> None:
    await submit_short_tasks(client, 500)
    requested, unsubscribe = record_claims()
    async with run_worker(db, **options):
        await wait_until_drained(conn)
    unsubscribe()
    assert max(requested) <= CONCURRENCY


async def test_tasks_that_wait_for_a_slot_are_given_back(
    client: Client, conn: Connection, db: Database
) -> None:
    """Other workers run them while a long task blocks this one. Nothing is charged."""
    await submit_short_tasks(client, 8_000)
    async with run_worker(db) as (runtime, _):
        await block_worker_with_waiting_tasks(runtime)

        async def holds_running_tasks_only() -> bool:
            return bool(
                await conn.fetchval(
                    "select count(*) = $1 from holdfast.tasks where status = 'running'", CONCURRENCY
                )
            )

        await wait_until(holds_running_tasks_only, what="waiting tasks were given back")
        assert activity.running == CONCURRENCY
        released = await conn.fetchval("select count(*) from holdfast.attempts where outcome = 'released'")
        assert released > 0
        charged = await conn.fetchval(
            "select sum(failures + crashes + coalesce(losses, 0)) from holdfast.tasks"
        )
        assert charged == 0


async def test_a_stop_gives_back_waiting_tasks_before_the_grace(
    client: Client, conn: Connection, db: Database
) -> None:
    await submit_short_tasks(client, 8_000)
    async with run_worker(db, grace=timedelta(seconds=30)) as (runtime, stop):
        await block_worker_with_waiting_tasks(runtime)
        stop.set()

        async def has_no_waiting_task() -> bool:
            return runtime._executor.waiting_count == 0

        await wait_until(has_no_waiting_task, what="waiting tasks were given back")
        assert activity.running <= CONCURRENCY
    assert len(set(activity.started)) == len(activity.started)
    assert await conn.fetchval("select count(*) from holdfast.tasks where status = 'running'") == 0
    assert await conn.fetchval("select max(failures + crashes) from holdfast.tasks") == 0


async def test_a_cancelled_task_that_waits_never_starts(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.task_executor.MAX_WAIT_FOR_SLOT_S", 60.0)
    await submit_short_tasks(client, 8_000)
    async with run_worker(db) as (runtime, _):
        await block_worker_with_waiting_tasks(runtime)
        waiting = list(runtime._executor._waiting)[-1]
        number = waiting.claimed.args["n"]
        await jobs.cancel_job(conn, waiting.claimed.id)

        async def has_ended() -> bool:
            return waiting.ended

        await wait_until(has_ended, what="the worker has dropped the cancelled task")
        runtime._executor.release_waiting_attempts()
    assert number not in activity.started


def test_as_many_tasks_are_claimed_ahead_as_run_in_fifty_milliseconds() -> None:
    planner = PrefetchPlanner(10)
    planner.record_claim(10, 0.0, is_full=True)
    assert planner.extra_slots == 0
    planner.record_claim(20, 0.005, is_full=True)  # too short to measure
    assert planner.extra_slots == 0
    planner.record_claim(50, 0.02, is_full=True)  # 2,000 per second
    assert planner.extra_slots == 90


@pytest.mark.parametrize(
    ("concurrency", "ended", "expected"), [(10, 1, 0), (10, 20, 0), (10, 10_000, 490), (600, 10_000, 0)]
)
def test_the_number_of_tasks_in_a_worker_is_bounded(concurrency: int, ended: int, expected: int) -> None:
    planner = PrefetchPlanner(concurrency)
    planner.record_claim(0, 0.0, is_full=True)
    planner.record_claim(ended, 0.1, is_full=True)
    assert planner.extra_slots == expected
    assert planner.extra_slots + concurrency <= max(MAX_TASKS_IN_WORKER, concurrency)


def test_nothing_is_claimed_ahead_when_the_queue_is_nearly_empty() -> None:
    planner = PrefetchPlanner(10)
    planner.record_claim(0, 0.0, is_full=True)
    planner.record_claim(100, 0.02, is_full=True)
    assert planner.extra_slots
    planner.record_claim(200, 0.04, is_full=False)
    assert planner.extra_slots == 0


async def test_only_tasks_that_ran_and_the_time_in_which_they_ran_count(
    client: Client, conn: Connection, db: Database
) -> None:
    """Otherwise a slow database makes the worker seem slow, so that it claims less and waits even more."""
    await submit_short_tasks(client, 400)
    async with run_worker(db) as (runtime, _):
        await wait_until_drained(conn)
        ran_count, busy_s = runtime._executor.measure_work()
        assert runtime._executor.measure_work() == (ran_count, busy_s)  # nothing runs, so it stands still
        assert ran_count == 400
        activity.blocked = True
        await submit_short_tasks(client, 1)
        await wait_until(lambda: runtime._executor.measure_work()[1] > busy_s, what="a task runs")
        assert runtime._executor.measure_work()[0] == 400  # it has not ended
