"""A worker that sleeps when work is committed is notified, however long ago the work was submitted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from manual_worker import QUEUE, ManualWorker, build_outcome, submit_job
from wakeup_listener import WakeupListener, forget_wakeups

from holdfast import task
from holdfast.engine import jobs, leases
from holdfast.engine.connection import Connection, Database
from holdfast.testing import wait_until
from holdfast.worker import poll_schedule
from holdfast.worker.runtime import WorkerRuntime


async def awake(manual_worker: ManualWorker) -> Any:
    """A worker that found something."""
    await submit_job(manual_worker.conn, queue=manual_worker.queues[0])
    return await manual_worker.claim_one_task()


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
async def test_a_worker_that_falls_asleep_before_the_commit_is_notified(
    conn: Connection, second: Connection, wakeups: WakeupListener, isolation: Any
) -> None:
    manual_worker = ManualWorker(conn)
    await awake(manual_worker)
    await wakeups.received()
    async with second.transaction(isolation=isolation):
        created = await submit_job(second)  # nobody sleeps now
        assert await manual_worker.claim_tasks(5) == []  # and now somebody does
        assert await wakeups.received() == []
    assert await wakeups.received() == [QUEUE if isolation == "read_committed" else ""]
    assert [t.id for t in await manual_worker.claim_tasks(5)] == [created]


async def test_a_worker_that_is_awake_at_the_commit_is_not_notified(
    conn: Connection, second: Connection, wakeups: WakeupListener
) -> None:
    manual_worker = ManualWorker(conn)
    assert await manual_worker.claim_tasks(5) == []
    async with second.transaction():
        await submit_job(second)  # somebody sleeps now
        await wakeups.received()
        other = await submit_job(conn)
        assert [t.id for t in await manual_worker.claim_tasks(1)] == [other]  # and wakes up
        await wakeups.received()
    assert await wakeups.received() == []


async def test_a_single_submit_notifies_sleeping_workers_of_its_queue(
    conn: Connection, second: Connection, wakeups: WakeupListener
) -> None:
    manual_worker = ManualWorker(conn)
    await awake(manual_worker)
    await wakeups.received()
    body = {"type": "t", "queue": QUEUE}
    await jobs.submit_standalone(second, body)  # nobody sleeps
    assert await wakeups.received() == []
    assert len(await manual_worker.claim_tasks(5)) == 1
    assert await manual_worker.claim_tasks(5) == []
    await jobs.submit(second, {**body, "queue": "other"})
    for _ in range(2):
        await jobs.submit_standalone(second, {**body, "queue": "other"})
    assert await wakeups.received() == []
    await jobs.submit_standalone(second, body)
    assert await wakeups.received() == [QUEUE]


async def test_a_transaction_notifies_once_per_queue(
    conn: Connection, second: Connection, wakeups: WakeupListener
) -> None:
    assert await ManualWorker(conn, queues=[QUEUE, "other"]).claim_tasks(5) == []
    async with second.transaction():
        for n in range(20):
            await submit_job(second, queue=QUEUE if n % 2 else "other")
        await jobs.submit_many(second, [{"type": "t", "queue": QUEUE, "limit_key": str(n)} for n in range(9)])
        await submit_job(second, queue="nobody")
    # Once: the worker that was notified asks for tasks of all its queues.
    assert len(await wakeups.received()) == 1
    await forget_wakeups(conn)
    await submit_job(second)  # the next transaction says it again
    assert await wakeups.received() == [QUEUE]
    assert await conn.fetchval("select count(*) from holdfast.wakeups") == 0


async def test_a_rollback_wakes_no_worker_and_hides_no_task(
    conn: Connection, second: Connection, wakeups: WakeupListener
) -> None:
    manual_worker = ManualWorker(conn)
    assert await manual_worker.claim_tasks(5) == []
    for kept in (False, True):
        await forget_wakeups(conn)
        async with second.transaction():
            undone = second.transaction()
            await undone.start()
            await submit_job(second)
            await undone.rollback()
            if kept:
                await submit_job(second)
        assert await wakeups.received() == ([QUEUE] if kept else [])


async def test_a_task_released_in_a_long_transaction(
    conn: Connection, second: Connection, wakeups: WakeupListener
) -> None:
    manual_worker = ManualWorker(conn)
    task = await awake(manual_worker)
    await wakeups.received()
    async with second.transaction():
        answer = await leases.finish_and_claim(
            second, worker="hand", outcomes=[build_outcome(task, "release")], slots=0, queues=[QUEUE]
        )
        assert list(answer.answers) == ["ok"]
        assert await manual_worker.claim_tasks(5) == []
    assert QUEUE in await wakeups.received()


async def create_sleeping_worker(conn: Connection, name: str, report: dict[str, object]) -> None:
    assert await ManualWorker(conn, name).claim_tasks(1) == []
    await leases.heartbeat_worker(conn, name, report)


async def receive_on_channels(
    conn: Connection, channels: list[str], submit: Callable[[], Awaitable[object]]
) -> dict[str, bool]:
    """Return the channels on which something arrives during a submit, and whether it is for a backup."""
    received: dict[str, bool] = {}

    def record(_: object, __: int, channel: str, payload: object) -> None:
        assert channel not in received
        received[channel] = json.loads(str(payload)).get("backup", False)

    for channel in channels:
        await conn.add_listener(channel, record)
    await submit()
    await conn.fetchval("select 1")
    await asyncio.sleep(0.1)
    for channel in channels:
        await conn.remove_listener(channel, record)
    return received


async def test_few_of_many_workers_are_notified(
    conn: Connection, second: Connection, wakeups: WakeupListener
) -> None:
    """One task wakes the worker that was seen last and two others, each on a channel of its own."""
    channels = [f"holdfast_{number:012x}" for number in range(10)]
    for number, channel in enumerate(channels):
        await create_sleeping_worker(conn, f"worker {number}", {"channel": channel, "listening": True})
    await wakeups.received()
    received = await receive_on_channels(conn, channels, lambda: submit_job(second))
    woken = await conn.fetchval("select name from holdfast.workers where woken_at is not null")
    assert sorted(received.values()) == [False, True, True]
    assert received[channels[int(woken.split()[1])]] is False
    assert await wakeups.received() == []


async def test_more_tasks_wake_more_workers(
    conn: Connection, second: Connection, wakeups: WakeupListener
) -> None:
    """One more asks at once for each ten tasks."""
    channels = [f"holdfast_{number:012x}" for number in range(10)]
    for number, channel in enumerate(channels):
        await create_sleeping_worker(conn, f"worker {number}", {"channel": channel})
    bodies = [{"type": "t", "queue": QUEUE}] * 30
    received = await receive_on_channels(conn, channels, lambda: jobs.submit_many(second, bodies))
    assert sorted(received.values()) == [False] * 4 + [True] * 2


async def test_many_tasks_wake_all_workers(
    conn: Connection, second: Connection, wakeups: WakeupListener
) -> None:
    await create_sleeping_worker(conn, "worker", {"channel": "holdfast_0123456789ab"})
    await jobs.submit_many(second, [{"type": "t", "queue": QUEUE}] * 300)
    assert await wakeups.received() == [QUEUE]


@pytest.mark.parametrize("channel", [None, "", "holdfast", "x" * 100, 5, "holdfast_0123456789ab\n"])
async def test_a_worker_without_a_channel_hears_the_shared_one(
    conn: Connection, second: Connection, wakeups: WakeupListener, channel: object
) -> None:
    """Workers of older versions have none, and a bad one in a report must not make submits fail."""
    await create_sleeping_worker(conn, "new", {"channel": "holdfast_0123456789ab"})
    await create_sleeping_worker(conn, "old", {"channel": channel})
    await wakeups.received()
    await submit_job(second)
    assert await wakeups.received() == [QUEUE]


async def test_a_worker_that_polls_is_not_woken(
    conn: Connection, second: Connection, wakeups: WakeupListener
) -> None:
    await create_sleeping_worker(conn, "hears", {"channel": "holdfast_0123456789ab"})
    await create_sleeping_worker(conn, "polls", {"channel": "holdfast_ffffffffffff", "listening": False})
    channels = ["holdfast_0123456789ab", "holdfast_ffffffffffff"]
    received = await receive_on_channels(conn, channels, lambda: submit_job(second))
    assert received == {"holdfast_0123456789ab": False}


@pytest.mark.parametrize("ending", ["mark_worker_stopped", "mark_worker_lost"])
async def test_a_worker_that_ended_leaves_no_channel_to_its_successor(conn: Connection, ending: str) -> None:
    await create_sleeping_worker(conn, "named", {"channel": "holdfast_0123456789ab", "host": "a"})
    await conn.execute(f"select holdfast.{ending}('named')")
    assert await conn.fetchval("select report from holdfast.workers") == '{"host": "a"}'


@task(queue="wakes")
async def nothing() -> None:
    pass


async def test_a_notified_worker_runs_a_task_without_polling(
    conn: Connection, second: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker looks again once and then sleeps for longer than the test may take."""
    monkeypatch.setattr(poll_schedule, "POLL_DELAYS_BEFORE_SLEEP_S", (0.05,))
    monkeypatch.setattr(poll_schedule, "POLL_INTERVAL_WITH_LISTENER_S", 600.0)
    monkeypatch.setattr(poll_schedule, "POLL_INTERVAL_WITHOUT_LISTENER_S", 600.0)
    stop = asyncio.Event()
    running = asyncio.create_task(WorkerRuntime(db, {nothing.name: nothing}).run(stop))
    asleep = "select count(*) = 1 from holdfast.workers where sleeping"

    async def sleeps() -> bool:
        return bool(await conn.fetchval(asleep))

    await wait_until(sleeps, what="a worker that sleeps")
    await conn.execute("update holdfast.workers set sleeping = false")  # as if it were about to
    async with second.transaction():
        created = await submit_job(second, type=nothing.name, queue="wakes")
        await conn.execute("update holdfast.workers set sleeping = true")

    async def done() -> bool:
        return bool(await conn.fetchval("select holdfast.get_job_status($1)", created) == "succeeded")

    await wait_until(done, what="the task to run")
    stop.set()
    await running
