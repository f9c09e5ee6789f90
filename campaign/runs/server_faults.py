"""Fault runs of the server: crashes, terminated connections and no connections left."""

from __future__ import annotations

import asyncio
import contextlib

import asyncpg

from campaign.checker import check_i4_no_overlap
from campaign.environment import FaultEnvironment
from campaign.runs import FaultDose, FaultRun
from campaign.runs.worker_faults import WORKER_COUNT, submit_load


async def _run_crashes(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    for _ in range(WORKER_COUNT):
        await env.start_worker(*env.small_worker_options)
    crashes = 0
    async with submit_load(env, dose.tasks, 200):
        for _ in env.iterate_faults(dose.faults):
            crashes += 1
            await env.keep_workers_running(WORKER_COUNT, *env.small_worker_options)
            await env.wait_for_progress()
            await asyncio.sleep(env.random.uniform(0.0, 0.5))
            env.server.crash()
            if env.random.random() < 0.05:  # longer than a lease, so held leases expire
                await asyncio.sleep(3.0)
            env.server.start()
            await env.server.wait_until_ready()
    await env.wait_until_drained(300)
    return {"crashes": crashes}


async def _run_cut(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Terminate most backends again and again, as an administrator can."""
    for _ in range(WORKER_COUNT):
        await env.start_worker()
    ended = 0
    async with submit_load(env, dose.tasks):
        for _ in env.iterate_faults(dose.faults):
            await asyncio.sleep(env.random.uniform(0.1, 0.6))
            async with env.open_connection() as connection:
                ended += await connection.fetchval(
                    "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                    " where backend_type = 'client backend' and pid <> pg_backend_pid() and random() < 0.7"
                )
    await env.wait_until_drained(300)
    return {"backends ended": ended}


async def _run_exhausted(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Let another client take every connection of the server for a while."""
    for _ in range(WORKER_COUNT):
        await env.start_worker()
    taken = 0
    async with submit_load(env, dose.tasks):
        for _ in env.iterate_faults(dose.faults):
            await asyncio.sleep(env.random.uniform(0.1, 0.5))
            connections = await _take_all_connections(env)
            taken += len(connections)
            await asyncio.sleep(env.random.uniform(0.5, 3.0))
            for each in connections:
                each.terminate()
    await env.wait_until_drained(300)
    return {"connections taken": taken}


async def _take_all_connections(env: FaultEnvironment) -> list[asyncpg.Connection]:
    """Take every connection: terminate the backends of the workers and connect first."""
    connections: list[asyncpg.Connection] = []
    for _ in range(3):
        with contextlib.suppress(asyncpg.PostgresError, OSError, TimeoutError):
            while True:
                connections.append(await asyncpg.connect(env.url.reveal(), timeout=5))
        pids = [each.get_server_pid() for each in connections]
        await connections[0].execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> all ($1::integer[])",
            pids,
        )
    return connections


FAULT_RUNS = [
    FaultRun(
        "crashes",
        "the server stopped at once and started again",
        _run_crashes,
        FaultDose(2_000, 100),
        FaultDose(100_000, 1_000),
        (check_i4_no_overlap,),
        tiny=FaultDose(400, 6),
    ),
    FaultRun(
        "cut",
        "connections ended by an administrator",
        _run_cut,
        FaultDose(400, 8),
        FaultDose(20_000, 1_000),
        (check_i4_no_overlap,),
    ),
    FaultRun(
        "exhausted",
        "no connection left for anybody",
        _run_exhausted,
        FaultDose(200, 2),
        FaultDose(5_000, 50),
        (check_i4_no_overlap,),
    ),
]
