"""Lost leases: who is charged, where the task goes, and how often it may be lost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from manual_worker import ManualWorker, read_task_row, submit_graph, submit_job

from holdfast.engine import leases
from holdfast.engine.connection import Connection
from holdfast.formatting import describe_wait_reason
from holdfast.testing import Clock

LEASE = timedelta(seconds=61)  # longer than the default lease
MAX_PROMPT_RETURNS = 9
MAX_LOSSES = 50


async def lose_lease(conn: Connection, clock: Clock, worker: ManualWorker) -> None:
    """Claim one task and let its lease expire."""
    await worker.claim_one_task()
    await clock.advance(LEASE)
    assert await conn.fetchval("select holdfast.reclaim_stale_tasks()") == 1


async def read_outcomes(conn: Connection, task_id: UUID) -> list[str]:
    rows = await conn.fetch(
        "select outcome from holdfast.attempts where task_id = $1 order by attempt", task_id
    )
    return [row["outcome"] for row in rows]


async def test_an_expired_lease_is_not_charged(conn: Connection, clock: Clock) -> None:
    task_id = await submit_job(conn, attempts=1, crashes=1)
    worker = ManualWorker(conn)
    for losses in range(1, MAX_PROMPT_RETURNS + 1):
        await lose_lease(conn, clock, worker)
        row = await read_task_row(conn, task_id)
        assert (row["status"], row["failures"], row["crashes"], row["losses"]) == ("ready", 0, 0, losses)
    assert await worker.finish_task(await worker.claim_one_task()) == "ok"
    assert await read_outcomes(conn, task_id) == ["lost"] * MAX_PROMPT_RETURNS


async def test_a_clock_jump_of_the_server_is_not_charged(conn: Connection, clock: Clock) -> None:
    created = [await submit_job(conn, attempts=1, crashes=1) for _ in range(3)]
    worker = ManualWorker(conn)
    await worker.claim_tasks(3)
    await clock.advance(timedelta(seconds=500))  # less than the time limit of an attempt
    assert len(await worker.claim_tasks(3)) == 3
    for task_id in created:
        row = await read_task_row(conn, task_id)
        assert (row["failures"], row["crashes"], row["losses"]) == (0, 0, 1)


async def test_an_attempt_that_was_renewed_up_to_its_time_limit_has_failed(
    conn: Connection, clock: Clock
) -> None:
    task_id = await submit_job(conn, timeout_s=70)
    held = [await ManualWorker(conn).claim_one_task()]
    for _ in range(2):
        await clock.advance(timedelta(seconds=30))
        await leases.heartbeat_tasks(conn, worker="hand", held=held)
    await clock.advance(LEASE)
    await conn.fetchval("select holdfast.reclaim_stale_tasks()")
    row = await read_task_row(conn, task_id)
    assert (row["status"], row["failures"], row["losses"]) == ("scheduled", 1, None)


async def test_a_lost_attempt_is_not_charged_for_a_time_limit_shorter_than_its_lease(
    conn: Connection, clock: Clock
) -> None:
    task_id = await submit_job(conn, timeout_s=30)
    await lose_lease(conn, clock, ManualWorker(conn))
    row = await read_task_row(conn, task_id)
    assert (row["status"], row["failures"], row["losses"]) == ("ready", 0, 1)


async def test_the_tenth_loss_in_a_row_waits_at_the_back(conn: Connection, clock: Clock) -> None:
    task_id = await submit_job(conn, base_s=100, jitter=0)
    worker = ManualWorker(conn)
    for _ in range(MAX_PROMPT_RETURNS):
        await lose_lease(conn, clock, worker)
    behind = await submit_job(conn)
    await lose_lease(conn, clock, worker)
    row = await read_task_row(conn, task_id)
    assert row["status"] == "scheduled"
    assert row["due_at"] - await conn.fetchval("select holdfast.now()") > timedelta(seconds=90)
    assert (await worker.claim_one_task()).id == behind


async def test_a_task_that_is_lost_too_often_fails(conn: Connection, clock: Clock) -> None:
    task_id = await submit_job(conn, base_s=0)
    worker = ManualWorker(conn)
    for _ in range(MAX_LOSSES):
        await lose_lease(conn, clock, worker)
    row = await read_task_row(conn, task_id)
    assert (row["status"], row["failures"], row["crashes"]) == ("failed", 0, 0)
    assert "LostTooOften" in row["error"]
    assert "lost too often" in row["error"]


async def test_a_reported_outcome_ends_the_row_of_losses(conn: Connection, clock: Clock) -> None:
    task_id = await submit_job(conn, base_s=0)
    worker = ManualWorker(conn)
    for _ in range(3):
        await lose_lease(conn, clock, worker)
    await worker.finish_task(await worker.claim_one_task(), "fail", {"type": "E"})
    row = await read_task_row(conn, task_id)
    assert (row["failures"], row["losses"], row["suspect"]) == (1, None, None)


# Suspects: tasks that may have killed their worker run alone next time.


@pytest.mark.parametrize("suspect", [True, False])
async def test_a_lost_task_is_a_suspect_if_its_process_died(conn: Connection, suspect: bool) -> None:
    task_id = await submit_job(conn)
    worker = ManualWorker(conn)
    task = await worker.claim_one_task()
    assert not task.suspect
    assert await worker.finish_task(task, "lost", {"suspect": suspect, "message": "The worker died."}) == "ok"
    assert (await worker.claim_one_task()).suspect is suspect
    assert (await read_task_row(conn, task_id))["crashes"] == 0


async def test_a_task_is_a_suspect_from_its_second_loss_on(conn: Connection, clock: Clock) -> None:
    await submit_job(conn)
    worker = ManualWorker(conn)
    await lose_lease(conn, clock, worker)
    assert not (await worker.claim_one_task()).suspect
    await clock.advance(LEASE)
    await conn.fetchval("select holdfast.reclaim_stale_tasks()")
    assert (await worker.claim_one_task()).suspect


async def test_crashes_are_charged_up_to_the_budget(conn: Connection, clock: Clock) -> None:
    task_id = await submit_job(conn, crashes=2, base_s=0)
    worker = ManualWorker(conn)
    await worker.finish_task(await worker.claim_one_task(), "crash", {"type": "ProcessDied"})
    task = await worker.claim_one_task()
    assert task.suspect
    await worker.finish_task(task, "crash", {"type": "ProcessDied"})
    assert (await read_task_row(conn, task_id))["status"] == "failed"
    assert await read_outcomes(conn, task_id) == ["crashed", "crashed"]


# Where a lost task goes


@pytest.mark.parametrize("kind", ["lost", "release"])
@pytest.mark.parametrize("job", [{}, {"limit_key": "k"}], ids=["plain lane", "rotating lane"])
async def test_a_returned_task_is_claimed_before_the_rest_of_its_lane(
    conn: Connection, kind: Any, job: dict[str, Any]
) -> None:
    created = [await submit_job(conn, **job) for _ in range(6)]
    worker = ManualWorker(conn)
    first, second = await worker.claim_tasks(2)
    await worker.finish_task(second, kind)
    await worker.finish_task(first, kind)
    claimed = [(await worker.claim_one_task()).id for _ in range(3)]
    assert claimed == [second.id, first.id, created[2]]


async def test_a_returned_task_keeps_its_priority(conn: Connection) -> None:
    task_id = await submit_job(conn, priority=7)
    worker = ManualWorker(conn)
    await worker.finish_task(await worker.claim_one_task(), "lost")
    assert (await read_task_row(conn, task_id))["priority"] == 7
    await worker.finish_task(await worker.claim_one_task())
    assert await conn.fetchval("select priority from holdfast.history where id = $1", task_id) == 7


async def test_a_failed_task_goes_back_to_its_own_lane(conn: Connection) -> None:
    """Otherwise a task that fails again and again would run before all others for ever."""
    task_id = await submit_job(conn, base_s=0)
    worker = ManualWorker(conn)
    await worker.finish_task(await worker.claim_one_task(), "lost")
    await worker.finish_task(await worker.claim_one_task(), "fail", {"type": "E"})
    other = await submit_job(conn)
    assert await conn.fetchval("select count(distinct lane_id) from holdfast.tasks") <= 2
    returned = (
        "select l.returned from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id where t.id = $1"
    )
    assert [await conn.fetchval(returned, each) for each in (task_id, other)] == [False, False]


async def test_a_returned_task_counts_against_the_limit_of_its_key(conn: Connection) -> None:
    await conn.execute("select holdfast.put_limit('one', p_max_running => 1, p_per_key => true)")
    for _ in range(3):
        await submit_job(conn, limit_key="k")
    worker = ManualWorker(conn)
    (task,) = await worker.claim_tasks(3)
    await worker.finish_task(task, "lost")
    (again,) = await worker.claim_tasks(3)
    assert again.id == task.id
    assert await worker.claim_tasks(3) == []
    await worker.finish_task(again)
    assert len(await worker.claim_tasks(3)) == 1


async def test_a_returned_task_of_a_graph_is_first_too(conn: Connection, clock: Clock) -> None:
    result = await submit_graph(conn, {"name": "a"})
    await submit_job(conn)
    worker = ManualWorker(conn)
    task = await worker.claim_one_task()
    assert result.tasks is not None
    assert task.id == result.tasks["a"]
    await clock.advance(LEASE)
    await conn.fetchval("select holdfast.reclaim_stale_tasks()")
    assert (await worker.claim_one_task()).id == task.id


# What operators see


async def test_the_explanation_says_which_deaths_were_charged(conn: Connection) -> None:
    task_id = await submit_job(conn, base_s=0)
    worker = ManualWorker(conn)
    assert not await explain_deaths(conn, task_id)
    await worker.finish_task(await worker.claim_one_task(), "crash", {"message": "Killed by SIGSEGV."})
    await worker.finish_task(await worker.claim_one_task(), "lost", {"message": "The worker died."})
    (reason,) = await explain_deaths(conn, task_id)
    assert (reason["crashes"], reason["max_crashes"], reason["losses"], reason["suspect"]) == (1, 3, 1, True)
    assert str(describe_wait_reason(reason)) == (
        "Its process died 1 of at most 3 times while only this task ran in it, which is charged to the task. "
        "Lost 1 time in a row, which is not charged to the task. The last time: The worker died. "
        "The task runs alone in a child process."
    )


async def explain_deaths(conn: Connection, task_id: UUID) -> list[dict[str, Any]]:
    explanation = msgspec.json.decode(await conn.fetchval("select holdfast.explain_task($1)", task_id))
    return [reason for reason in explanation["reasons"] if reason["reason"] == "deaths"]
