"""Fault runs of shards: one of two servers is killed or frozen again and again while the other goes on.

Shard 1 is the server of the run. Its jobs and workers are recorded, so the checker proves the promises on it.
The run itself proves that one client and one worker process of both shards go on with shard 2 during each
fault, and that no job of shard 2 is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

from campaign.checker import check_i4_no_overlap
from campaign.environment import DATABASE_NAME, FaultEnvironment
from campaign.processes import list_descendants
from campaign.runs import FaultDose, FaultRun
from campaign.runs.worker_faults import WORKER_COUNT, submit_load
from campaign.servers import FaultServer
from holdfast import Client, JobHandle, Worker, shard_of, task
from holdfast.client.shard_routing import choose_shard
from holdfast.engine import install, scratch, shards
from holdfast.engine.connection import open_connection

JOBS_PER_FAULT = 10
MAX_RESULT_WAIT_S = 60


@task(queue="other-shard", lease=timedelta(seconds=2))
async def echo(number: int) -> int:
    return number


async def _run_shard_faults(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    for _ in range(WORKER_COUNT):
        await env.start_worker(*env.small_worker_options)
    kills = freezes = 0
    other_jobs: list[JobHandle[int]] = []
    async with _open_second_shard(env) as client, _run_worker(client):
        async with submit_load(env, dose.tasks, 200):
            for number in env.iterate_faults(dose.faults):
                await env.keep_workers_running(WORKER_COUNT, *env.small_worker_options)
                await env.wait_for_progress()
                if number % 2:
                    freezes += 1
                    other_jobs += await _freeze_first_shard(env, client)
                else:
                    kills += 1
                    other_jobs += await _kill_first_shard(env, client)
        await env.wait_until_drained(300)
        lost = [job.id for job in other_jobs if (await client.get(job.id)).status != "succeeded"]
        assert not lost, f"shard 2 lost jobs: {lost}"
    return {"kills": kills, "freezes": freezes, "jobs of the other shard": len(other_jobs)}


async def _freeze_first_shard(env: FaultEnvironment, client: Client) -> list[JobHandle[int]]:
    _send_signal(env.server, signal.SIGSTOP)
    try:
        return await _work_on_second_shard(client)
    finally:
        _send_signal(env.server, signal.SIGCONT)


async def _kill_first_shard(env: FaultEnvironment, client: Client) -> list[JobHandle[int]]:
    env.server.crash()
    try:
        return await _work_on_second_shard(client)
    finally:
        env.server.start()
        await env.server.wait_until_ready()


@asynccontextmanager
async def _open_second_shard(env: FaultEnvironment) -> AsyncGenerator[Client]:
    """Start a second server and number both. Yield a client of both shards."""
    server = FaultServer(env.folder / "shard2", {"fsync": "off"})
    server.start()
    try:
        await server.wait_until_ready()
        administration = await server.connect()
        await administration.execute(f"create database {DATABASE_NAME}")
        await administration.close()
        url = scratch.build_database_url(server.url, DATABASE_NAME)
        await install.migrate_database(url, env.settings)
        for number, each in ((1, env.url), (2, url)):
            async with open_connection(each, env.settings) as connection:
                await shards.set_shard(connection, number)
        settings = replace(env.settings, connect_timeout=timedelta(seconds=2))
        async with Client(shards={1: env.url.reveal(), 2: url.reveal()}, settings=settings) as client:
            yield client
    finally:
        server.destroy()


@asynccontextmanager
async def _run_worker(client: Client) -> AsyncGenerator[None]:
    """Run one worker of both shards in this process."""
    async with Worker(client, tasks=[echo], concurrency=4) as worker:
        running = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(running, 30)


async def _work_on_second_shard(client: Client) -> list[JobHandle[int]]:
    """Submit jobs to shard 2 and wait for their results, while shard 1 does not answer."""
    owner = next(str(n) for n in range(1000) if choose_shard(f"owner:{n}", client.shard_numbers) == 2)
    handles = [await client.submit(echo(number), owner=owner) for number in range(JOBS_PER_FAULT)]
    for number, handle in enumerate(handles):
        assert shard_of(handle.id) == 2
        assert await handle.result(within=MAX_RESULT_WAIT_S) == number
    return handles


def _send_signal(server: FaultServer, number: signal.Signals) -> None:
    pid = server.pid
    if pid is not None:
        for each in (pid, *list_descendants(pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, number)


FAULT_RUNS = [
    FaultRun(
        "shards",
        "one of two shards killed and frozen in turn; work goes on on the other",
        _run_shard_faults,
        FaultDose(200, 4),
        FaultDose(10_000, 100),
        (check_i4_no_overlap,),
    ),
]
