"""Keys and owners take turns, paused keys wait, and empty lanes are removed."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from manual_worker import ManualWorker, build_outcome, run_ticks, submit_job

from holdfast.engine import explain, jobs, limits
from holdfast.engine.connection import Connection
from holdfast.settings import Secret
from holdfast.testing import Clock, wait_until

HOUR = timedelta(hours=1)


async def submit_jobs(conn: Connection, count: int, **job: Any) -> None:
    for start in range(0, count, 1000):
        page = [{"type": "t", "queue": "q", **job}] * min(1000, count - start)
        await jobs.submit_many(conn, page)


async def count_running_by(conn: Connection, field: str) -> Counter[str]:
    """How many run now, by key or by owner."""
    rows = await conn.fetch(
        f"select {field} as who, count(*) as n from holdfast.all_tasks where status = 'running' group by 1"
    )
    return Counter({str(row["who"]): row["n"] for row in rows})


async def test_an_owner_with_many_does_not_hold_up_one_with_few(conn: Connection) -> None:
    await limits.set_fair_queue(conn, "q")
    await submit_jobs(conn, 100_000, owner="big")
    await submit_job(conn, owner="small")
    manual_worker = ManualWorker(conn)
    first = await manual_worker.claim_tasks(10)
    assert await count_running_by(conn, "owner") == {"big": 9, "small": 1}
    await manual_worker.finish_and_claim([build_outcome(task) for task in first])
    # One that comes later is served by the next claim, whatever the others have waiting.
    await submit_job(conn, owner="late")
    await submit_jobs(conn, 5, owner="small")
    await manual_worker.claim_tasks(6)
    assert (
        await count_running_by(conn, "owner") == {"big": 2, "small": 3, "late": 1}
        or (await count_running_by(conn, "owner"))["late"] == 1
    )


async def test_without_fairness_the_oldest_come_first(conn: Connection) -> None:
    await submit_jobs(conn, 50, owner="big")
    await submit_job(conn, owner="small")
    await ManualWorker(conn).claim_tasks(10)
    assert await count_running_by(conn, "owner") == {"big": 10}


async def test_keys_take_turns_and_none_is_left_out(conn: Connection) -> None:
    for n, count in enumerate((5000, 300, 40, 3)):
        await submit_jobs(conn, count, limit_key=f"k{n}")
    await submit_jobs(conn, 100)  # without a key: one more party
    manual_worker = ManualWorker(conn)
    taken = Counter[str]()
    for _ in range(10):
        tasks = await manual_worker.claim_tasks(50)
        assert len(tasks) == 50
        for who, count in (await count_running_by(conn, "limit_key")).items():
            taken[who] += count
        await manual_worker.finish_and_claim([build_outcome(task) for task in tasks])
    assert taken["k3"] == 3
    assert taken["k2"] == 40
    assert taken["None"] >= 95
    assert taken["k1"] >= 130
    assert taken["k0"] >= 130


async def test_a_thousand_keys_are_all_served(conn: Connection) -> None:
    await jobs.submit_many(
        conn, [{"type": "t", "queue": "q", "limit_key": f"k{n % 1000}"} for n in range(3000)]
    )
    manual_worker = ManualWorker(conn)
    left = 3000
    while left:
        tasks = await manual_worker.claim_tasks(100)
        assert tasks
        left -= len(tasks)
        await manual_worker.finish_and_claim([build_outcome(task) for task in tasks])
    served = await conn.fetchval("select count(distinct served_at) from holdfast.lane_cursors")
    assert served >= 30


async def test_a_claim_looks_into_a_bounded_number_of_lanes(conn: Connection) -> None:
    """Work behind thousands of empty lanes is found in a few calls that say that there may be more."""
    await jobs.submit_many(conn, [{"type": "t", "queue": "q", "limit_key": f"k{n}"} for n in range(3000)])
    manual_worker = ManualWorker(conn)
    for _ in range(30):
        await manual_worker.finish_and_claim(
            [build_outcome(task) for task in await manual_worker.claim_tasks(100)]
        )
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 0
    for key in ("k7", "k1500", "k2999"):
        created = await submit_job(conn, limit_key=key)
        looks = 1
        while not (tasks := await manual_worker.claim_tasks(5)):
            assert manual_worker.next_s is not None
            assert manual_worker.next_s < 0.1
            looks += 1
        assert [task.id for task in tasks] == [created]
        assert looks <= 9
        await manual_worker.finish_and_claim([build_outcome(task) for task in tasks])
    # Whoever has no past, as a caller of the plain functions, looks into all of them at once.
    await submit_job(conn, limit_key="k2000")
    assert len(await conn.fetch("select * from holdfast.claim_tasks('plain', 5)")) == 1


async def test_plain_callers_are_fair_too(conn: Connection) -> None:
    await submit_jobs(conn, 300, limit_key="first")
    await submit_jobs(conn, 300, limit_key="second")
    for _ in range(60):
        await conn.execute("select from holdfast.claim_tasks('plain', 1)")
    taken = await count_running_by(conn, "limit_key")
    assert min(taken["first"], taken["second"]) >= 5, taken


async def test_priorities_still_count_and_waiting_still_helps(conn: Connection, clock: Clock) -> None:
    await submit_jobs(conn, 50, limit_key="a", priority=5)
    await submit_jobs(conn, 5, limit_key="b")
    manual_worker = ManualWorker(conn)
    first = await manual_worker.claim_tasks(10)
    assert await count_running_by(conn, "limit_key") == {"a": 10}
    await manual_worker.finish_and_claim([build_outcome(task) for task in first])
    await clock.advance(timedelta(minutes=6))
    await submit_jobs(conn, 1, limit_key="a", priority=5)
    await manual_worker.claim_tasks(2)  # both have waited
    await manual_worker.claim_tasks(10)
    assert (await count_running_by(conn, "limit_key"))["b"] == 5


async def test_limits_hold_while_keys_take_turns(url: Secret, conn: Connection) -> None:
    await limits.put_limit(conn, limits.LimitRule(name="each", queue="q", per_key=True, max_running=3))
    await limits.put_limit(conn, limits.LimitRule(name="all", queue="q", max_running=20))
    await limits.set_fair_queue(conn, "q")
    body = [{"type": "t", "queue": "q", "limit_key": f"k{n % 12}", "owner": f"o{n % 5}"} for n in range(1200)]
    await jobs.submit_many(conn, body)
    done = 0

    async def work(number: int) -> None:
        nonlocal done
        own = await asyncpg.connect(url.reveal())
        manual_worker = ManualWorker(own, f"w{number}")
        held: list[Any] = []
        while done < 1200:
            answer = await manual_worker.finish_and_claim([build_outcome(task) for task in held], slots=7)
            done += len(held)
            held = list(answer.tasks)
        await own.close()

    async def watch() -> None:
        while done < 1200:
            running = await conn.fetch(
                "select l.limit_key, count(*) as n from holdfast.tasks t "
                "join holdfast.lanes l on l.id = t.lane_id where t.status = 'running' group by 1"
            )
            assert all(row["n"] <= 3 for row in running)
            assert sum(row["n"] for row in running) <= 20
            await asyncio.sleep(0)

    await asyncio.gather(watch(), *(work(n) for n in range(4)))
    assert not await conn.fetch("select * from holdfast.list_limit_counters() where running <> leases")
    assert await conn.fetchval("select count(*) from holdfast.history") == 1200


async def test_another_key_can_be_paused(conn: Connection, clock: Clock) -> None:
    await submit_job(conn)
    manual_worker = ManualWorker(conn)
    task = await manual_worker.claim_one_task()
    await submit_job(conn, limit_key="example.org")
    waiting = await submit_job(conn, limit_key="example.org")
    await submit_job(conn, limit_key="example.com")
    await manual_worker.finish_task(task, "limited", {"key": "example.org", "retry_after_s": 60})
    (other,) = await manual_worker.claim_tasks(9)  # example.com
    await manual_worker.finish_task(other)
    assert await manual_worker.claim_tasks(9) == []
    assert manual_worker.next_s is not None
    assert 0 < manual_worker.next_s <= 60
    reasons = (await explain.explain_task(conn, waiting))["reasons"]
    assert ("asleep", "example.org") in {(reason["reason"], reason.get("key")) for reason in reasons}
    await clock.advance(timedelta(seconds=61))
    assert len(await manual_worker.claim_tasks(9)) == 3  # and the one that met the limit
    await clock.advance(HOUR)
    await run_ticks(conn)


@pytest.mark.parametrize("shared", [{"limit_key": "k"}, {"owner": "ada"}])
async def test_empty_lanes_go_and_their_counters_too(
    conn: Connection, clock: Clock, shared: dict[str, str]
) -> None:
    await limits.set_fair_queue(conn, "q")
    await limits.put_limit(conn, limits.LimitRule(name="each", queue="q", per_key=True, max_running=3))
    await submit_job(conn, **shared)
    await submit_job(conn, limit_key="kept", delay_s=100_000)
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    lanes = "select count(*) from holdfast.lanes where limit_key is distinct from 'kept'"
    assert await conn.fetchval(lanes) == 1
    await clock.advance(2 * HOUR)
    await run_ticks(conn)
    assert await conn.fetchval(lanes + " and closed_at is not null") == 1

    async def gone(what: str) -> bool:  # a transaction of another test on the same server delays it
        await clock.advance(HOUR)
        await run_ticks(conn)
        return bool(await conn.fetchval(what) == 0)

    await wait_until(lambda: gone(lanes))
    assert await conn.fetchval("select count(*) from holdfast.lanes") == 1
    await wait_until(lambda: gone("select count(*) from holdfast.limit_counters where key = 'k'"))
    await submit_job(conn, **shared)
    assert len(await manual_worker.claim_tasks(5)) == 1
    assert not await conn.fetch("select * from holdfast.list_limit_counters() where running <> leases")


async def test_a_submit_on_its_way_keeps_its_lane(conn: Connection, second: Connection, clock: Clock) -> None:
    await submit_job(conn, limit_key="k")
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    await clock.advance(2 * HOUR)
    on_its_way = second.transaction()
    await on_its_way.start()
    task = await submit_job(second, limit_key="k")
    for _ in range(4):  # closes the lane, and cannot delete it while the transaction is open
        await run_ticks(conn)
        await clock.advance(HOUR)
    assert await conn.fetchval("select closed_at is not null from holdfast.lanes") is True
    await on_its_way.commit()
    assert [t.id for t in await manual_worker.claim_tasks(5)] == [task]

    async def is_open_again() -> bool:
        # Not at once: a transaction of another database of the server may be older.
        await clock.advance(timedelta(minutes=11))
        await run_ticks(conn)
        return await conn.fetchval("select closed_at from holdfast.lanes") is None

    await wait_until(is_open_again, what="the lane is open again")


async def test_an_old_snapshot_that_shows_a_deleted_lane(
    conn: Connection, second: Connection, clock: Clock
) -> None:
    await submit_job(conn, limit_key="k")
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    old = second.transaction(isolation="repeatable_read")
    await old.start()
    await second.fetchval("select count(*) from holdfast.lanes")

    async def gone() -> bool:
        await clock.advance(2 * HOUR)
        await run_ticks(conn)
        return not await conn.fetchval("select count(*) from holdfast.lanes")

    await wait_until(gone)
    with pytest.raises(asyncpg.SerializationError):
        await submit_job(second, limit_key="k")
    await old.rollback()
    await submit_job(second, limit_key="k")
    assert len(await manual_worker.claim_tasks(5)) == 1
