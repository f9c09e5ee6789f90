"""A worker is killed while it holds tasks that it claimed ahead: all of them run elsewhere, uncharged."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from holdfast import Client, task
from holdfast.engine.connection import Connection
from holdfast.settings import Secret
from holdfast.testing import wait_until

CONCURRENCY = 4
TASKS = 4000


@task(queue="killed")
async def short_task(n: int) -> int:
    await asyncio.sleep(0.0005)
    return n


def start_worker(url: Secret, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "holdfast", "--log-level", "warning", "worker", __file__, *options]
    return subprocess.Popen(command, env={**os.environ, "HOLDFAST_DATABASE_URL": url.reveal()})


async def test_tasks_that_wait_in_a_killed_worker_run_elsewhere(
    client: Client, conn: Connection, url: Secret
) -> None:
    for start in range(0, TASKS, 1000):
        await client.submit_many([short_task(n) for n in range(start, start + 1000)])

    async def count_running() -> int:
        query = "select count(*) from holdfast.tasks where status = 'running'"
        return int(await conn.fetchval(query))

    async def has_waiting_tasks() -> bool:
        return await count_running() > 2 * CONCURRENCY

    worker = start_worker(url, "-c", str(CONCURRENCY))
    try:
        await wait_until(has_waiting_tasks, what="the worker has claimed tasks ahead")
    finally:
        worker.kill()
        await asyncio.to_thread(worker.wait)

    async def holds_nothing() -> bool:
        return await count_running() == 0

    await wait_until(holds_nothing, what="the heartbeat process has returned all tasks")
    charges = "select coalesce(sum(failures + crashes), 0) from holdfast.tasks"
    assert await conn.fetchval(charges) == 0
    assert await conn.fetchval("select count(*) from holdfast.attempts where outcome = 'lost'") > CONCURRENCY
    second = start_worker(url, "-c", "50", "--drain")
    assert await asyncio.to_thread(second.wait, 240) == 0
    ended = await conn.fetch(
        "select status, max(failures + crashes) as charges, count(*) as n, "
        "count(distinct id) as ids from holdfast.history group by status"
    )
    assert [tuple(row) for row in ended] == [("succeeded", 0, TASKS, TASKS)]
