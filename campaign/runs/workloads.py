"""Fault runs of workloads while workers die: cancels, graphs, limits, idempotency keys, all at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

from campaign import app
from campaign.checker import check_i4_no_overlap, check_i6_children_after_parents, check_i8_limits
from campaign.environment import FaultEnvironment
from campaign.runs import FaultDose, FaultRun
from campaign.runs.worker_faults import WORKER_COUNT, submit_load
from holdfast import Graph
from holdfast.errors import ConflictError


@asynccontextmanager
async def kill_workers(env: FaultEnvironment, faults: int) -> AsyncGenerator[None]:
    """Kill and replace workers while the block runs, up to `faults` kills."""
    kills = asyncio.create_task(_kill_and_replace(env, faults))
    try:
        yield
    finally:
        kills.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await kills


async def _kill_and_replace(env: FaultEnvironment, faults: int) -> None:
    for _ in env.iterate_faults(faults):
        await asyncio.sleep(env.random.uniform(0.05, 0.2))
        env.kill_worker(await env.pick_busy_worker(), with_children=env.random.random() < 1 / 3)
        await env.start_worker(*env.small_worker_options)


async def _run_cancels(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    for _ in range(WORKER_COUNT):
        await env.start_worker()
    answers: Counter[str] = Counter()
    async with kill_workers(env, dose.faults):
        for start in range(0, dose.tasks, 20):
            lengths = [env.random.randint(0, 60) for _ in range(20)]
            ids = await env.submit([app.work(start + n, ms) for n, ms in enumerate(lengths)])
            await asyncio.sleep(env.random.uniform(0, 0.05))
            chosen = [task for task in ids if env.random.random() < 0.5]
            jobs = await asyncio.gather(*(env.client.cancel(UUID(task)) for task in chosen))
            for task, job in zip(chosen, jobs, strict=True):
                env.recorder.write_line("cancel-answer", task, note=job.status)
                answers[job.status] += 1
        await env.wait_until_drained(300)
    return {"answers": dict(answers)}


async def _run_graphs(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    for _ in range(WORKER_COUNT):
        await env.start_worker()
    async with kill_workers(env, dose.faults):
        for number in range(dose.tasks):
            handle = await env.client.submit(_build_graph(env, number))
            env.recorder.write_line("acknowledged", str(handle.id))
        await env.wait_until_drained(300)
    return {"graphs": dose.tasks}


def _build_graph(env: FaultEnvironment, number: int) -> Graph:
    """Build a graph of a few layers. Every node waits for some nodes of the previous layer."""
    graph = Graph(f"graph-{number}")
    before = [
        graph.add(app.step(f"{number}.0.{n}", 2), name=f"0.{n}") for n in range(env.random.randint(1, 4))
    ]
    for layer in range(1, env.random.randint(2, 4)):
        before = [
            graph.add(
                app.step(f"{number}.{layer}.{n}", env.random.randint(0, 10)),
                name=f"{layer}.{n}",
                after=env.random.sample(before, env.random.randint(1, len(before))),
            )
            for n in range(env.random.randint(1, 4))
        ]
    return graph


async def _run_limits(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    async with env.open_connection() as connection:
        await connection.execute(
            "select holdfast.put_limit('keys', p_type => 'keyed', p_per_key => true, p_max_running => 2)"
        )
    for _ in range(WORKER_COUNT):
        await env.start_worker()
    async with kill_workers(env, dose.faults):
        for _ in range(0, dose.tasks, 4 * len(LIMITED_KEYS)):
            for key in LIMITED_KEYS:
                calls = [app.keyed(key, env.random.randint(0, 30)) for _ in range(4)]
                await env.submit(calls, limit_key=key)
        await env.wait_until_drained(300)
    env.checker_inputs["limits"] = dict.fromkeys(LIMITED_KEYS, 2)
    return {}


LIMITED_KEYS = ("a", "b", "c", "d", "e")


async def _run_unique(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Let many clients submit with the same keys at once. Each key must create one job."""
    await env.start_worker()
    job_ids: dict[str, set[UUID]] = {}
    conflicts = 0

    async def submit_with_key(key: str, number: int) -> None:
        nonlocal conflicts
        try:
            handle = await env.client.submit(app.work(number), key=key)
        except ConflictError:
            conflicts += 1
            return
        job_ids.setdefault(key, set()).add(handle.id)
        env.recorder.write_line("acknowledged", str(handle.id))

    for key in range(dose.tasks):
        await asyncio.gather(*(submit_with_key(f"key-{key}", 7) for _ in range(dose.faults)))
    double = {key: ids for key, ids in job_ids.items() if len(ids) != 1}
    await env.wait_until_drained(120)
    if double:
        raise AssertionError(f"keys with more than one job: {double}")
    if conflicts:
        raise AssertionError(f"{conflicts} submits with the same body were refused")
    return {"keys": len(job_ids)}


async def _run_mixed(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Run everything that takes locks at once. PostgreSQL must not report a deadlock."""
    for _ in range(WORKER_COUNT):
        await env.start_worker()
    done = asyncio.Event()

    async def run_ticks() -> None:
        while not done.is_set():
            async with env.open_connection() as connection:
                await connection.execute("select holdfast.tick()")
            await asyncio.sleep(0.01)

    async with submit_load(env, dose.tasks):
        ticking = asyncio.create_task(run_ticks())
        for number in range(dose.faults):
            handle = await env.client.submit(_build_graph(env, number))
            if number % 3 == 0:
                await handle.cancel()
        done.set()
        await ticking
    await env.wait_until_drained(300)
    async with env.open_connection() as connection:
        deadlocks = await connection.fetchval(
            "select deadlocks from pg_stat_database where datname = current_database()"
        )
    if deadlocks:
        raise AssertionError(f"{deadlocks} deadlocks")
    return {"deadlocks": deadlocks}


FAULT_RUNS = [
    FaultRun(
        "cancels",
        "jobs cancelled while they run and workers die",
        _run_cancels,
        FaultDose(300, 8),
        FaultDose(20_000, 1_000),
        (check_i4_no_overlap,),
    ),
    FaultRun(
        "graphs",
        "graphs of tasks while workers die",
        _run_graphs,
        FaultDose(40, 10),
        FaultDose(5_000, 1_000),
        (check_i4_no_overlap, check_i6_children_after_parents),
    ),
    FaultRun(
        "limits",
        "limits per key while workers die",
        _run_limits,
        FaultDose(200, 8),
        FaultDose(10_000, 1_000),
        (check_i4_no_overlap, check_i8_limits),
    ),
    FaultRun(
        "unique",
        "the same keys from many clients at once",
        _run_unique,
        FaultDose(30, 16),
        FaultDose(10_000, 64),
    ),
    FaultRun(
        "mixed",
        "everything that takes locks, at once",
        _run_mixed,
        FaultDose(400, 60),
        FaultDose(50_000, 5_000),
    ),
]
