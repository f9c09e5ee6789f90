"""The world around is strange: wrong clocks, a full disk, large numbers, an old snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal

import asyncpg

from campaign.arena import Arena
from campaign.checker import i4_no_overlap, i12_taken_over
from campaign.runs import Dose, Run
from campaign.runs.workers import FLEET, fed
from holdfast.engine import install, schema, scratch
from holdfast.engine.schema import FunctionFile, SchemaFiles

SKEWS = ("+3600s", "-3600s", "+1d", "-30d", "+5s", "-5s")
EDGES = (2**31 - 50, 2**32 - 50, 2**53 - 50)
JUMPS = (1_500_000_000, 2**31 - 50, 3_500_000_000, 2**32 - 50)
XID = "select pg_current_xact_id()::text::bigint"
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


async def _some_work_and_deaths(arena: Arena, tasks: int, kills: int) -> None:
    await arena.at_least(FLEET, *arena.few)
    async with fed(arena, tasks, 50):
        for _ in arena.faults(kills):
            await asyncio.sleep(arena.random.uniform(0.0, 0.1))
            arena.kill(await arena.at_work())
            await arena.worker(*arena.few)
    await arena.drained(300)


async def _edges(arena: Arena, dose: Dose) -> dict[str, object]:
    """Every counter of the engine close to where numbers used to end."""
    for edge in EDGES:
        async with arena.connection() as connection:
            await connection.execute(ADVANCE.replace("$1", str(edge)))
        await _some_work_and_deaths(arena, dose.tasks // len(EDGES), dose.faults // len(EDGES))
    return {"edges": list(EDGES)}


async def _xids(arena: Arena, dose: Dose) -> dict[str, object]:
    """Transaction numbers run past 2^31, and over 2^32, where 32 bits begin anew."""
    async with arena.connection() as connection:
        began = await connection.fetchval(XID)
    for number in JUMPS:
        await arena.stop_workers()
        await _jump(arena, number)
        await _some_work_and_deaths(arena, dose.tasks // len(JUMPS), dose.faults // len(JUMPS))
    async with arena.connection() as connection:
        reached = await connection.fetchval(XID)
    if reached <= 2**32:
        raise AssertionError(f"transaction {reached} is not beyond 2^32")
    return {"first transaction": began, "last transaction": reached}


async def _jump(arena: Arena, number: int) -> None:
    """What is older than two billion transactions must be frozen before, in every database."""
    address = scratch.on_database
    arena.forget_connection()
    await arena.client.close()
    async with asyncpg.create_pool(arena.server.url.reveal(), min_size=1, max_size=1) as pool:
        await pool.execute("update pg_database set datallowconn = true")
        names = [row[0] for row in await pool.fetch("select datname from pg_database")]
    for name in names:
        connection = await asyncpg.connect(address(arena.server.url, name).reveal())
        await connection.execute("vacuum freeze")
        await connection.close()
    arena.server.stop()
    arena.server.skip_to_transaction(number)
    arena.server.start()
    await arena.server.ready()


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


async def _upgrades(arena: Arena, dose: Dose) -> dict[str, object]:
    """A rolling upgrade again and again: every function is replaced, then one worker after the other."""
    await arena.at_least(FLEET, *arena.few)
    async with fed(arena, dose.tasks, 100):
        for number in arena.faults(dose.faults):
            await arena.at_work()
            for files in (_another(number), schema.packaged()):
                applied = await install.migrate(arena.url, arena.settings, files=files)
                assert applied.functions, "nothing was replaced"
            for pid in list(arena.alive):
                arena.send(pid, signal.SIGTERM)
                await arena.worker(*arena.few)
                await arena.at_it_again()
                await arena.gone(pid)
    await arena.drained(300)
    async with arena.connection() as connection:
        charged = await connection.fetchval(
            "select count(*) from holdfast.attempts where outcome <> 'released'"
        )
    if charged:
        raise AssertionError(f"{charged} attempts were charged to tasks, of which none ever fails")
    return {"upgrades": dose.faults, "workers replaced": dose.faults * FLEET}


def _another(number: int) -> SchemaFiles:
    packaged = schema.packaged()
    note = FunctionFile("zz_note.sql", f"select {number};\n")
    return SchemaFiles(packaged.migrations, (*packaged.functions, note))


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
    Run("upgrades", "functions replaced and workers restarted in turn, under load", _upgrades, Dose(400, 3),
        Dose(20_000, 200), (i4_no_overlap,)),
    Run("xids", "transaction numbers beyond 2^31 and 2^32", _xids, Dose(400, 8), Dose(8_000, 400),
        (i4_no_overlap,)),
    Run("pinned", "an old snapshot is held while workers die", _pinned, Dose(600, 8), Dose(50_000, 500),
        (i4_no_overlap, i12_taken_over)),
    Run("full", "the server's disk is full for a while; needs root", _full, Dose(300, 3), Dose(5_000, 50),
        (i4_no_overlap,), options=(("max_wal_size", "64MB"), ("min_wal_size", "32MB")), small_disk=True),
]  # fmt: skip
