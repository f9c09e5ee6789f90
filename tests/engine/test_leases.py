"""Leases: renewal, loss, fences, and every pair of operations on one task, step by step."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from manual_worker import (
    QUEUE,
    ManualWorker,
    build_outcome,
    expect_error,
    read_task_row,
    read_task_status,
    submit_job,
    wait_until_blocked_or_done,
)

from holdfast.engine import jobs, leases
from holdfast.engine.connection import Connection
from holdfast.engine.leases import LeasedTask
from holdfast.model import Progress
from holdfast.settings import Secret
from holdfast.testing import Clock

LEASE_DURATION = timedelta(seconds=61)


async def read_lease_end(conn: Connection, task_id: UUID) -> Any:
    return (await read_task_row(conn, task_id))["lease_until"]


async def test_a_heartbeat_extends_every_lease_of_the_worker(conn: Connection, clock: Clock) -> None:
    created = [await submit_job(conn) for _ in range(3)]
    held = await ManualWorker(conn).claim_tasks(3)
    before = [await read_lease_end(conn, each) for each in created]
    await clock.advance(timedelta(seconds=30))
    assert await leases.heartbeat_tasks(conn, worker="hand", held=held) == leases.HeartbeatResponse()
    after = [await read_lease_end(conn, each) for each in created]
    assert all(
        timedelta(seconds=29) < b - a < timedelta(seconds=33) for a, b in zip(before, after, strict=True)
    )


async def test_a_lease_never_outlives_the_time_limit_of_its_attempt(conn: Connection, clock: Clock) -> None:
    created = await submit_job(conn, timeout_s=70)
    held = await ManualWorker(conn).claim_tasks(1)
    started = (await read_task_row(conn, created))["started_at"]
    for _ in range(3):
        await clock.advance(timedelta(seconds=30))
        await leases.heartbeat_tasks(conn, worker="hand", held=held)
    assert await read_lease_end(conn, created) <= started + timedelta(seconds=75)
    assert await conn.fetchval("select holdfast.reclaim_stale_tasks()") == 1
    row = await read_task_row(conn, created)
    assert (row["status"], row["failures"], row["crashes"]) == ("scheduled", 1, 0)
    assert await conn.fetchval("select error_type from holdfast.attempts") == "TimedOut"


async def test_a_lost_lease_is_reclaimed_by_the_next_claim_and_its_holder_learns_it(
    conn: Connection, clock: Clock
) -> None:
    created = await submit_job(conn, base_s=0)
    manual_worker = ManualWorker(conn)
    zombie = await manual_worker.claim_one_task()
    assert await manual_worker.claim_tasks(1) == []
    assert manual_worker.next_s is not None
    assert 58 < manual_worker.next_s <= 60
    await clock.advance(LEASE_DURATION)
    heir = await ManualWorker(conn, "heir").claim_one_task()
    assert heir.id == created
    assert heir.attempt == zombie.attempt + 1
    assert (await leases.heartbeat_tasks(conn, worker="hand", held=[zombie])).lost == {zombie.lease}
    assert (await leases.heartbeat_tasks(conn, worker="heir", held=[heir])).lost == frozenset()


async def test_a_live_lease_is_not_taken(conn: Connection, clock: Clock) -> None:
    await submit_job(conn)
    held = await ManualWorker(conn).claim_tasks(1)
    for _ in range(5):
        await clock.advance(timedelta(seconds=40))
        await leases.heartbeat_tasks(conn, worker="hand", held=held)
        assert await conn.fetchval("select holdfast.reclaim_stale_tasks()") == 0
        assert await ManualWorker(conn, "other").claim_tasks(1) == []


def _build_writes(task: LeasedTask, conn: Connection) -> dict[str, Callable[[], Awaitable[Any]]]:
    lease = (task.id, task.attempt, task.nonce)
    calls = {
        "heartbeat": "select holdfast.heartbeat_task($1, $2, $3)",
        "complete": "select holdfast.complete_task($1, $2, $3, '1')",
        "fail": "select holdfast.fail_task($1, $2, $3, 'x')",
        "snooze": "select holdfast.snooze_task($1, $2, $3, 1)",
        "release": "select holdfast.release_task($1, $2, $3)",
        "progress": "select holdfast.progress($1, $2, $3, 50)",
        "save step": "select holdfast.save_step_result($1, $2, $3, 's', '1')",
        "get steps": "select holdfast.get_step_results($1, $2, $3)",
        "children": """select holdfast.add_tasks($1, $2, $3, '[{"type": "x", "name": "x"}]')""",
        "assert": "select holdfast.assert_lease($1, $2, $3)",
    }
    return {name: lambda sql=sql: conn.execute(sql, *lease) for name, sql in calls.items()}  # type: ignore[misc]


@pytest.mark.parametrize("loss", ["reclaimed", "running elsewhere", "cancelled", "ended", "rewound"])
async def test_no_write_of_a_stale_holder_is_accepted(conn: Connection, clock: Clock, loss: str) -> None:
    created = await submit_job(conn, base_s=0)
    zombie = await ManualWorker(conn).claim_one_task()
    if loss == "cancelled":
        await jobs.cancel_job(conn, created)
    elif loss == "rewound":  # a failover forgot the claim, and the next one gave out the same attempt
        await conn.execute("update holdfast.tasks set nonce = nonce # 1 where id = $1", created)
    else:
        await clock.advance(LEASE_DURATION)
        await conn.execute("select holdfast.reclaim_stale_tasks()")
    if loss in {"running elsewhere", "ended"}:
        heir = await ManualWorker(conn, "heir").claim_one_task()
        if loss == "ended":
            await ManualWorker(conn, "heir").finish_task(heir)
    before = await read_task_row(conn, created)
    for name, write in _build_writes(zombie, conn).items():
        with expect_error("HF001"):
            await write()
        assert await read_task_row(conn, created) == before, name
    assert await leases.save_progress(conn, [(zombie, Progress(percent=77))]) == ["stale"]
    response = await leases.heartbeat_tasks(
        conn, worker="hand", held=[zombie], progress={created: Progress(percent=77)}
    )
    assert response.lost == {zombie.lease}
    assert response.cancelled == ({zombie.lease} if loss == "cancelled" else frozenset())
    assert await read_task_row(conn, created) == before
    assert await conn.fetchval("select count(*) from holdfast.step_results") == 0


async def test_every_write_of_the_holder_is_accepted(conn: Connection) -> None:
    for name in _build_writes(LeasedTask(**dict.fromkeys(LeasedTask.__struct_fields__)), conn):  # type: ignore[arg-type]
        await submit_job(conn)
        task = await ManualWorker(conn).claim_one_task()
        await _build_writes(task, conn)[name]()


async def test_a_transaction_of_the_holder_keeps_the_lease(
    conn: Connection, second: Connection, clock: Clock
) -> None:
    """While it is open nobody can take the task, and the beats of the worker's other tasks do not wait."""
    created = await submit_job(conn)
    task = await ManualWorker(conn).claim_one_task()
    other_id = await submit_job(conn)
    other = await ManualWorker(conn).claim_one_task()
    transaction = second.transaction()
    await transaction.start()
    await leases.assert_lease(second, task)
    await clock.advance(timedelta(seconds=50))
    assert await leases.heartbeat_tasks(conn, worker="hand", held=[task, other]) == leases.HeartbeatResponse()
    await clock.advance(timedelta(seconds=20))
    assert await conn.fetchval("select holdfast.reclaim_stale_tasks()") == 0
    await leases.complete_task(second, task)
    await transaction.commit()
    assert await read_task_status(conn, created) == "succeeded"
    assert await read_task_status(conn, other_id) == "running"


async def test_a_lease_that_is_renewed_while_lost_ones_are_taken_away_stays(
    conn: Connection, second: Connection, clock: Clock
) -> None:
    """Which leases are lost is read first, and each is looked at again before it is taken."""
    lost, kept = await submit_job(conn), await submit_job(conn)
    await ManualWorker(conn, "dead").claim_one_task()
    await clock.advance(timedelta(seconds=1))
    alive = await ManualWorker(conn).claim_one_task()
    await clock.advance(LEASE_DURATION)
    async with second.transaction():
        await second.execute("lock table holdfast.attempts in share row exclusive mode")
        pid = conn.get_server_pid()
        reaping = asyncio.create_task(conn.fetchval("select holdfast.reclaim_stale_tasks()"))
        assert await wait_until_blocked_or_done(second, pid, reaping)  # by the attempt of the first
        assert await leases.heartbeat_tasks(second, worker="hand", held=[alive]) == leases.HeartbeatResponse()
    assert await reaping == 1
    assert await read_task_status(conn, lost) == "ready"
    assert await read_task_status(conn, kept) == "running"
    assert (await read_task_row(conn, kept))["crashes"] == 0


async def test_steps_are_kept_over_attempts_and_the_first_value_stays(conn: Connection) -> None:
    await submit_job(conn)
    manual_worker = ManualWorker(conn)
    first = await manual_worker.claim_one_task()
    assert await leases.get_step_results(conn, first) == {}
    assert await leases.save_step_result(conn, first, "a", b'{"x": 1}') == {"x": 1}
    await manual_worker.finish_task(first, "release")
    second = await manual_worker.claim_one_task()
    assert await leases.get_step_results(conn, second) == {"a": {"x": 1}}
    assert await leases.save_step_result(conn, second, "a", b"2") == {"x": 1}


# Every pair of operations on one task: the first one is held open, the second starts, then the first ends.
# Whatever the order, the row has one state, the history at most one row, and every counter counts the leases.

LeaseOperation = Callable[[Connection, LeasedTask], Awaitable[object]]


async def _beat(conn: Connection, task: LeasedTask) -> object:
    return await leases.heartbeat_tasks(
        conn, worker="pair", held=[task], progress={task.id: Progress(percent=10)}
    )


def _finish(kind: Any) -> LeaseOperation:
    async def finish(conn: Connection, task: LeasedTask) -> object:
        manual_worker = ManualWorker(conn, "pair", queues=[])
        return list(
            (
                await manual_worker.finish_and_claim(
                    [build_outcome(task, kind, {"message": "x", "delay_s": 5})]
                )
            ).answers
        )

    return finish


async def _cancel(conn: Connection, task: LeasedTask) -> object:
    return (await jobs.cancel_job(conn, task.job_id or task.id))["cancelled"]


async def _reclaim(conn: Connection, _: LeasedTask) -> object:
    return await conn.fetchval("select holdfast.reclaim_stale_tasks()")


async def _claim(conn: Connection, _: LeasedTask) -> object:
    return [task.id for task in await ManualWorker(conn, f"claimer {id(conn)}").claim_tasks(5)]


async def _tick(conn: Connection, _: LeasedTask) -> object:
    return await conn.fetchval("select holdfast.tick()")


async def _child(conn: Connection, task: LeasedTask) -> object:
    try:
        return await conn.fetchval(
            """select holdfast.add_tasks($1, $2, $3, '[{"type": "t", "name": "child", "queue": "later"}]')""",
            task.id,
            task.attempt,
            task.nonce,
        )
    except asyncpg.PostgresError as problem:
        assert problem.sqlstate == "HF001"  # noqa: PT017
        return "stale"


OPERATIONS: dict[str, LeaseOperation] = {
    "beat": _beat,
    "succeed": _finish("succeed"),
    "fail": _finish("fail"),
    "reject": _finish("reject"),
    "snooze": _finish("snooze"),
    "release": _finish("release"),
    "cancel": _cancel,
    "reclaim": _reclaim,
    "claim": _claim,
    "tick": _tick,
    "child": _child,
}


async def check_invariants(conn: Connection) -> None:
    wrong = await conn.fetch("select * from holdfast.list_limit_counters() where running <> leases")
    assert not wrong
    twice = await conn.fetchval(
        "select count(*) from (select id from holdfast.history group by id having count(*) > 1) as twice"
    )
    assert twice == 0
    both = await conn.fetchval("select count(*) from holdfast.tasks join holdfast.history using (id)")
    assert both == 0
    counts = await conn.fetch(
        """
        select j.id from holdfast.jobs j join holdfast.tasks t on t.job_id = j.id group by j.id
        having j.total <> count(*) or j.succeeded + j.failed + j.cancelled + j.skipped
          <> count(*) filter (where t.status in ('succeeded', 'failed', 'cancelled'))
        """
    )
    assert not counts


@pytest.mark.parametrize("expired", [False, True], ids=["live", "expired"])
@pytest.mark.parametrize("shape", ["single", "graph"])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_every_pair_of_operations(
    conn: Connection, second: Connection, url: Secret, clock: Clock, ending: str, shape: str, expired: bool
) -> None:
    watch = await asyncpg.connect(url.reveal())
    await conn.execute("select holdfast.put_limit('one', p_queue => $1, p_max_running => 100)", QUEUE)
    for first_name, second_name in itertools.product(OPERATIONS, OPERATIONS):
        if shape == "single":
            created = await submit_job(conn)
        else:
            tasks = [{"type": "t", "name": "a"}, {"type": "t", "name": "b", "after": ["a"], "queue": "later"}]
            created = (await jobs.submit(conn, {"type": "g", "queue": QUEUE, "tasks": tasks})).id
        task = await ManualWorker(conn, "pair").claim_one_task()
        if expired:
            await clock.advance(LEASE_DURATION)
        transaction = conn.transaction()
        await transaction.start()
        one = await OPERATIONS[first_name](conn, task)
        running = asyncio.create_task(_await_operation(OPERATIONS[second_name](second, task)))
        await wait_until_blocked_or_done(watch, second.get_server_pid(), running)
        await (transaction.commit() if ending == "commit" else transaction.rollback())
        two = await running
        pair = f"{first_name} then {second_name}: {one!r} {two!r}"
        await check_invariants(watch)
        accepted = _count_accepted(first_name, one, ending) + _count_accepted(second_name, two, "commit")
        assert (
            accepted <= 1 or first_name == second_name or {first_name, second_name} == {"fail", "reject"}
        ), pair
        await jobs.cancel_job(watch, created)
        await check_invariants(watch)
        assert await watch.fetchval("select count(*) from holdfast.tasks where status = 'running'") == 0, pair
    await watch.close()


async def _await_operation(operation: Awaitable[object]) -> object:
    return await operation


def _count_accepted(name: str, answer: object, ending: str) -> int:
    """Whether an operation decided how the attempt ended."""
    if ending == "rollback":
        return 0
    if name in {"succeed", "fail", "reject", "snooze", "release"}:
        return int(answer == ["ok"])
    return 0
