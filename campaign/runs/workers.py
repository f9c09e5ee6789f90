"""Harm done to workers: killed, frozen, cut off from the database."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from campaign import app
from campaign.arena import Arena
from campaign.checker import i4_no_overlap, i12_taken_over
from campaign.proxy import Direction, Proxy, through
from campaign.runs import Dose, Run
from holdfast.errors import HoldfastError

FLEET = 3
BATCH = 20
BACKLOG = 200
WAYS: list[tuple[Direction, ...]] = [("up",), ("down",), ("up", "down")]


@asynccontextmanager
async def fed(arena: Arena, tasks: int, longest_ms: int = 40) -> AsyncGenerator[None]:
    """Keep workers supplied for as long as the block takes, and until `tasks` have been submitted."""
    enough = asyncio.Event()
    feeding = asyncio.create_task(_feed(arena, tasks, longest_ms, enough))
    try:
        yield
    finally:
        enough.set()
    await feeding


async def _feed(arena: Arena, tasks: int, longest_ms: int, enough: asyncio.Event) -> None:
    """What was not acknowledged, because the server is away just now, may exist or not."""
    number = 0
    while number < tasks or not enough.is_set():
        try:
            if await arena.unfinished() > BACKLOG:
                await asyncio.sleep(0.02)
                continue
            lengths = [arena.random.randint(0, longest_ms) for _ in range(BATCH)]
            await arena.submit([app.work(number + n, ms) for n, ms in enumerate(lengths)])
        except (HoldfastError, OSError):
            await asyncio.sleep(0.05)
            continue
        number += BATCH


async def _kills(arena: Arena, dose: Dose) -> dict[str, object]:
    for _ in range(FLEET):
        await arena.worker()
    async with fed(arena, dose.tasks):
        for _ in range(dose.faults):
            await asyncio.sleep(arena.random.uniform(0.0, 0.3))
            arena.kill(await arena.at_work())
            await arena.worker()
    await arena.drained(300)
    return {}


async def _zombies(arena: Arena, dose: Dose) -> dict[str, object]:
    """Several are frozen at a time, for less or more than a lease, with work in their hands."""
    for _ in range(FLEET + 2):
        await arena.worker()
    at_work = asyncio.Semaphore(FLEET)
    frozen: set[int] = set()

    async def freeze(seconds: float) -> None:
        async with at_work:
            victim = arena.random.choice(sorted(arena.alive - frozen))
            frozen.add(victim)
            arena.send(victim, signal.SIGSTOP)
            await asyncio.sleep(seconds)
            arena.send(victim, signal.SIGCONT)
            frozen.discard(victim)
            await asyncio.sleep(0.2)

    async with fed(arena, dose.tasks, 1500):
        await asyncio.gather(*(freeze(arena.random.uniform(0.1, 4.0)) for _ in range(dose.faults)))
    await arena.drained(300)
    return {"frozen": dose.faults}


async def _partitions(arena: Arena, dose: Dose) -> dict[str, object]:
    proxy = await _between(arena)
    await arena.worker()
    arena.through, behind = None, arena.through  # the others see the server directly, and take over
    await arena.worker()
    async with fed(arena, dose.tasks, 1000):
        for _ in range(dose.faults):
            await asyncio.sleep(arena.random.uniform(0.3, 1.0))
            proxy.hold(*arena.random.choice(WAYS))
            await asyncio.sleep(arena.random.uniform(0.5, 5.0))
            proxy.release()
    arena.through = behind
    await arena.drained(300)
    await proxy.stop()
    return {}


async def _between(arena: Arena) -> Proxy:
    proxy = Proxy("127.0.0.1", arena.server.port, arena.random)
    await proxy.start()
    arena.through = through(arena.url, proxy.own_port)
    return proxy


async def _replies(arena: Arena, dose: Dose) -> dict[str, object]:
    proxy = await _between(arena)
    proxy.cut_replies = 0.1
    for _ in range(FLEET):
        await arena.worker("--concurrency", "4")
    async with fed(arena, dose.tasks):
        while proxy.cuts < dose.faults:
            await asyncio.sleep(0.02)
    proxy.cut_replies = 0.0
    await arena.drained(300)
    await proxy.stop()
    return {"cut replies": proxy.cuts}


RUNS = [
    Run(
        "kills",
        "workers killed with -9 at random instants",
        _kills,
        Dose(400, 25),
        Dose(100_000, 10_000),
        (i4_no_overlap, i12_taken_over),
    ),
    Run("zombies", "workers stopped and continued", _zombies, Dose(300, 12), Dose(20_000, 2_000)),
    Run(
        "partitions",
        "the network between a worker and the server holds everything back",
        _partitions,
        Dose(400, 4),
        Dose(20_000, 500),
        (i4_no_overlap,),
    ),
    Run(
        "replies",
        "answers lost on their way, after the statement has happened",
        _replies,
        Dose(200, 30),
        Dose(100_000, 10_000),
        (i4_no_overlap,),
    ),
]
