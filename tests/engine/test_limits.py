"""Limits: exact at every moment, however tasks are claimed, end, crash or limits change."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest
from manual_worker import ManualWorker, expect_error, submit_job

from holdfast.engine import jobs
from holdfast.engine.connection import Connection
from holdfast.settings import Secret
from holdfast.testing import Clock


async def put_limit(conn: Connection, name: str, **rule: Any) -> None:
    text = ", ".join(f"p_{key} => {value!r}" for key, value in rule.items())
    await conn.execute(f"select holdfast.put_limit('{name}', {text})")


async def check_limit_counts(conn: Connection) -> None:
    assert not await conn.fetch("select * from holdfast.list_limit_counters() where running <> leases")


async def test_names_that_do_not_exist_are_accepted_with_a_notice(conn: Connection) -> None:
    notices: list[str] = []
    conn.add_log_listener(lambda _, message: notices.append(str(message)))
    await put_limit(conn, "early", queue="nosuch", type="nosuch_task", max_running=2)
    await conn.execute("select holdfast.pause_queue('nosuch_either')")
    assert [
        name for name in ("nosuch", "nosuch_task", "nosuch_either") if f'"{name}"' not in str(notices)
    ] == []
    assert len(notices) == 3
    await put_limit(conn, "early", queue="nosuch", type="nosuch_task", max_running=3)
    await submit_job(conn)
    await put_limit(conn, "known", queue="q", type="t", max_running=3)
    await conn.execute("select holdfast.pause_queue('q')")
    assert len(notices) == 3


async def test_a_limit_bounds_the_number_of_running_tasks(conn: Connection) -> None:
    await put_limit(conn, "two", queue="q", max_running=2)
    for _ in range(5):
        await submit_job(conn)
    manual_worker = ManualWorker(conn)
    first, second = await manual_worker.claim_tasks(9)
    assert await manual_worker.claim_tasks(9) == []
    assert manual_worker.next_s is not None
    assert manual_worker.next_s <= 1
    await manual_worker.finish_task(first)
    assert len(await manual_worker.claim_tasks(9)) == 1
    await manual_worker.finish_task(second, "fail", {"message": "x"})
    assert len(await manual_worker.claim_tasks(9)) == 1
    await check_limit_counts(conn)


async def test_per_key_and_for_all_at_the_same_time(conn: Connection) -> None:
    await put_limit(conn, "all", queue="q", max_running=5)
    await put_limit(conn, "each", queue="q", per_key=True, max_running=2)
    for key in ("a", "b", "c"):
        for _ in range(4):
            await submit_job(conn, limit_key=key)
    tasks = await ManualWorker(conn).claim_tasks(50)
    rows = await conn.fetch(
        "select l.limit_key, count(*) as n from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id "
        "where t.status = 'running' group by 1"
    )
    assert len(tasks) == 5
    assert sorted(row["n"] for row in rows) == [1, 2, 2]
    await check_limit_counts(conn)


async def test_keys_take_turns(conn: Connection) -> None:
    await put_limit(conn, "each", queue="q", per_key=True, max_running=1)
    for _ in range(6):
        await submit_job(conn, limit_key="greedy")
    for _ in range(3):
        await submit_job(conn, limit_key="modest")
    manual_worker = ManualWorker(conn)
    order: list[int] = []
    for _ in range(6):
        (task,) = await manual_worker.claim_tasks(1)
        order.append(await conn.fetchval("select lane_id from holdfast.tasks where id = $1", task.id))
        await manual_worker.finish_task(task)
    assert order[0] != order[1]
    assert order[:2] * 3 == order


async def test_a_rate_lets_a_burst_through_and_then_one_at_a_time(conn: Connection, clock: Clock) -> None:
    await put_limit(conn, "slow", queue="q", rate=0.5, burst=3.0)
    for _ in range(9):
        await submit_job(conn)
    manual_worker = ManualWorker(conn)
    assert len(await manual_worker.claim_tasks(9)) == 3
    assert await manual_worker.claim_tasks(9) == []
    await clock.advance(timedelta(seconds=2.1))
    assert len(await manual_worker.claim_tasks(9)) == 1
    await clock.advance(timedelta(minutes=5))
    assert len(await manual_worker.claim_tasks(9)) == 3


async def test_a_rate_limited_key_is_paused_for_every_worker(conn: Connection, clock: Clock) -> None:
    await put_limit(conn, "each", queue="q", per_key=True, max_running=9)
    for _ in range(2):
        await submit_job(conn, limit_key="a")
    manual_worker = ManualWorker(conn)
    first = await manual_worker.claim_one_task()
    await submit_job(conn, limit_key="b")
    await manual_worker.finish_task(first, "limited", {"key": "a", "retry_after_s": 30})
    (other,) = await ManualWorker(conn, "other").claim_tasks(9)
    assert await conn.fetchval("select limit_key from holdfast.all_tasks where id = $1", other.id) == "b"
    blocked = await conn.fetchval("select id from holdfast.tasks where status = 'ready'")
    why = msgspec.json.decode(await conn.fetchval("select holdfast.explain_task($1)", blocked))
    assert why["reasons"][0]["reason"] == "asleep"
    await clock.advance(timedelta(seconds=31))
    assert len(await manual_worker.claim_tasks(9)) == 2


async def test_changed_limits_count_running_tasks(conn: Connection) -> None:
    for _ in range(6):
        await submit_job(conn)
    manual_worker = ManualWorker(conn)
    running = await manual_worker.claim_tasks(3)
    await put_limit(conn, "late", queue="q", max_running=4)
    await check_limit_counts(conn)
    assert len(await manual_worker.claim_tasks(9)) == 1
    await put_limit(conn, "late", queue="q", max_running=1)
    for task in running:
        await manual_worker.finish_task(task)
    assert await manual_worker.claim_tasks(9) == []
    assert await conn.fetchval("select holdfast.delete_limit('late')")
    assert len(await manual_worker.claim_tasks(9)) == 2
    await check_limit_counts(conn)


async def test_explain_names_who_holds_the_limit(conn: Connection) -> None:
    await put_limit(conn, "one", queue="q", max_running=1)
    first, second = await submit_job(conn), await submit_job(conn)
    await ManualWorker(conn).claim_tasks(9)
    response = msgspec.json.decode(await conn.fetchval("select holdfast.explain_task($1)", second))
    assert response["reasons"] == [
        {
            "reason": "limit",
            "limit": "one",
            "key": None,
            "running": 1,
            "max_running": 1,
            "held_by": [str(first)],
        }
    ]


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({}, "max_running"),
        ({"max_running": -1}, "max_running"),
        ({"max_running": 2_000_000}, "max_running"),
        ({"rate": 0.0}, "rate"),
        ({"rate": -1.0}, "rate"),
        ({"rate": 1e-300}, "rate"),  # the time to refill would overflow
        ({"rate": 1.0, "burst": 0.5}, "burst"),
        ({"rate": 1.0, "burst": 1e300}, "burst"),
        ({"max_running": 1, "type": "x" * 900_000}, "type"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_limits_out_of_range_are_refused(conn: Connection, rule: dict[str, Any], field: str) -> None:
    with expect_error("HF004", field):
        await put_limit(conn, "x", queue="q", **rule)


async def test_a_limit_that_cannot_lock_all_leases_gives_up_and_delays_nobody(
    conn: Connection, second: Connection
) -> None:
    """A transaction that holds a lease for long, as `assert_lease` allows, must not stop all claims."""
    for _ in range(2):
        await submit_job(conn)
    worker = ManualWorker(conn)
    held = await worker.claim_one_task()
    await second.execute("begin")
    await second.execute("select holdfast.assert_lease($1, $2, $3)", held.id, held.attempt, held.nonce)
    with pytest.raises(asyncpg.LockNotAvailableError, match="locked a running task"):
        await put_limit(conn, "late", queue="q", max_running=1)
    other = await worker.claim_one_task()
    await worker.finish_task(other)
    await second.execute("rollback")
    await put_limit(conn, "late", queue="q", max_running=1)
    await check_limit_counts(conn)


async def test_nothing_is_claimed_while_leases_are_counted_again(
    conn: Connection, second: Connection
) -> None:
    await submit_job(conn)
    await second.execute("begin")
    await put_limit(second, "new", queue="q", max_running=1)
    assert await ManualWorker(conn).claim_tasks(1) == []
    await second.execute("commit")
    assert len(await ManualWorker(conn).claim_tasks(1)) == 1
    await check_limit_counts(conn)


@pytest.mark.parametrize("limit", [1, 3])
async def test_a_storm_never_exceeds_the_limit(conn: Connection, url: Secret, limit: int) -> None:
    """Claims, all outcomes, cancels, lost leases and ticks at once, while a watcher counts leases."""
    await put_limit(conn, "all", queue="q", max_running=limit * 3)
    await put_limit(conn, "each", queue="q", per_key=True, max_running=limit)
    await jobs.submit_many(
        conn,
        [
            {"type": "t", "queue": "q", "limit_key": f"k{n % 5}", "base_s": 0, "lease_s": 0.5}
            for n in range(300)
        ],
    )
    done = asyncio.Event()

    async def work(number: int) -> None:
        chance = random.Random(number)
        own = await asyncpg.connect(url.reveal())
        manual_worker = ManualWorker(own, f"w{number}")
        idle = 0
        while idle < 20:
            tasks = await manual_worker.claim_tasks(4)
            idle = 0 if tasks else idle + 1
            for task in tasks:
                what = chance.choice(
                    ["succeed", "succeed", "reject", "release", "cancel", "cancelled", "die", "tick"]
                )
                if what == "cancelled":
                    await jobs.cancel_job(own, task.id)
                elif what == "tick":
                    await own.execute("select holdfast.tick(50)")
                elif what != "die":
                    await manual_worker.finish_task(task, what, {"message": "x"})  # type: ignore[arg-type]
        await own.close()

    async def watch() -> int:
        own = await asyncpg.connect(url.reveal())
        looks = 0
        while not done.is_set():
            rows = await own.fetch(
                "select l.limit_key, count(*) as n from holdfast.tasks t "
                "join holdfast.lanes l on l.id = t.lane_id where t.status = 'running' group by 1"
            )
            assert all(row["n"] <= limit for row in rows)
            assert sum(row["n"] for row in rows) <= limit * 3
            assert not await own.fetch("select * from holdfast.list_limit_counters() where running <> leases")
            looks += 1
        await own.close()
        return looks

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(work(n) for n in range(6)))
    done.set()
    assert await watching > 5
    await check_limit_counts(conn)


async def test_limits_that_change_during_a_storm_lose_no_count(conn: Connection, url: Secret) -> None:
    """Rules appear and disappear while tasks are claimed and end. Counters and leases stay equal."""
    await jobs.submit_many(conn, [{"type": "t", "queue": "q", "limit_key": f"k{n % 3}"} for n in range(400)])
    left = 4

    async def work(number: int) -> None:
        nonlocal left
        own = await asyncpg.connect(url.reveal())
        manual_worker = ManualWorker(own, f"w{number}")
        # A claim returns nothing while limits change, so only an empty table ends the work.
        while await own.fetchval("select exists (select from holdfast.tasks)"):
            for task in await manual_worker.claim_tasks(3):
                assert await manual_worker.finish_task(task, "succeed") == "ok"
        await own.close()
        left -= 1

    async def change_limits() -> int:
        changes = 0
        while left:
            await put_limit(conn, "all", queue="q", max_running=5)
            await check_limit_counts(conn)
            await put_limit(conn, "all", queue="q", max_running=2, per_key=True)
            await check_limit_counts(conn)
            assert await conn.fetchval("select holdfast.delete_limit('all')")
            changes += 1
        return changes

    changing = asyncio.create_task(change_limits())
    await asyncio.gather(*(work(n) for n in range(4)))
    assert await changing > 1
    assert await conn.fetchval("select count(*) from holdfast.history") == 400
    await check_limit_counts(conn)
