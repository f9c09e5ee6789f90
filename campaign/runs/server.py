"""Harm done to the server: crashed at once, and its connections cut or used up."""

from __future__ import annotations

import asyncio
import contextlib

import asyncpg

from campaign.arena import Arena
from campaign.checker import i4_no_overlap
from campaign.runs import Dose, Run
from campaign.runs.workers import FLEET, fed


async def _crashes(arena: Arena, dose: Dose) -> dict[str, object]:
    for _ in range(FLEET):
        await arena.worker(*arena.few)
    crashes = 0
    async with fed(arena, dose.tasks, 200):
        for _ in arena.faults(dose.faults):
            crashes += 1
            await arena.at_least(FLEET, *arena.few)
            await arena.at_it_again()
            await asyncio.sleep(arena.random.uniform(0.0, 0.5))
            arena.server.crash()
            if arena.random.random() < 0.05:  # longer than a lease: what was held is lost
                await asyncio.sleep(3.0)
            arena.server.start()
            await arena.server.ready()
    await arena.drained(300)
    return {"crashes": crashes}


async def _cut(arena: Arena, dose: Dose) -> dict[str, object]:
    """Every backend is ended, again and again, as an impatient administrator does."""
    for _ in range(FLEET):
        await arena.worker()
    ended = 0
    async with fed(arena, dose.tasks):
        for _ in arena.faults(dose.faults):
            await asyncio.sleep(arena.random.uniform(0.1, 0.6))
            async with arena.connection() as connection:
                ended += await connection.fetchval(
                    "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                    " where backend_type = 'client backend' and pid <> pg_backend_pid() and random() < 0.7"
                )
    await arena.drained(300)
    return {"backends ended": ended}


async def _exhausted(arena: Arena, dose: Dose) -> dict[str, object]:
    """Somebody else takes every connection the server has, for a while."""
    for _ in range(FLEET):
        await arena.worker()
    taken = 0
    async with fed(arena, dose.tasks):
        for _ in arena.faults(dose.faults):
            await asyncio.sleep(arena.random.uniform(0.1, 0.5))
            hoard = await _hoard(arena)
            taken += len(hoard)
            await asyncio.sleep(arena.random.uniform(0.5, 3.0))
            for each in hoard:
                each.terminate()
    await arena.drained(300)
    return {"connections taken": taken}


async def _hoard(arena: Arena) -> list[asyncpg.Connection]:
    """Every connection there is: those of the workers are ended, and we are there first."""
    hoard: list[asyncpg.Connection] = []
    for _ in range(3):
        with contextlib.suppress(asyncpg.PostgresError, OSError, TimeoutError):
            while True:
                hoard.append(await asyncpg.connect(arena.url.reveal(), timeout=5))
        pids = [each.get_server_pid() for each in hoard]
        await hoard[0].execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> all ($1::integer[])",
            pids,
        )
    return hoard


RUNS = [
    Run(
        "crashes",
        "the server stopped at once and started again",
        _crashes,
        Dose(2_000, 100),
        Dose(100_000, 1_000),
        (i4_no_overlap,),
        tiny=Dose(400, 6),
    ),
    Run(
        "cut",
        "connections ended by an administrator",
        _cut,
        Dose(400, 8),
        Dose(20_000, 1_000),
        (i4_no_overlap,),
    ),
    Run(
        "exhausted",
        "no connection left for anybody",
        _exhausted,
        Dose(200, 2),
        Dose(5_000, 50),
        (i4_no_overlap,),
    ),
]
