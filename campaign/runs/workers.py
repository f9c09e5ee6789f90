"""Harm done to workers: killed, frozen, cut off from the database."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import asyncpg

from campaign import app, pooler
from campaign.arena import Arena
from campaign.checker import i4_no_overlap, i12_taken_over
from campaign.proxy import Direction, Proxy, through
from campaign.runs import Dose, Run
from holdfast import Client
from holdfast.errors import HoldfastError

FLEET = 3
BATCH = 20
BACKLOG = 200
CLIENTS = 4
TWO = ("--concurrency", "2")  # what a dead worker held runs alone, in a process each: the cost of a kill
ASKED = 1_000_000_000  # numbers of tasks from here on are asked for under a key each
DOUBLE_KEYS = """select count(*) from (
  select from holdfast.history where (args ->> 'number')::bigint >= $1
  group by args ->> 'number' having count(*) > 1) as t"""
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
    while (number < tasks and list(arena.faults(1))) or not enough.is_set():
        try:
            if await arena.unfinished() > BACKLOG:
                await arena.at_least(1, *arena.few)
                await asyncio.sleep(0.02)
                continue
            lengths = [arena.random.randint(0, longest_ms) for _ in range(BATCH)]
            await arena.submit([app.work(number + n, ms) for n, ms in enumerate(lengths)])
        except (HoldfastError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await asyncio.sleep(0.05)
            continue
        number += BATCH


async def _kills(arena: Arena, dose: Dose) -> dict[str, object]:
    """One in three takes the process along that renews leases: then they run out, else they are handed in."""
    for _ in range(2 * FLEET):
        await arena.worker(*TWO)
    async with fed(arena, dose.tasks, 100):
        for _ in arena.faults(dose.faults):
            await asyncio.sleep(arena.random.uniform(0.0, 0.1))
            arena.kill(await arena.at_work(), family=arena.random.random() < 1 / 3)
            await arena.worker(*TWO)
    await arena.drained(300)
    return {}


async def _pooled(arena: Arena, dose: Dose) -> dict[str, object]:
    """The same behind PgBouncer in transaction mode, with fewer connections than the workers ask for."""
    with pooler.pooled(arena.url, arena.folder / "pooler", "transaction", 12) as arena.through:
        told = await _kills(arena, dose)
        await arena.stop_workers()
    return told


async def _zombies(arena: Arena, dose: Dose) -> dict[str, object]:
    """Several are frozen at a time, for less or more than a lease, with work in their hands."""
    frozen_at_once = 10
    for _ in range(frozen_at_once + FLEET):
        await arena.worker(*arena.few)
    at_work = asyncio.Semaphore(frozen_at_once)
    frozen: set[int] = set()
    times = 0

    async def freeze(seconds: float) -> None:
        nonlocal times
        async with at_work:
            if not list(arena.faults(1)):
                return
            times += 1
            victim = await arena.at_work(frozen)
            frozen.add(victim)
            arena.send(victim, signal.SIGSTOP)
            await asyncio.sleep(seconds)
            arena.send(victim, signal.SIGCONT)
            await asyncio.sleep(0.2)
            frozen.discard(victim)

    async with fed(arena, dose.tasks, 1500):
        await asyncio.gather(*(freeze(arena.random.uniform(0.1, 4.0)) for _ in range(dose.faults)))
    await arena.drained(300)
    return {"frozen": times}


async def _partitions(arena: Arena, dose: Dose) -> dict[str, object]:
    """Workers behind a network of their own each, cut off at different times; one sees the server always."""
    await arena.worker(*arena.few)
    proxies = [await _behind(arena) for _ in range(min(5, dose.faults))]
    arena.through = None
    shares = [dose.faults // len(proxies) + (n < dose.faults % len(proxies)) for n in range(len(proxies))]

    done = 0

    async def cut(proxy: Proxy, times: int) -> None:
        nonlocal done
        for _ in arena.faults(times):
            done += 1
            await asyncio.sleep(arena.random.uniform(0.3, 1.0))
            proxy.hold(*arena.random.choice(WAYS))
            await asyncio.sleep(arena.random.uniform(0.5, 5.0))
            proxy.release()

    async with fed(arena, dose.tasks, 1000):
        while not all(arena.has_begun(pid) for pid in arena.alive):
            await asyncio.sleep(0.05)
        await asyncio.gather(*(cut(proxy, times) for proxy, times in zip(proxies, shares, strict=True)))
    await arena.drained(300)
    for proxy in proxies:
        await proxy.stop()
    return {"partitions": done}


async def _behind(arena: Arena) -> Proxy:
    """A worker that reaches the server through a proxy of its own."""
    proxy = await _between(arena)
    await arena.worker(*arena.few)
    return proxy


async def _between(arena: Arena) -> Proxy:
    proxy = Proxy("127.0.0.1", arena.server.port, arena.random)
    await proxy.start()
    arena.through = through(arena.url, proxy.own_port)
    return proxy


async def _replies(arena: Arena, dose: Dose) -> dict[str, object]:
    """Workers and clients lose one answer in ten. Clients ask again under the same key until told."""
    proxy = await _between(arena)
    proxy.cut_replies = 0.1
    fleet = min(20, 4 + dose.faults // 50)
    enough = asyncio.Event()
    async with fed(arena, dose.tasks):
        asking = [asyncio.create_task(_ask_again(arena, number, enough)) for number in range(CLIENTS)]
        while proxy.cuts < dose.faults and list(arena.faults(1)):
            await arena.at_least(fleet, *arena.few)  # one that loses its very first answers gives up
            await asyncio.sleep(0.1)
        proxy.cut_replies = 0.0
        enough.set()
        again = sum(await asyncio.gather(*asking))
    await arena.drained(300)
    await proxy.stop()
    async with arena.connection() as connection:
        twice = await connection.fetchval(DOUBLE_KEYS, ASKED)
    if twice:
        raise AssertionError(f"{twice} keys made more than one job")
    return {"cut replies": proxy.cuts, "submits repeated": again}


async def _ask_again(arena: Arena, number: int, enough: asyncio.Event) -> int:
    """Submits one after the other, each as often as it takes to be told."""
    assert arena.through is not None
    repeated = 0
    async with Client(arena.through.reveal(), settings=arena.settings) as client:
        count = 0
        while not enough.is_set():
            try:
                call = app.work(ASKED * (number + 1) + count, 5)
                handle = await client.submit(call, key=f"asked-{number}-{count}")
            except (HoldfastError, OSError):
                repeated += 1
                continue
            arena.recorder.write("acknowledged", str(handle.id))
            count += 1
            await asyncio.sleep(0.05)
    return repeated


RUNS = [
    Run(
        "kills",
        "workers killed with -9 at random instants",
        _kills,
        Dose(20_000, 1_000),
        Dose(60_000, 6_000),
        (i4_no_overlap, i12_taken_over),
        tiny=Dose(400, 25),
    ),
    Run(
        "pooled",
        "the same, with PgBouncer between",
        _pooled,
        Dose(300, 15),
        Dose(40_000, 4_000),
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
