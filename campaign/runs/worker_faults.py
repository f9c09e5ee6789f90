"""Fault runs of workers: killed, frozen, cut off from the database."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import asyncpg

from campaign import app, pooler
from campaign.checker import check_i4_no_overlap, check_i12_takeover_in_time
from campaign.environment import FaultEnvironment
from campaign.proxy import Direction, FaultProxy, replace_port
from campaign.runs import FaultDose, FaultRun
from holdfast import Call, Client
from holdfast.errors import HoldfastError

WORKER_COUNT = 3
SUBMIT_BATCH_SIZE = 20
MAX_WAITING_TASKS = 200
REPEATING_CLIENT_COUNT = 4
TWO_SLOTS_OPTIONS = (
    "--concurrency",
    "2",
)  # each task of a dead worker runs again in its own process
MIN_KEYED_NUMBER = 1_000_000_000  # tasks from this number on have an idempotency key
COUNT_DUPLICATE_KEYS = """select count(*) from (
  select from holdfast.history where (args ->> 'number')::bigint >= $1
  group by args ->> 'number' having count(*) > 1) as t"""
CUT_DIRECTIONS: list[tuple[Direction, ...]] = [("up",), ("down",), ("up", "down")]

# Builds the call of a task from its number and its duration in milliseconds.
CallBuilder = Callable[[int, int], Call[int]]


@asynccontextmanager
async def submit_load(
    env: FaultEnvironment, tasks: int, max_task_ms: int = 40, build_call: CallBuilder = app.work
) -> AsyncGenerator[None]:
    """Submit tasks while the block runs, and until `tasks` tasks were submitted."""
    enough_submitted = asyncio.Event()
    feeding = asyncio.create_task(_submit_until_enough(env, tasks, max_task_ms, build_call, enough_submitted))
    try:
        yield
    finally:
        enough_submitted.set()
    await feeding


async def _submit_until_enough(
    env: FaultEnvironment,
    tasks: int,
    max_task_ms: int,
    build_call: CallBuilder,
    enough_submitted: asyncio.Event,
) -> None:
    """Submit batches of tasks. A batch that was not acknowledged may exist or not."""
    number = 0
    while (number < tasks and list(env.iterate_faults(1))) or not enough_submitted.is_set():
        try:
            if await env.count_unfinished() > MAX_WAITING_TASKS:
                await env.keep_workers_running(1, *env.small_worker_options)
                await asyncio.sleep(0.02)
                continue
            lengths = [env.random.randint(0, max_task_ms) for _ in range(SUBMIT_BATCH_SIZE)]
            await env.submit([build_call(number + n, ms) for n, ms in enumerate(lengths)])
        except (HoldfastError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await asyncio.sleep(0.05)
            continue
        number += SUBMIT_BATCH_SIZE


async def _run_kills(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Kill workers at random times. One kill in three also kills the heartbeat process."""
    for _ in range(2 * WORKER_COUNT):
        await env.start_worker(*TWO_SLOTS_OPTIONS)
    async with submit_load(env, dose.tasks, 100):
        for _ in env.iterate_faults(dose.faults):
            await asyncio.sleep(env.random.uniform(0.0, 0.1))
            env.kill_worker(await env.pick_busy_worker(), with_children=env.random.random() < 1 / 3)
            await env.start_worker(*TWO_SLOTS_OPTIONS)
    await env.wait_until_drained(300)
    return {}


async def _run_pooled(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Kill workers behind PgBouncer in transaction mode, with fewer connections than workers."""
    with pooler.start_pooler(env.url, env.folder / "pooler", "transaction", 12) as env.worker_url:
        facts = await _run_kills(env, dose)
        await env.stop_workers()
    return facts


async def _run_zombies(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Freeze busy workers, several at a time, for less or more than a lease."""
    frozen_at_once = 10
    for _ in range(frozen_at_once + WORKER_COUNT):
        await env.start_worker(*env.small_worker_options)
    freeze_slots = asyncio.Semaphore(frozen_at_once)
    frozen: set[int] = set()
    times = 0

    async def freeze_worker(seconds: float) -> None:
        nonlocal times
        async with freeze_slots:
            if not list(env.iterate_faults(1)):
                return
            times += 1
            victim = await env.pick_busy_worker(frozen)
            frozen.add(victim)
            env.send_signal(victim, signal.SIGSTOP)
            await asyncio.sleep(seconds)
            env.send_signal(victim, signal.SIGCONT)
            await asyncio.sleep(0.2)
            frozen.discard(victim)

    async with submit_load(env, dose.tasks, 1500):
        await asyncio.gather(*(freeze_worker(env.random.uniform(0.1, 4.0)) for _ in range(dose.faults)))
    await env.wait_until_drained(300)
    return {"frozen": times}


async def _run_partitions(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Cut off workers that each have their own network. One worker always reaches the server."""
    await env.start_worker(*env.small_worker_options)
    proxies = [await _start_worker_behind_proxy(env) for _ in range(min(5, dose.faults))]
    env.worker_url = None
    shares = [dose.faults // len(proxies) + (n < dose.faults % len(proxies)) for n in range(len(proxies))]

    done = 0

    async def cut_off_worker(proxy: FaultProxy, times: int) -> None:
        nonlocal done
        for _ in env.iterate_faults(times):
            done += 1
            await asyncio.sleep(env.random.uniform(0.3, 1.0))
            proxy.hold_directions(*env.random.choice(CUT_DIRECTIONS))
            await asyncio.sleep(env.random.uniform(0.5, 5.0))
            proxy.release_directions()

    async with submit_load(env, dose.tasks, 1000):
        while not all(env.has_started_task(pid) for pid in env.live_workers):
            await asyncio.sleep(0.05)
        await asyncio.gather(
            *(cut_off_worker(proxy, times) for proxy, times in zip(proxies, shares, strict=True))
        )
    await env.wait_until_drained(300)
    for proxy in proxies:
        await proxy.stop()
    return {"partitions": done}


async def _start_worker_behind_proxy(env: FaultEnvironment) -> FaultProxy:
    """Start a worker that reaches the server through its own proxy."""
    proxy = await _start_proxy(env)
    await env.start_worker(*env.small_worker_options)
    return proxy


async def _start_proxy(env: FaultEnvironment) -> FaultProxy:
    proxy = FaultProxy("127.0.0.1", env.server.port, env.random)
    await proxy.start()
    env.worker_url = replace_port(env.url, proxy.listen_port)
    return proxy


async def _run_replies(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Drop one response in ten. Clients submit again with the same key until they get a response."""
    proxy = await _start_proxy(env)
    proxy.reply_drop_rate = 0.1
    fleet = min(20, 4 + dose.faults // 50)
    enough_submitted = asyncio.Event()
    async with submit_load(env, dose.tasks):
        submitters = [
            asyncio.create_task(_submit_until_acknowledged(env, number, enough_submitted))
            for number in range(REPEATING_CLIENT_COUNT)
        ]
        while proxy.dropped_replies < dose.faults and list(env.iterate_faults(1)):
            await env.keep_workers_running(
                fleet, *env.small_worker_options
            )  # a worker that loses its first responses exits
            await asyncio.sleep(0.1)
        proxy.reply_drop_rate = 0.0
        enough_submitted.set()
        repeats = sum(await asyncio.gather(*submitters))
    await env.wait_until_drained(300)
    await proxy.stop()
    async with env.open_connection() as connection:
        double_keys = await connection.fetchval(COUNT_DUPLICATE_KEYS, MIN_KEYED_NUMBER)
    if double_keys:
        raise AssertionError(f"{double_keys} keys made more than one job")
    return {"cut replies": proxy.dropped_replies, "submits repeated": repeats}


async def _submit_until_acknowledged(
    env: FaultEnvironment, number: int, enough_submitted: asyncio.Event
) -> int:
    """Submit jobs one after the other, each until it is acknowledged. Return the number of repeats."""
    assert env.worker_url is not None
    repeated = 0
    async with Client(env.worker_url.reveal(), settings=env.settings) as client:
        count = 0
        while not enough_submitted.is_set():
            try:
                call = app.work(MIN_KEYED_NUMBER * (number + 1) + count, 5)
                handle = await client.submit(call, key=f"repeated-{number}-{count}")
            except (HoldfastError, OSError):
                repeated += 1
                continue
            env.recorder.write_line("acknowledged", str(handle.id))
            count += 1
            await asyncio.sleep(0.05)
    return repeated


FAULT_RUNS = [
    FaultRun(
        "kills",
        "workers killed with -9 at random instants",
        _run_kills,
        FaultDose(20_000, 1_000),
        FaultDose(60_000, 6_000),
        (check_i4_no_overlap, check_i12_takeover_in_time),
        tiny=FaultDose(400, 25),
    ),
    FaultRun(
        "pooled",
        "the same, with PgBouncer between",
        _run_pooled,
        FaultDose(300, 15),
        FaultDose(40_000, 4_000),
        (check_i4_no_overlap, check_i12_takeover_in_time),
    ),
    FaultRun(
        "zombies", "workers stopped and continued", _run_zombies, FaultDose(300, 12), FaultDose(20_000, 2_000)
    ),
    FaultRun(
        "partitions",
        "the network between a worker and the server holds everything back",
        _run_partitions,
        FaultDose(400, 4),
        FaultDose(20_000, 500),
        (check_i4_no_overlap,),
    ),
    FaultRun(
        "replies",
        "answers lost on their way, after the statement has happened",
        _run_replies,
        FaultDose(200, 30),
        FaultDose(100_000, 10_000),
        (check_i4_no_overlap,),
    ),
]
