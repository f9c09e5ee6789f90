"""Progress reports of several tasks are stored together, in order, and fenced one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest
from manual_worker import ManualWorker, submit_graph, submit_job

from holdfast.engine import jobs, leases
from holdfast.engine.connection import Connection, Database
from holdfast.engine.leases import LeasedTask
from holdfast.errors import DatabaseUnavailableError, LeaseLostError
from holdfast.model import Progress
from holdfast.worker.progress_batches import ProgressBatcher

TASKS = 20
REPORTS_PER_TASK = 5


@pytest.fixture
def batch_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of reports in each statement."""
    sizes: list[int] = []
    save_progress = leases.save_progress

    async def save_and_count(
        connection: Connection, reports: Sequence[tuple[leases.Lease, Progress]]
    ) -> Sequence[leases.ProgressAnswer]:
        sizes.append(len(reports))
        return await save_progress(connection, reports)

    monkeypatch.setattr(leases, "save_progress", save_and_count)
    return sizes


async def claim_jobs(conn: Connection, count: int) -> list[LeasedTask]:
    for _ in range(count):
        await submit_job(conn)
    return list(await ManualWorker(conn).claim_tasks(count))


async def read_percents(conn: Connection, job_id: UUID) -> list[float]:
    events = await jobs.list_job_events(conn, job_id)
    return [event.body["percent"] for event in events if event.kind == "progress" and event.body]


async def test_reports_of_many_tasks_share_statements_and_none_is_lost(
    conn: Connection, db: Database, batch_sizes: list[int]
) -> None:
    tasks = await claim_jobs(conn, TASKS)
    batcher = ProgressBatcher(db)

    async def report(task: LeasedTask) -> None:
        for n in range(1, REPORTS_PER_TASK + 1):
            await batcher.store(task, Progress(percent=n * 10.0))

    await asyncio.gather(*map(report, tasks))
    for task in tasks:
        assert await read_percents(conn, task.id) == [10, 20, 30, 40, 50]
    assert sum(batch_sizes) == TASKS * REPORTS_PER_TASK
    assert len(batch_sizes) <= sum(batch_sizes) / 4


async def test_reports_of_one_task_at_the_same_time_are_stored_in_order(
    conn: Connection, db: Database
) -> None:
    (task,) = await claim_jobs(conn, 1)
    batcher = ProgressBatcher(db)
    await asyncio.gather(*(batcher.store(task, Progress(percent=float(n))) for n in range(1, 20)))
    assert await read_percents(conn, task.id) == list(range(1, 20))


async def test_lost_lease_fails_its_own_report_only(conn: Connection, db: Database) -> None:
    lost, held = await claim_jobs(conn, 2)
    await ManualWorker(conn).finish_task(lost)
    batcher = ProgressBatcher(db)
    results = await asyncio.gather(
        batcher.store(held, Progress(percent=1)),  # alone: the others wait for its answer
        batcher.store(lost, Progress(percent=50)),
        batcher.store(held, Progress(percent=50)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), LeaseLostError, type(None)]
    assert await read_percents(conn, held.id) == [1, 50]


async def test_locked_task_delays_no_other_and_keeps_its_order(conn: Connection, db: Database) -> None:
    locked, free = await claim_jobs(conn, 2)
    batcher = ProgressBatcher(db)
    async with db.transaction() as user:  # a task may hold its own lease in a transaction
        await leases.assert_lease(user, locked)
        waiting = [
            asyncio.create_task(batcher.store(locked, Progress(percent=n))) for n in (10.0, 20.0, 30.0)
        ]
        await batcher.store(free, Progress(percent=1))
        await batcher.store(free, Progress(percent=2))
        assert not any(task.done() for task in waiting)
    await asyncio.gather(*waiting)
    assert await read_percents(conn, locked.id) == [10, 20, 30]
    assert await read_percents(conn, free.id) == [1, 2]


async def test_refused_report_fails_alone(conn: Connection, db: Database) -> None:
    good, bad, other = await claim_jobs(conn, 3)
    batcher = ProgressBatcher(db)
    results = await asyncio.gather(
        batcher.store(good, Progress(percent=1)),
        batcher.store(bad, Progress(phase="a\0b")),  # the context removes such characters
        batcher.store(other, Progress(percent=3)),
        return_exceptions=True,
    )
    assert isinstance(results[1], Exception)
    assert [results[0], results[2]] == [None, None]
    assert await read_percents(conn, other.id) == [3]


async def test_cancelled_report_does_not_disturb_the_next(conn: Connection, db: Database) -> None:
    first, second = await claim_jobs(conn, 2)
    batcher = ProgressBatcher(db)
    reports = [asyncio.create_task(batcher.store(task, Progress(percent=5))) for task in (first, second)]
    await asyncio.sleep(0)
    reports[1].cancel()
    await asyncio.wait(reports)
    await batcher.store(second, Progress(percent=7))
    assert (await read_percents(conn, second.id))[-1] == 7
    assert await read_percents(conn, first.id) == [5]


async def test_every_task_learns_of_an_outage(
    conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = await claim_jobs(conn, 3)

    async def fail(*_: object) -> None:
        raise DatabaseUnavailableError("The server is gone.")

    monkeypatch.setattr(leases, "save_progress", fail)
    batcher = ProgressBatcher(db)
    results = await asyncio.gather(
        *(batcher.store(task, Progress(percent=1)) for task in tasks), return_exceptions=True
    )
    assert [type(result) for result in results] == [DatabaseUnavailableError] * 3
    assert len({id(result) for result in results}) == 3  # tracebacks of different tasks stay apart


async def test_progress_of_several_tasks_of_a_job_adds_up(conn: Connection) -> None:
    """One statement does what one report after the other would do."""
    expected: list[list[tuple[int, dict[str, object] | None]]] = []
    for together in (False, True):
        graph = await submit_graph(conn, {"name": "a", "weight": 3}, {"name": "b"}, {"name": "c"})
        tasks = sorted(await ManualWorker(conn).claim_tasks(3), key=lambda task: task.name or "")
        reports: list[tuple[leases.Lease, Progress]] = [
            (tasks[0], Progress(percent=50, phase="cutting")),
            (tasks[1], Progress(percent=30, message="half way")),
            (tasks[2], Progress(percent=200, phase="gluing")),
        ]
        for batch in [reports] if together else [[report] for report in reports]:
            assert set(await leases.save_progress(conn, batch)) == {"ok"}
        assert set(await leases.save_progress(conn, reports)) == {"ok"}  # nothing new, no event
        events = await jobs.list_job_events(conn, graph.id)
        expected.append([(e.seq, e.body) for e in events if e.kind == "progress"])
        row = await conn.fetchrow(
            "select percent, phase, message, event_seq, progress_weight_done from holdfast.jobs "
            "where id = $1",
            graph.id,
        )
        assert row is not None
        assert tuple(row) == (pytest.approx(56), "gluing", "half way", events[-1].seq, pytest.approx(2.8))
        assert len(expected[-1]) == 3
    assert expected[0] == expected[1]
