"""A worker that sleeps when work is committed is notified, however long ago the work was submitted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from manual_worker import QUEUE, ManualWorker, build_outcome, submit_job
from wakeup_listener import WakeupListener, forget_wakeups

from holdfast import task
from holdfast.engine import jobs, leases
from holdfast.engine.connection import Connection, Database
from holdfast.testing import wait_until
from holdfast.worker import fetcher
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


@task(queue="wakes")
async def nothing() -> None:
    pass


async def test_a_notified_worker_runs_a_task_without_polling(
    conn: Connection, second: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker looks again once and then sleeps for longer than the test may take."""
    monkeypatch.setattr(fetcher, "POLL_DELAYS_BEFORE_SLEEP_S", (0.05,))
    monkeypatch.setattr(fetcher, "POLL_INTERVAL_WITH_LISTENER_S", 600.0)
    monkeypatch.setattr(fetcher, "POLL_INTERVAL_WITHOUT_LISTENER_S", 600.0)
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
