"""Storms of ordinary work while workers are killed: cancels, graphs, batches, limits, keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

from campaign import app
from campaign.arena import Arena
from campaign.checker import i4_no_overlap, i6_children_after_parents, i8_limits
from campaign.runs import Dose, Run
from campaign.runs.workers import FLEET, fed
from holdfast import Graph
from holdfast.errors import ConflictError


@asynccontextmanager
async def killing(arena: Arena, faults: int) -> AsyncGenerator[None]:
    """Workers are killed and replaced while the block goes on, or until the dose is given."""
    dying = asyncio.create_task(_killing(arena, faults))
    try:
        yield
    finally:
        dying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await dying


async def _killing(arena: Arena, faults: int) -> None:
    for _ in arena.faults(faults):
        await asyncio.sleep(arena.random.uniform(0.05, 0.2))
        arena.kill(await arena.at_work(), family=arena.random.random() < 1 / 3)
        await arena.worker(*arena.few)


async def _cancels(arena: Arena, dose: Dose) -> dict[str, object]:
    for _ in range(FLEET):
        await arena.worker()
    told: Counter[str] = Counter()
    async with killing(arena, dose.faults):
        for start in range(0, dose.tasks, 20):
            lengths = [arena.random.randint(0, 60) for _ in range(20)]
            ids = await arena.submit([app.work(start + n, ms) for n, ms in enumerate(lengths)])
            await asyncio.sleep(arena.random.uniform(0, 0.05))
            chosen = [task for task in ids if arena.random.random() < 0.5]
            answers = await asyncio.gather(*(arena.client.cancel(UUID(task)) for task in chosen))
            for task, job in zip(chosen, answers, strict=True):
                arena.recorder.write("told", task, note=job.status)
                told[job.status] += 1
        await arena.drained(300)
    return {"told": dict(told)}


async def _graphs(arena: Arena, dose: Dose) -> dict[str, object]:
    for _ in range(FLEET):
        await arena.worker()
    async with killing(arena, dose.faults):
        for number in range(dose.tasks):
            handle = await arena.client.submit(_graph(arena, number))
            arena.recorder.write("acknowledged", str(handle.id))
        await arena.drained(300)
    return {"graphs": dose.tasks}


def _graph(arena: Arena, number: int) -> Graph:
    """A few layers; every node waits for some of the layer before."""
    graph = Graph(f"graph-{number}")
    before = [
        graph.add(app.step(f"{number}.0.{n}", 2), name=f"0.{n}") for n in range(arena.random.randint(1, 4))
    ]
    for layer in range(1, arena.random.randint(2, 4)):
        before = [
            graph.add(
                app.step(f"{number}.{layer}.{n}", arena.random.randint(0, 10)),
                name=f"{layer}.{n}",
                after=arena.random.sample(before, arena.random.randint(1, len(before))),
            )
            for n in range(arena.random.randint(1, 4))
        ]
    return graph


async def _limits(arena: Arena, dose: Dose) -> dict[str, object]:
    async with arena.connection() as connection:
        await connection.execute(
            "select holdfast.put_limit('keys', p_type => 'keyed', p_per_key => true, p_max_running => 2)"
        )
    for _ in range(FLEET):
        await arena.worker()
    async with killing(arena, dose.faults):
        for _ in range(0, dose.tasks, 4 * len(LIMITED)):
            for key in LIMITED:
                calls = [app.keyed(key, arena.random.randint(0, 30)) for _ in range(4)]
                await arena.submit(calls, limit_key=key)
        await arena.drained(300)
    arena.known["limits"] = dict.fromkeys(LIMITED, 2)
    return {}


LIMITED = ("a", "b", "c", "d", "e")


async def _unique(arena: Arena, dose: Dose) -> dict[str, object]:
    """Many clients submit under the same keys at once; each key is one job."""
    await arena.worker()
    got: dict[str, set[UUID]] = {}
    conflicts = 0

    async def one(key: str, number: int) -> None:
        nonlocal conflicts
        try:
            handle = await arena.client.submit(app.work(number), key=key)
        except ConflictError:
            conflicts += 1
            return
        got.setdefault(key, set()).add(handle.id)
        arena.recorder.write("acknowledged", str(handle.id))

    for key in range(dose.tasks):
        await asyncio.gather(*(one(f"key-{key}", 7) for _ in range(dose.faults)))
    double = {key: ids for key, ids in got.items() if len(ids) != 1}
    await arena.drained(120)
    if double:
        raise AssertionError(f"keys with more than one job: {double}")
    if conflicts:
        raise AssertionError(f"{conflicts} submits of the same body were refused")
    return {"keys": len(got)}


async def _mixed(arena: Arena, dose: Dose) -> dict[str, object]:
    """Everything that takes locks, at once; PostgreSQL must not find a deadlock."""
    for _ in range(FLEET):
        await arena.worker()
    done = asyncio.Event()

    async def keeper() -> None:
        while not done.is_set():
            async with arena.connection() as connection:
                await connection.execute("select holdfast.tick()")
            await asyncio.sleep(0.01)

    async with fed(arena, dose.tasks):
        keeping = asyncio.create_task(keeper())
        for number in range(dose.faults):
            handle = await arena.client.submit(_graph(arena, number))
            if number % 3 == 0:
                await handle.cancel()
        done.set()
        await keeping
    await arena.drained(300)
    async with arena.connection() as connection:
        deadlocks = await connection.fetchval(
            "select deadlocks from pg_stat_database where datname = current_database()"
        )
    if deadlocks:
        raise AssertionError(f"{deadlocks} deadlocks")
    return {"deadlocks": deadlocks}


RUNS = [
    Run(
        "cancels",
        "jobs cancelled while they run and workers die",
        _cancels,
        Dose(300, 8),
        Dose(20_000, 1_000),
        (i4_no_overlap,),
    ),
    Run(
        "graphs",
        "graphs of tasks while workers die",
        _graphs,
        Dose(40, 10),
        Dose(5_000, 1_000),
        (i4_no_overlap, i6_children_after_parents),
    ),
    Run(
        "limits",
        "limits per key while workers die",
        _limits,
        Dose(200, 8),
        Dose(10_000, 1_000),
        (i4_no_overlap, i8_limits),
    ),
    Run("unique", "the same keys from many clients at once", _unique, Dose(30, 16), Dose(10_000, 64)),
    Run("mixed", "everything that takes locks, at once", _mixed, Dose(400, 60), Dose(50_000, 5_000)),
]
