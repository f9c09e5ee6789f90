from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from manual_worker import ManualWorker, read_task_status, submit_job

from holdfast import task
from holdfast.engine import bulk_actions, maintenance
from holdfast.engine.connection import Connection, Database
from holdfast.testing import wait_until
from holdfast.worker import maintenance as worker_maintenance
from holdfast.worker.maintenance import AlertEvaluation, PeriodicMaintenance
from holdfast.worker.runtime import WorkerRuntime


@task(queue="nothing")
async def quiet() -> None:
    """Never submitted."""


@pytest.fixture
def shorten_maintenance_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_maintenance, "BUSY_TICK_INTERVAL_S", 0.05)


async def count_partitions(connection: Connection) -> int:
    count: int = await connection.fetchval(
        "select count(*) from pg_inherits where inhparent = 'holdfast.history'::regclass"
    )
    return count


@pytest.mark.usefixtures("shorten_maintenance_interval")
async def test_busy_worker_runs_maintenance(db: Database, conn: Connection) -> None:
    before = await count_partitions(conn)
    upkeep = PeriodicMaintenance(db, lambda: True)
    upkeep.start()

    async def created() -> bool:
        return await count_partitions(conn) > before

    await wait_until(created)
    await upkeep.stop()


@pytest.mark.usefixtures("shorten_maintenance_interval")
async def test_idle_worker_runs_maintenance_rarely(db: Database, conn: Connection) -> None:
    requested = asyncio.Event()

    def idle() -> bool:
        upkeep.rounds += 1  # type: ignore[attr-defined]
        if upkeep.rounds > 30:  # type: ignore[attr-defined]
            requested.set()
        return False

    before = await count_partitions(conn)
    upkeep = PeriodicMaintenance(db, idle)
    upkeep.rounds = 0  # type: ignore[attr-defined]
    upkeep.start()
    await asyncio.wait_for(requested.wait(), 20)
    await upkeep.stop()
    assert await count_partitions(conn) == before


@pytest.fixture
async def idle_worker(db: Database, conn: Connection) -> AsyncGenerator[None]:
    """A worker that has nothing to do and sleeps."""
    stop = asyncio.Event()
    running = asyncio.create_task(WorkerRuntime(db, {quiet.name: quiet}).run(stop))
    await wait_until(lambda: conn.fetchval("select bool_or(sleeping) from holdfast.workers"))
    yield
    stop.set()
    await running


@pytest.mark.usefixtures("idle_worker")
async def test_bulk_action_continues_without_a_client(conn: Connection) -> None:
    created = [await submit_job(conn) for _ in range(12)]  # more than the first stage
    manual_worker = ManualWorker(conn)
    for each in await manual_worker.claim_tasks(12):
        await manual_worker.finish_task(each, "reject", {"type": "E", "message": "m"})
    bulk = await bulk_actions.start_bulk_action(conn, "retry", "state:failed", by="ann", reason="try again")
    await wait_until(lambda: conn.fetchval("select done = 10 from holdfast.bulk_actions"))
    for each in await manual_worker.claim_tasks(12):
        await manual_worker.finish_task(each)

    async def done() -> bool:
        rows = await bulk_actions.get_bulk_action(conn, bulk)
        return rows is not None and rows.status == "done"

    await wait_until(done)
    assert {await read_task_status(conn, each) for each in created} == {"succeeded", "ready"}


@pytest.mark.usefixtures("idle_worker")
async def test_queue_pause_ends_on_time(conn: Connection) -> None:
    await conn.execute("select holdfast.pause_queue_until('q', holdfast.now() + interval '0.5 seconds')")
    await wait_until(lambda: conn.fetchval("select paused_at is null from holdfast.queues where name = 'q'"))


async def test_urgent_maintenance_returns_the_seconds_until_the_next_run(conn: Connection) -> None:
    assert await maintenance.run_urgent_maintenance(conn) is None
    await conn.execute("select holdfast.pause_queue_until('q', holdfast.now() + interval '1 hour')")
    assert 3500 < (await maintenance.run_urgent_maintenance(conn) or 0) <= 3600


async def test_workers_come_less_often_while_others_evaluate_alerts(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_maintenance, "ALERT_INTERVAL_S", 0.01)
    monkeypatch.setattr(worker_maintenance, "MAX_ALERT_PAUSE_S", 0.04)
    evaluation = AlertEvaluation(db)

    async def run_rounds() -> list[float]:
        pauses: list[float] = []
        for _ in range(4):
            await evaluation.run_round()
            pauses.append(evaluation.pause_s)
        return pauses

    # The first round evaluates, and the rules are not due again for half a minute.
    assert await run_rounds() == [0.01, 0.02, 0.04, 0.04]
    async with db.connection() as connection:
        await connection.execute("select setval('holdfast.last_alert_evaluation_s', 1)")
    assert (await run_rounds())[0] == 0.01
