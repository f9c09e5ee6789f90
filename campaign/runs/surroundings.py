"""The world around is strange: wrong clocks, a full disk, large numbers, an old snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil

import asyncpg

from campaign.arena import Arena
from campaign.checker import i4_no_overlap, i12_taken_over
from campaign.runs import Dose, Run
from campaign.runs.workers import FLEET, fed

SKEWS = ("+3600s", "-3600s", "+1d", "-30d", "+5s", "-5s")
EDGES = (2**31 - 50, 2**32 - 50, 2**53 - 50)
ADVANCE = """select setval(s.oid::regclass, $1) from pg_class s
  where s.relkind = 'S' and s.relnamespace = 'holdfast'::regnamespace
    and s.relname <> all ('{horizon,full_sweep}')"""


async def _skew(arena: Arena, dose: Dose) -> dict[str, object]:
    """Workers whose clocks are wrong by seconds to a month, killed like others: the server's counts."""
    for number in range(FLEET):
        await arena.worker(*arena.few, skew=SKEWS[number % len(SKEWS)])
    async with fed(arena, dose.tasks, 100):
        for number in arena.faults(dose.faults):
            await asyncio.sleep(arena.random.uniform(0.0, 0.1))
            arena.kill(await arena.at_work(), family=arena.random.random() < 1 / 3)
            await arena.worker(*arena.few, skew=SKEWS[number % len(SKEWS)])
    await arena.drained(300)
    return {"skews": list(SKEWS)}


async def _edges(arena: Arena, dose: Dose) -> dict[str, object]:
    """Every counter of the engine close to where numbers used to end."""
    for edge in EDGES:
        async with arena.connection() as connection:
            await connection.execute(ADVANCE.replace("$1", str(edge)))
        await arena.at_least(FLEET, *arena.few)
        async with fed(arena, dose.tasks // len(EDGES), 50):
            for _ in arena.faults(dose.faults // len(EDGES)):
                await asyncio.sleep(arena.random.uniform(0.0, 0.1))
                arena.kill(await arena.at_work())
                await arena.worker(*arena.few)
        await arena.drained(300)
    return {"edges": list(EDGES)}


async def _pinned(arena: Arena, dose: Dose) -> dict[str, object]:
    """Somebody holds an old snapshot all the time: nothing that is dead can be swept away."""
    holder = await asyncpg.connect(arena.url.reveal())
    await holder.execute("begin isolation level repeatable read; select count(*) from holdfast.tasks")
    for _ in range(FLEET):
        await arena.worker(*arena.few)
    async with fed(arena, dose.tasks, 20):
        for _ in arena.faults(dose.faults):
            await asyncio.sleep(arena.random.uniform(0.0, 0.3))
            arena.kill(await arena.at_work())
            await arena.worker(*arena.few)
    await arena.drained(300)
    await holder.close()
    return {}


async def _full(arena: Arena, dose: Dose) -> dict[str, object]:
    """The disk of the server fills up, it panics or refuses, and there is room again."""
    for _ in range(FLEET):
        await arena.worker(*arena.few)
    stopped = 0
    async with fed(arena, dose.tasks, 100):
        for _ in arena.faults(dose.faults):
            await arena.at_least(FLEET, *arena.few)
            await arena.at_it_again()
            ballast = arena.server.home.folder / "ballast"
            fill(ballast)
            await asyncio.sleep(arena.random.uniform(1.0, 5.0))
            ballast.unlink()
            if arena.server.ended:
                stopped += 1
                arena.server.start()
            await arena.server.ready()
    await arena.drained(300)
    refusals = arena.server.log.read_text(errors="replace").count("No space left on device")
    if not refusals:
        raise AssertionError("the disk was never full")
    return {"filled": dose.faults, "refusals": refusals, "server stopped": stopped}


def fill(path: os.PathLike[str]) -> None:
    """Until nothing fits any more."""
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):  # noqa: PTH123
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(os.path.dirname(path)).free - 8192)  # noqa: PTH120
        while True:
            file.write(bytes(4096))


RUNS = [
    Run("skew", "workers whose clocks are wrong", _skew, Dose(300, 12), Dose(10_000, 600),
        (i4_no_overlap, i12_taken_over)),
    Run("edges", "sequences beyond 2^31, 2^32 and 2^53", _edges, Dose(300, 9), Dose(6_000, 300),
        (i4_no_overlap,)),
    Run("pinned", "an old snapshot is held while workers die", _pinned, Dose(600, 8), Dose(50_000, 500),
        (i4_no_overlap, i12_taken_over)),
    Run("full", "the server's disk is full for a while; needs root", _full, Dose(300, 3), Dose(5_000, 50),
        (i4_no_overlap,), options=(("max_wal_size", "64MB"), ("min_wal_size", "32MB")), small_disk=True),
]  # fmt: skip
