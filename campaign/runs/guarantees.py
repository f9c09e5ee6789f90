"""Fault runs of guarantees while workers die: schedule ticks, callbacks, quotas, crashing tasks."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from datetime import timedelta

from campaign import app
from campaign.checker import (
    check_i4_no_overlap,
    check_i7_one_callback,
    check_i9_one_job_per_tick,
    check_i11_quotas,
)
from campaign.environment import FaultEnvironment
from campaign.runs import FaultDose, FaultRun
from campaign.runs.worker_faults import WORKER_COUNT
from campaign.runs.workloads import kill_workers
from holdfast import schedule
from holdfast.engine import quotas, schedules
from holdfast.errors import HoldfastError

ONE_SECOND = timedelta(seconds=1)
MAX_PARALLEL_BATCHES = 20
MAX_CRASHES_PER_TASK = 3  # of a task
SELECT_TICKS = """select labels ->> 'schedule' as name, labels ->> 'schedule_at' as at from holdfast.history
  where labels ? 'schedule'"""


async def _run_schedules(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Run schedules that tick every second, kill workers, and stop the server long enough to miss ticks."""
    async with env.open_connection() as connection:
        for number in range(dose.tasks):
            missed = ("catch_up", "coalesce", "skip")[number % 3]
            new_schedule = schedule(
                app.work(number), every=ONE_SECOND, name=f"{missed}-{number}", max_catch_up=1000
            )
            await schedules.put_schedule(connection, {**new_schedule.build_request(), "missed": missed})
    for _ in range(WORKER_COUNT):
        await env.start_worker(*env.small_worker_options)
    async with kill_workers(env, dose.faults):
        for _ in env.iterate_faults(max(2, dose.faults // 10)):
            await asyncio.sleep(env.random.uniform(2.0, 4.0))
            env.server.crash()
            await asyncio.sleep(env.random.uniform(0.5, 4.0))
            env.server.start()
            await env.server.wait_until_ready()
    async with env.open_connection() as connection:
        await connection.execute("select holdfast.pause_schedule(name) from holdfast.schedules")
    await env.wait_until_drained(300)
    async with env.open_connection() as connection:
        ticks = Counter((row["name"], row["at"]) for row in await connection.fetch(SELECT_TICKS))
    env.checker_inputs["ticks"] = ticks
    return {"schedules": dose.tasks, "ticks": len(ticks)}


async def _run_batches(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Run many batches at once. Close them before, while and after their jobs end."""
    for _ in range(WORKER_COUNT):
        await env.start_worker(*env.small_worker_options)
    batches: dict[str, list[str]] = {}

    async def run_batch(number: int) -> None:
        batch = await env.client.batches.open(then=app.batch_callback(number))
        members: list[str] = []
        for _ in range(env.random.randint(1, 3)):
            calls = [app.work(n, env.random.randint(0, 40)) for n in range(env.random.randint(1, 4))]
            members += [str(handle.id) for handle in await batch.submit_many(calls)]
            await asyncio.sleep(env.random.uniform(0.0, 0.3))
        await batch.close()
        batches[f"callback {number}"] = members

    async with kill_workers(env, dose.faults):
        for start in range(0, dose.tasks, MAX_PARALLEL_BATCHES):
            await asyncio.gather(
                *(run_batch(n) for n in range(start, min(start + MAX_PARALLEL_BATCHES, dose.tasks)))
            )
        await env.wait_until_drained(300)
    env.checker_inputs["batches"] = batches
    return {"batches": len(batches)}


async def _run_quotas(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Let clients race for the last jobs of a daily quota, and end some connections."""
    await env.start_worker(*env.small_worker_options)
    owners = [f"owner-{number}" for number in range(max(1, dose.tasks // 20))]
    async with env.open_connection() as connection:
        for owner in owners:
            await quotas.put_quota(connection, owner, operations=10)
    refused = 0

    async def submit_one(owner: str, number: int) -> None:
        nonlocal refused
        try:
            handle = await env.client.submit(app.work(number, 1), owner=owner)
        except (HoldfastError, OSError):
            refused += 1  # or lost, which counts the same here
        else:
            env.recorder.write_line("acknowledged", str(handle.id))

    for owner in owners:
        submits = asyncio.gather(*(submit_one(owner, number) for number in range(20)))
        if env.random.random() < 0.3 and list(env.iterate_faults(1)):
            await asyncio.sleep(env.random.uniform(0.0, 0.01))
            await _terminate_backends(env)
        await submits
    await env.wait_until_drained(300)
    async with env.open_connection() as connection:
        rows = await connection.fetch("select owner, count(*) from holdfast.history group by owner")
    env.checker_inputs["quotas"] = {row["owner"]: (10, row["count"]) for row in rows if row["owner"]}
    return {"owners": len(owners), "refused or lost": refused}


async def _terminate_backends(env: FaultEnvironment) -> None:
    with contextlib.suppress(HoldfastError, OSError):
        async with env.open_connection() as connection:
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where backend_type = 'client backend' and pid <> pg_backend_pid() and random() < 0.3"
            )


async def _run_poison(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Run tasks that kill their process. All other tasks must succeed."""
    poisons: list[str] = []
    for number in range(dose.faults):
        how = env.random.choice(["exit", "kill", "segv", "abort"])
        poisons += await env.submit([app.poison(how)])
        await env.submit(
            [app.work(number, env.random.randint(0, 100)) for _ in range(dose.tasks // dose.faults)]
        )
    await env.wait_until_drained(600, workers=WORKER_COUNT)
    async with env.open_connection() as connection:
        rows = await connection.fetch("select id, status, crashes, failures from holdfast.history")
    bad = set(poisons)
    crashed = [row["crashes"] for row in rows if str(row["id"]) in bad]
    harmed = [str(row["id"]) for row in rows if str(row["id"]) not in bad and row["status"] != "succeeded"]
    if harmed:
        raise AssertionError(f"{len(harmed)} other tasks did not succeed: {harmed[:3]}")
    if len(crashed) != len(poisons) or max(crashed) > MAX_CRASHES_PER_TASK:
        raise AssertionError(f"{len(poisons)} poisons, crashes of each: {Counter(crashed)}")
    return {"poisons": len(poisons), "crashes of each": dict(Counter(crashed))}


FAULT_RUNS = [
    FaultRun(
        "schedules",
        "ticks of schedules while workers die and the server is away",
        _run_schedules,
        FaultDose(9, 20),
        FaultDose(30, 300),
        (check_i9_one_job_per_tick,),
    ),
    FaultRun(
        "batches",
        "batches with a callback while workers die",
        _run_batches,
        FaultDose(40, 15),
        FaultDose(2_000, 300),
        (check_i4_no_overlap, check_i7_one_callback),
    ),
    FaultRun(
        "quotas",
        "clients race for what is left of a quota",
        _run_quotas,
        FaultDose(200, 100),
        FaultDose(4_000, 1_000),
        (check_i11_quotas,),
    ),
    FaultRun(
        "poison",
        "tasks that kill their process, among others",
        _run_poison,
        FaultDose(60, 6),
        FaultDose(1_000, 100),
    ),
]
