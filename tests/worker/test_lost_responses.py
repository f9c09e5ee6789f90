"""A claim happens and its answer is lost: what was claimed goes back at once, and nobody is charged."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from manual_worker import ManualWorker, read_task_row, submit_job

from holdfast import Client, Ctx, task
from holdfast.engine import leases
from holdfast.engine.connection import Connection, Database
from holdfast.errors import DatabaseUnavailableError
from holdfast.testing import Clock
from holdfast.worker.runtime import WorkerRuntime

SOON = timedelta(seconds=30)


@task(queue="answers")
async def tells(ctx: Ctx) -> int:
    return ctx.attempt


async def test_claim_with_a_lost_response_is_released(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []
    real = leases.finish_and_claim_undecoded

    async def ask(*args: Any, **how: Any) -> leases.UndecodedClaimResponse:
        answer = await real(*args, **how)
        if answer.task_count and len(lost) < 4:  # more than the budget of crashes
            lost.append(answer.task_count)
            raise DatabaseUnavailableError("The connection was closed in the middle of the answer.")
        return answer

    monkeypatch.setattr(leases, "finish_and_claim_undecoded", ask)
    stop = asyncio.Event()
    running = asyncio.create_task(WorkerRuntime(db, {tells.name: tells}).run(stop))
    jobs = [await client.submit(tells()) for _ in range(3)]
    assert all([await job.result(within=SOON) > 1 for job in jobs])
    stop.set()
    await running
    assert len(lost) == 4
    kept = await conn.fetch("select failures, crashes from holdfast.history")
    assert [tuple(row) for row in kept] == [(0, 0)] * 3


async def test_release_of_unreceived_tasks_keeps_held_and_old_leases(conn: Connection, clock: Clock) -> None:
    created = [await submit_job(conn) for _ in range(3)]
    manual_worker = ManualWorker(conn)
    old = await manual_worker.claim_one_task()
    await clock.advance(timedelta(seconds=10))
    held, unheld = await manual_worker.claim_tasks(2)
    assert await leases.release_unreceived_tasks(conn, "another", [], timedelta(seconds=5)) == 0
    assert await leases.release_unreceived_tasks(conn, "hand", [held.id], timedelta(seconds=5)) == 1
    states = {(row := await read_task_row(conn, each))["id"]: row["status"] for each in created}
    assert states == {old.id: "running", held.id: "running", unheld.id: "ready"}
    assert (await read_task_row(conn, unheld.id))["crashes"] == 0
