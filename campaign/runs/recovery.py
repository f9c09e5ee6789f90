"""Recovery at default settings: workers as users start them, with the default retry policy and concurrency.

The only difference is a lease of 2 seconds, so that a run ends. No healthy task may fail, and a task of a
dead worker begins again within its lease and a second and a half, most of them within half a second.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter

from campaign import default_app
from campaign.checker import check_all_succeeded, check_i4_no_overlap, check_restart_times
from campaign.environment import FaultEnvironment
from campaign.runs import FaultDose, FaultRun
from campaign.runs.worker_faults import submit_load
from holdfast import Call

WORKER_COUNT = 3
MAX_TASK_MS = 300
SLOW_TASK_MS = 3_000  # longer than the lease
MAX_FREEZE_S = 4.0
ATTEMPTS_PER_RETRIED_TASK = 100
OLD_SNAPSHOT = "begin isolation level repeatable read; select 1; select pg_sleep(3600)"


async def _start_workers(env: FaultEnvironment) -> None:
    env.real_workers = True
    for _ in range(WORKER_COUNT):
        await env.start_worker()


async def _kill_workers(env: FaultEnvironment, dose: FaultDose, *, with_children: bool) -> None:
    await _start_workers(env)
    async with submit_load(env, dose.tasks, MAX_TASK_MS, default_app.build_call):
        for _ in env.iterate_faults(dose.faults):
            # Starting a worker and its processes takes seconds of processor time. Without a pause the run
            # would measure how long starts queue on this machine.
            await asyncio.sleep(env.random.uniform(1.0, 6.0))
            env.kill_worker(await env.pick_busy_worker(), with_children=with_children)
            await env.start_worker()
    await env.wait_until_drained(300)


async def _run_worker_kills(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    await _kill_workers(env, dose, with_children=False)
    return {}


async def _run_tree_kills(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    await _kill_workers(env, dose, with_children=True)
    return {}


def _build_call_with_slow_tasks(number: int, ms: int) -> Call[int]:
    return default_app.build_call(number, SLOW_TASK_MS if number % 5 == 2 else ms)


async def _freeze(env: FaultEnvironment, frozen: set[int]) -> None:
    """Stop a worker for less or more than a lease. Its heartbeat process runs on."""
    victim = await env.pick_busy_worker(frozen)
    frozen.add(victim)
    env.send_signal(victim, signal.SIGSTOP)
    await asyncio.sleep(env.random.uniform(0.1, MAX_FREEZE_S))
    env.send_signal(victim, signal.SIGCONT)
    await asyncio.sleep(0.2)
    frozen.discard(victim)


async def _run_freezes(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    await _start_workers(env)
    frozen: set[int] = set()
    async with submit_load(env, dose.tasks, MAX_TASK_MS, _build_call_with_slow_tasks):
        for _ in env.iterate_faults(dose.faults):
            await _freeze(env, frozen)
    await env.wait_until_drained(300)
    return {"frozen": dose.faults}


async def _run_server_crashes(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    await _start_workers(env)
    async with submit_load(env, dose.tasks, MAX_TASK_MS, default_app.build_call):
        for _ in env.iterate_faults(dose.faults):
            await env.wait_for_progress()
            await asyncio.sleep(env.random.uniform(0.0, 0.5))
            env.server.crash()
            env.server.start()
            await env.server.wait_until_ready()
    await env.wait_until_drained(300)
    return {"crashes": dose.faults}


async def _run_mixed(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Kill and freeze workers and cut their connections while an old snapshot is open."""
    await _start_workers(env)
    faults: Counter[str] = Counter()
    async with env.open_connection() as holder:
        snapshot = asyncio.create_task(holder.execute(OLD_SNAPSHOT))
        async with submit_load(env, dose.tasks, MAX_TASK_MS, default_app.build_call):
            for _ in env.iterate_faults(dose.faults):
                fault = env.random.choice(["kill", "kill tree", "freeze", "cut"])
                faults[fault] += 1
                await _inject_fault(env, fault, holder.get_server_pid())
        await env.wait_until_drained(300)
        snapshot.cancel()
        await asyncio.gather(snapshot, return_exceptions=True)
    return dict(faults)


async def _inject_fault(env: FaultEnvironment, fault: str, spared_backend: int) -> None:
    if fault == "freeze":
        await _freeze(env, set())
    elif fault == "cut":
        async with env.open_connection() as connection:
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend'"
                " and pid not in (pg_backend_pid(), $1) and random() < 0.7",
                spared_backend,
            )
        await asyncio.sleep(0.5)
    else:
        env.kill_worker(await env.pick_busy_worker(), with_children=fault == "kill tree")
        await env.start_worker()


async def _run_retries(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Retry at once, again and again, without faults: every attempt is the task's own failure.

    On a busy machine a worker gives back tasks that it claimed ahead and did not start in a quarter of a
    second. Nothing of these attempts has run, and nothing is charged.
    """
    await _start_workers(env)
    count = dose.tasks // ATTEMPTS_PER_RETRIED_TASK
    await env.submit([default_app.fail_until(ATTEMPTS_PER_RETRIED_TASK) for _ in range(count)])
    await env.wait_until_drained(3600)
    async with env.open_connection() as connection:
        rows = await connection.fetch("select outcome, count(*) from holdfast.attempts group by 1")
    outcomes = {str(row["outcome"]): int(row["count"]) for row in rows}
    expected = count * (ATTEMPTS_PER_RETRIED_TASK - 1)
    if not outcomes.keys() <= {"failed", "released"} or sum(outcomes.values()) != expected:
        raise AssertionError(f"attempts ended as {outcomes}, expected {expected} failures")
    return {"attempts": outcomes}


FAULT_RUNS = [
    FaultRun(
        "default-kills",
        "workers killed at default settings",
        _run_worker_kills,
        FaultDose(300, 15),
        FaultDose(6_000, 300),
        (check_i4_no_overlap, check_all_succeeded, check_restart_times),
    ),
    FaultRun(
        "default-tree-kills",
        "workers killed together with their heartbeat and child processes, at default settings",
        _run_tree_kills,
        FaultDose(300, 15),
        FaultDose(6_000, 300),
        (check_i4_no_overlap, check_all_succeeded, check_restart_times),
    ),
    FaultRun(
        "default-freezes",
        "workers stopped and continued at default settings, a fifth of the tasks slower than the lease",
        _run_freezes,
        FaultDose(200, 10),
        FaultDose(5_000, 200),
        (check_all_succeeded,),
    ),
    FaultRun(
        "default-crashes",
        "the server crashed at default settings",
        _run_server_crashes,
        FaultDose(200, 5),
        FaultDose(5_000, 100),
        (check_i4_no_overlap, check_all_succeeded),
    ),
    FaultRun(
        "default-mix",
        "kills, freezes and cut connections under an old snapshot, at default settings",
        _run_mixed,
        FaultDose(300, 12),
        FaultDose(5_000, 200),
        (check_all_succeeded,),
    ),
    FaultRun(
        "default-retries",
        "a million retries at once without faults",
        _run_retries,
        FaultDose(20_000, 0),
        FaultDose(1_000_000, 0),
        (check_all_succeeded,),
    ),
]
