"""Everything at once on a few hot jobs: no deadlock, no lost or doubled task, every count right at the end.

An error of the server other than a refusal by name fails the test, and a deadlock is one.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from manual_worker import QUEUE, ManualWorker, build_outcome

from holdfast.engine import jobs, leases
from holdfast.engine.connection import Connection
from holdfast.model import Progress
from holdfast.settings import Secret
from holdfast.testing import Clock

EXPECTED_ERROR_CODES = {"HF001", "HF002", "HF003", "HF004", "40001"}
CHILD_TASK = '[{"type": "t", "name": "child", "queue": "q", "base_s": 0, "after": ["a"]}]'


async def submit_random_jobs(conn: Connection, chance: random.Random) -> list[Any]:
    created: list[Any] = []
    for number in range(12):
        policy = {"base_s": 0, "lease_s": 0.5, "type": "t", "limit_key": f"k{number % 3}"}
        tasks = [{"name": "a", **policy}, {"name": "b", **policy}]
        tasks += [
            {
                "name": f"n{n}",
                "after": [
                    {"name": chance.choice("ab"), "on_failure": chance.choice(["fail", "skip", "run"])}
                ],
                **policy,
            }
            for n in range(4)
        ]
        created.append((await jobs.submit(conn, {"type": "g", "queue": QUEUE, "tasks": tasks})).id)
        created.append((await jobs.submit(conn, {"queue": QUEUE, **policy})).id)
    return created


async def run_random_operation(
    conn: Connection, manual_worker: ManualWorker, chance: random.Random, created: list[Any], tasks: list[Any]
) -> None:
    what = chance.choice(
        ["finish", "finish", "finish", "beat", "cancel", "task", "retry", "child", "tick", "die", "step"]
    )
    task = chance.choice(tasks) if tasks else None
    if what == "finish":
        kinds: list[Any] = ["succeed", "succeed", "fail", "reject", "release", "snooze", "cancel"]
        await manual_worker.finish_and_claim(
            [build_outcome(t, chance.choice(kinds), {"message": "x", "delay_s": 0}) for t in tasks], slots=0
        )
        tasks.clear()
    elif what == "beat" and tasks:
        news = {t.id: Progress(percent=chance.random() * 100) for t in tasks}
        lost = (await leases.heartbeat_tasks(conn, worker=manual_worker.name, held=tasks, progress=news)).lost
        tasks[:] = [t for t in tasks if t.lease not in lost]
    elif what == "cancel":
        await jobs.cancel_job(conn, chance.choice(created))
    elif what == "retry":
        await conn.fetchval("select holdfast.retry_job($1)", chance.choice(created))
    elif what == "tick":
        await conn.fetchval("select holdfast.tick(20)")
    elif what == "die":
        tasks.clear()
    elif task and what == "task":
        await conn.fetchval("select holdfast.cancel_task($1)", task.id)
    elif task and what == "child":
        await conn.fetchval(
            "select holdfast.add_tasks($1, $2, $3, $4)", task.id, task.attempt, task.nonce, CHILD_TASK
        )
    elif task and what == "step":
        await leases.save_step_result(conn, task, "s", b"1")


async def run_random_worker(url: Secret, number: int, created: list[Any], turns: int) -> None:
    chance = random.Random(number)
    conn = await asyncpg.connect(url.reveal())
    manual_worker = ManualWorker(conn, f"w{number}")
    tasks: list[Any] = []
    for _ in range(turns):
        try:
            tasks += await manual_worker.claim_tasks(4)
            await run_random_operation(conn, manual_worker, chance, created, tasks)
        except asyncpg.PostgresError as problem:
            if problem.sqlstate not in EXPECTED_ERROR_CODES:
                raise
    await conn.close()


@pytest.mark.parametrize("seed_number", [1, 2, 3])
async def test_a_storm_on_a_few_hot_jobs(
    conn: Connection, url: Secret, clock: Clock, seed_number: int
) -> None:
    await conn.execute("select holdfast.put_limit('all', p_queue => 'q', p_max_running => 20)")
    await conn.execute(
        "select holdfast.put_limit('each', p_queue => 'q', p_per_key => true, p_max_running => 6)"
    )
    created = await submit_random_jobs(conn, random.Random(seed_number))
    await asyncio.gather(*(run_random_worker(url, seed_number * 100 + n, created, 60) for n in range(8)))
    manual_worker = ManualWorker(conn)
    for _ in range(200):
        await clock.advance(timedelta(minutes=20))
        tasks = await manual_worker.claim_tasks(50)
        await manual_worker.finish_and_claim([build_outcome(task) for task in tasks])
        if not tasks and not await conn.fetchval(
            "select count(*) from holdfast.tasks where finished_at is null"
        ):
            break
    assert not await conn.fetch("select * from holdfast.tasks where finished_at is null")
    assert not await conn.fetch("select * from holdfast.list_limit_counters() where running <> leases")
    assert not await conn.fetch("select id from holdfast.all_tasks group by id having count(*) > 1")
    assert not await conn.fetch(
        """
        select j.id, j.total, j.status, count(*)
        from holdfast.jobs j join holdfast.all_tasks t on t.job_id = j.id
        group by j.id having j.finished_at is null or j.total <> count(*)
          or j.succeeded <> count(*) filter (where t.status = 'succeeded')
          or j.failed <> count(*) filter (where t.status = 'failed')
          or j.cancelled + j.skipped <> count(*) filter (where t.status = 'cancelled')
        """
    )
    assert not await conn.fetch(
        "select job_id from holdfast.events group by job_id having count(*) <> count(distinct seq)"
    )
