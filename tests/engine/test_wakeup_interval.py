"""Workers of a queue are notified at most once in 50 ms, and no task is forgotten because of it."""

from __future__ import annotations

import asyncio

import pytest
from manual_worker import QUEUE, ManualWorker, submit_job
from wakeup_listener import WakeupListener, forget_wakeups, set_wakeup_interval

from holdfast.engine import jobs
from holdfast.engine.connection import Connection, Database
from holdfast.worker.wakeups import Wakeup, parse_wakeup


async def put_to_sleep(conn: Connection, count: int = 1) -> list[ManualWorker]:
    """Return workers that found nothing."""
    await set_wakeup_interval(conn, "1 hour")
    workers = [ManualWorker(conn, name=f"sleeper {number}") for number in range(count)]
    for worker in workers:
        assert await worker.claim_tasks(5) == []
    return workers


@pytest.mark.parametrize("alone", [True, False])
async def test_many_submits_notify_once(
    conn: Connection, second: Connection, wakeups: WakeupListener, alone: bool
) -> None:
    await put_to_sleep(conn, 3)
    submit = jobs.submit_standalone if alone else jobs.submit
    await submit(second, {"type": "t", "queue": QUEUE})
    await conn.execute(
        "update holdfast.workers set woken_at = woken_at + interval '40 ms' where woken_at is not null"
    )
    await conn.execute("update holdfast.workers set woken_at = least(woken_at, clock_timestamp())")
    await submit(second, {"type": "t", "queue": QUEUE})
    assert len(await wakeups.received()) == 1
    await forget_wakeups(conn)
    await submit(second, {"type": "t", "queue": QUEUE})
    assert len(await wakeups.received()) == 1


async def test_a_transaction_that_relies_on_another_one_waits_for_its_end(
    db: Database, conn: Connection, wakeups: WakeupListener
) -> None:
    """The first transaction has notified and fails at its end. So the second one notifies."""
    await put_to_sleep(conn)
    async with db.connection() as first, db.connection() as other:
        transaction = first.transaction()
        await transaction.start()
        await submit_job(first)
        await first.execute("set constraints all immediate")  # as far as a commit that fails at its end
        following = asyncio.create_task(submit_job(other))
        await asyncio.sleep(0.002)
        await transaction.rollback()
        await following
    assert await wakeups.received() == [QUEUE]


async def test_an_open_transaction_does_not_stop_submits(
    db: Database, conn: Connection, wakeups: WakeupListener
) -> None:
    await put_to_sleep(conn)
    async with db.connection() as first, db.connection() as other, first.transaction():
        await submit_job(first)
        await first.execute("set constraints all immediate")
        async with asyncio.timeout(10):
            await submit_job(other)
        assert await wakeups.received() == [""]


async def test_a_worker_that_fills_its_slots_wakes_the_next(
    conn: Connection, second: Connection, wakeups: WakeupListener
) -> None:
    first, *_ = await put_to_sleep(conn, 2)
    for _ in range(3):
        await submit_job(second)
    assert await wakeups.received() == [QUEUE]
    await conn.execute(
        "update holdfast.workers set woken_at = case when name = $1 then clock_timestamp() end", first.name
    )
    await first.claim_one_task()
    assert await wakeups.received() == [QUEUE], "the other one is told, although the interval has not passed"
    await forget_wakeups(conn)
    await first.claim_tasks(5)
    assert await wakeups.received() == [], "a worker with free slots asks by itself"


@pytest.mark.parametrize(
    "change",
    [
        "seen_at = seen_at - interval '2 minutes'",
        "report = '{\"listening\": false}'",
        "sleeping = false",
        "types = '{other}'",
        "queues = '{other}'",
    ],
)
async def test_workers_that_cannot_hear_or_help_are_not_notified(
    conn: Connection, second: Connection, wakeups: WakeupListener, change: str
) -> None:
    await put_to_sleep(conn)
    await conn.execute(f"update holdfast.workers set {change}")
    await submit_job(second)
    await jobs.submit_standalone(second, {"type": "t", "queue": QUEUE})
    assert await wakeups.received() == []


async def test_a_clock_that_was_set_back_suppresses_nothing(
    conn: Connection, second: Connection, wakeups: WakeupListener
) -> None:
    await put_to_sleep(conn)
    await conn.execute("update holdfast.workers set woken_at = clock_timestamp() + interval '1 hour'")
    await submit_job(second)
    assert await wakeups.received() == [QUEUE]


async def test_one_job_wakes_few_of_many_workers(conn: Connection, second: Connection) -> None:
    await put_to_sleep(conn, 60)
    notifications: list[Wakeup | None] = []
    await conn.add_listener(
        "holdfast", lambda *response: notifications.append(parse_wakeup(str(response[-1])))
    )
    await submit_job(second)
    await jobs.submit_many(second, [{"type": "t", "queue": "unheard"}])
    await forget_wakeups(conn)
    await jobs.submit_many(second, [{"type": "t", "queue": QUEUE}] * 500)
    await conn.execute("select 1")
    one, many = notifications
    assert one is not None
    assert many is not None
    assert one.share == pytest.approx(3 / 60)
    assert many.share == pytest.approx(53 / 60)
    assert one.is_for(str(one.worker), [QUEUE], lambda: 0.99)
    assert not one.is_for("another", [QUEUE], lambda: 0.06)
    assert one.is_for("another", [QUEUE], lambda: 0.04)
    assert not one.is_for(str(one.worker), ["other"], lambda: 0)


async def test_a_lost_worker_that_was_notified_wakes_the_others(
    conn: Connection, second: Connection, wakeups: WakeupListener
) -> None:
    first, *_ = await put_to_sleep(conn, 2)
    await submit_job(second)
    assert await wakeups.received() == [QUEUE]
    await conn.execute("select holdfast.mark_worker_lost($1)", first.name)
    assert await wakeups.received() == [""]
