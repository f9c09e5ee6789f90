"""Claim: order, no task leased twice, no task hidden."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest
from manual_worker import QUEUE, ManualWorker, read_task_status, run_ticks, submit_job
from wakeup_listener import WakeupListener

from holdfast.engine import jobs
from holdfast.engine.connection import Connection
from holdfast.settings import Secret
from holdfast.testing import Clock, wait_until


async def submit_numbered_jobs(conn: Connection, count: int, **job: Any) -> None:
    await jobs.submit_many(
        conn, [{"type": "t", "queue": QUEUE, "args": {"n": n}, **job} for n in range(count)]
    )


def get_job_numbers(tasks: Any) -> list[int]:
    return [task.args["n"] for task in tasks]


async def test_first_in_first_out_and_no_more_than_requested(conn: Connection) -> None:
    await submit_numbered_jobs(conn, 7)
    manual_worker = ManualWorker(conn)
    assert get_job_numbers(await manual_worker.claim_tasks(3)) == [0, 1, 2]
    assert get_job_numbers(await manual_worker.claim_tasks(3)) == [3, 4, 5]
    assert get_job_numbers(await manual_worker.claim_tasks(3)) == [6]
    assert await manual_worker.claim_tasks(3) == []
    assert manual_worker.next_s is not None  # the leases end


async def test_a_lease_has_a_rising_attempt_and_a_new_nonce(conn: Connection) -> None:
    await submit_job(conn)
    manual_worker = ManualWorker(conn)
    first = await manual_worker.claim_one_task()
    await manual_worker.finish_task(first, "release")
    second = await manual_worker.claim_one_task()
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.nonce != second.nonce
    assert second.lease_s == 60
    assert second.timeout_s == 600


async def test_a_higher_priority_comes_first_until_the_lower_has_aged(conn: Connection, clock: Clock) -> None:
    low = await submit_job(conn, priority=0)
    await clock.advance(timedelta(seconds=61))
    high = await submit_job(conn, priority=5)
    manual_worker = ManualWorker(conn)
    first = await manual_worker.claim_one_task()
    assert first.id == high
    await manual_worker.finish_task(first)
    await clock.advance(timedelta(minutes=6))
    late = await submit_job(conn, priority=5)
    assert [task.id for task in await manual_worker.claim_tasks(2)] == [low, late]


async def test_a_claim_returns_only_its_types_and_queues(conn: Connection) -> None:
    await submit_job(conn, type="a")
    await submit_job(conn, type="b")
    await submit_job(conn, type="a", queue="other")
    manual_worker = ManualWorker(conn)
    assert [t.type for t in await manual_worker.claim_tasks(9, types=["a", "c"])] == ["a"]
    assert await manual_worker.claim_tasks(9, types=[]) == []
    assert [t.type for t in await manual_worker.claim_tasks(9)] == ["b"]
    assert [t.queue for t in await ManualWorker(conn, queues=["other"]).claim_tasks(9)] == ["other"]


async def test_a_paused_queue_gives_no_tasks_until_it_is_resumed(conn: Connection) -> None:
    created = await submit_job(conn)
    await conn.execute("select holdfast.pause_queue($1, 'painting', 'ann')", QUEUE)
    manual_worker = ManualWorker(conn)
    assert await manual_worker.claim_tasks(5) == []
    why = msgspec.json.decode(await conn.fetchval("select holdfast.explain_task($1)", created))
    assert why["reasons"][0]["reason"] == "paused"
    assert why["reasons"][0]["by"] == "ann"
    assert await conn.fetchval("select holdfast.resume_queue($1)", QUEUE)
    assert (await manual_worker.claim_one_task()).id == created


async def test_ten_claimers_never_get_the_same_task(conn: Connection, url: Secret) -> None:
    await submit_numbered_jobs(conn, 1000)
    arguments: list[int] = []

    async def work(name: str) -> None:
        own = await asyncpg.connect(url.reveal())
        manual_worker = ManualWorker(own, name)
        while tasks := await manual_worker.claim_tasks(7):
            arguments.extend(get_job_numbers(tasks))
        await own.close()

    await asyncio.gather(*(work(f"w{n}") for n in range(10)))
    # What one claimer found locked by another is taken by that other, so all are given, each once.
    assert sorted(arguments) == list(range(1000))


async def test_a_commit_out_of_order_is_not_hidden_by_the_cursor(
    conn: Connection, second: Connection, clock: Clock
) -> None:
    """The early position commits late: after the cursor has seen, and claimed, everything above it."""
    manual_worker = ManualWorker(conn)
    await submit_numbered_jobs(conn, 3)
    assert len(await manual_worker.claim_tasks(9)) == 3
    transaction = second.transaction()
    await transaction.start()
    late = await submit_job(second)
    for _ in range(5):
        await submit_job(conn)
        assert len(await manual_worker.claim_tasks(9)) == 1
    await transaction.commit()
    assert [task.id for task in await manual_worker.claim_tasks(9)] == [late]


async def test_a_transaction_that_stays_open_does_not_hide_what_it_commits(
    conn: Connection, second: Connection, clock: Clock
) -> None:
    """The cursor goes on without it after a while, and looks back."""
    manual_worker = ManualWorker(conn)
    transaction = second.transaction()
    await transaction.start()
    late = await submit_job(second)
    for _ in range(5):
        await submit_job(conn)
        assert len(await manual_worker.claim_tasks(9)) == 1
        await clock.advance(timedelta(seconds=0.3))
    safe, *_ = next(iter(msgspec.json.decode(manual_worker.cursors or "{}").values()))
    assert safe > await second.fetchval("select pos from holdfast.tasks where id = $1", late)
    await transaction.commit()
    await clock.advance(timedelta(seconds=5.1))
    await submit_job(conn)
    assert late in {task.id for task in await manual_worker.claim_tasks(9)}


async def test_an_empty_lane_is_rescanned_at_once(conn: Connection, second: Connection, clock: Clock) -> None:
    manual_worker = ManualWorker(conn)
    await submit_job(conn)
    await manual_worker.claim_tasks(9)
    transaction = second.transaction()
    await transaction.start()
    late = await submit_job(second)
    for _ in range(4):
        assert await manual_worker.claim_tasks(9) == []
        await clock.advance(timedelta(seconds=0.3))
    await transaction.commit()
    assert [task.id for task in await manual_worker.claim_tasks(9)] == [late]


async def test_a_claim_that_is_rolled_back_hides_nothing(conn: Connection, second: Connection) -> None:
    await submit_numbered_jobs(conn, 4)
    thief = second.transaction()
    await thief.start()
    assert get_job_numbers(await ManualWorker(second, "thief").claim_tasks(2)) == [0, 1]
    manual_worker = ManualWorker(conn)
    assert get_job_numbers(await manual_worker.claim_tasks(1)) == [2]
    assert get_job_numbers(await manual_worker.claim_tasks(1)) == [3]
    for _ in range(3):
        assert await manual_worker.claim_tasks(1) == []
    await thief.rollback()
    assert get_job_numbers(await manual_worker.claim_tasks(9)) == [0, 1]


async def test_a_wrong_cursor_hides_no_task(conn: Connection, clock: Clock) -> None:
    """After a failover to a standby that lagged, positions start again below the cursors of the workers."""
    manual_worker = ManualWorker(conn)
    await submit_numbered_jobs(conn, 1)
    await manual_worker.claim_tasks(9)
    lane = await conn.fetchval("select id from holdfast.lanes")
    manual_worker.cursors = f'{{"{lane}": [900000, 900000, 1, 1.0, 900000, 99999999999, 0]}}'
    created = await submit_job(conn)
    assert [task.id for task in await manual_worker.claim_tasks(9)] == [created]
    await conn.execute("update holdfast.lanes set cursor = 900000")
    manual_worker.cursors = None
    created = await submit_job(conn)
    assert await manual_worker.claim_tasks(9) == []
    await run_ticks(conn)
    await clock.advance(timedelta(seconds=1))
    assert [task.id for task in await manual_worker.claim_tasks(9)] == [created]


async def test_the_stored_cursor_follows_far_behind(conn: Connection) -> None:
    await conn.execute("select setval('holdfast.task_positions', 50000)")
    manual_worker = ManualWorker(conn)

    async def stored() -> bool:
        await submit_numbered_jobs(conn, 2)
        await manual_worker.claim_tasks(9)
        return bool(await conn.fetchval("select max(cursor) > 50000 from holdfast.lanes"))

    await wait_until(stored)  # transactions of other databases on this server hold it back for a moment
    created = await submit_job(conn)
    assert [task.id for task in await ManualWorker(conn, "newcomer").claim_tasks(9)] == [created]


async def test_plain_claims_for_any_language(conn: Connection) -> None:
    created = await submit_job(conn, args={"a": 1})
    rows = await conn.fetch("select * from holdfast.claim_tasks('outsider', 5, array['t'])")
    assert [row["id"] for row in rows] == [created]
    assert rows[0]["job_id"] == created
    assert rows[0]["type"] == "t"
    assert rows[0]["args"] == '{"a": 1}'
    assert rows[0]["lease_s"] == 60
    lease = (created, rows[0]["attempt"], rows[0]["nonce"])
    assert await conn.fetchval(
        "select holdfast.heartbeat_task($1, $2, $3, 50, 'half')", *lease
    ) == pytest.approx(60, abs=1)
    await conn.execute("select holdfast.complete_task($1, $2, $3, '42')", *lease)
    await conn.execute("select holdfast.complete_task($1, $2, $3, '42')", *lease)  # the answer was lost
    assert await read_task_status(conn, created) == "succeeded"


async def test_only_sleeping_workers_are_notified(conn: Connection, wakeups: WakeupListener) -> None:
    await submit_job(conn)
    manual_worker = ManualWorker(conn)
    assert len(await manual_worker.claim_tasks(5)) == 1
    await submit_job(conn)
    await manual_worker.claim_tasks(5)
    assert await manual_worker.claim_tasks(5) == []  # now it sleeps
    await submit_job(conn, queue="elsewhere")
    await jobs.submit_many(conn, [{"type": "t", "queue": QUEUE}] * 3)
    assert await wakeups.received() == [QUEUE]


@pytest.mark.parametrize("start", [2**31 - 5, 2**53 - 5, 2**62])
async def test_high_sequence_numbers_work(conn: Connection, start: int) -> None:
    names = await conn.fetch("select sequencename from pg_sequences where schemaname = 'holdfast'")
    for row in names:
        if row["sequencename"] not in {"sweep_horizon_us", "last_full_sweep_us", "last_broadcast_us"}:
            await conn.execute(f"select setval('holdfast.{row['sequencename']}', $1)", start)
    manual_worker = ManualWorker(conn)
    for _ in range(3):
        await submit_numbered_jobs(conn, 6)
        assert get_job_numbers(await manual_worker.claim_tasks(20)) == list(range(6))
    created = await jobs.submit(
        conn,
        {
            "type": "g",
            "queue": QUEUE,
            "tasks": [{"type": "t", "name": "a"}, {"type": "t", "name": "b", "after": ["a"]}],
        },
    )
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    assert (await jobs.get_job(conn, created.id) or {})["status"] == "succeeded"
