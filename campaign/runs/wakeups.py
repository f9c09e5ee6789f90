"""A fault run of wake-ups: most submits do not notify, because another transaction has just done so.

Workers fall asleep, then many transactions submit one job each within some milliseconds. Some stay open for
a while, some notify and are rolled back, and sleeping workers are killed. Every task must start soon after
its commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from itertools import count

from campaign import app
from campaign.checker import NANOSECONDS_PER_SECOND, RunHistory, Violation, check_i4_no_overlap
from campaign.environment import FaultEnvironment
from campaign.records import pair_executions, read_record_lines
from campaign.runs import FaultDose, FaultRun
from holdfast.engine import jobs
from holdfast.engine.connection import Connection
from holdfast.engine.listener import TASK_CHANNEL

WORKER_COUNT = 4
CONNECTION_COUNT = 20  # transactions in a burst, fewer than the slots of the workers
WAKEUP_INTERVAL_S = 0.05  # get_wakeup_interval() in functions/leases/wakeups.sql
MAX_SLACK_S = 20.0  # for a busy machine; a worker that was not woken asks again after 64 s
PAUSES_S = (0.0, 0.03, 0.1, 0.2, 0.5, 1.5)
DEEP_SLEEP_S = 7.0  # after this pause a worker asks no more before the next minute
MAX_COMMIT_DELAY_S = 0.04


async def _run_wakeups(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    for _ in range(WORKER_COUNT):
        await env.start_worker()
    notifications, numbers = count(), count()

    def count_notification(*_: object) -> None:
        next(notifications)

    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(env.open_connection()) for _ in range(CONNECTION_COUNT + 1)
        ]
        listener = connections.pop()
        await listener.add_listener(TASK_CHANNEL, count_notification)
        for burst in env.iterate_faults(dose.faults):
            await asyncio.sleep(DEEP_SLEEP_S if burst % 10 == 0 else env.random.choice(PAUSES_S))
            if burst % 10 == 5:
                env.kill_worker(env.random.choice(sorted(env.live_workers)))
                await env.start_worker()
            size = env.random.randint(1, min(CONNECTION_COUNT, dose.tasks))
            await asyncio.gather(*(_submit_one(env, each, next(numbers)) for each in connections[:size]))
        await env.wait_until_drained(120)
    recorded = list(read_record_lines(env.records_folder))
    history = RunHistory(recorded, pair_executions(recorded), [], {}, set())
    delays = sorted(seconds for _, seconds in iterate_start_delays(history))
    return {
        "submits": next(numbers),
        "notifications": next(notifications),
        "start delay ms": {
            name: round(1000 * delays[round((len(delays) - 1) * share)], 1)
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
    }


async def _submit_one(env: FaultEnvironment, connection: Connection, number: int) -> None:
    """Submit one job: in its own transaction, in one that commits later, or in one that is rolled back."""
    await asyncio.sleep(env.random.uniform(0, WAKEUP_INTERVAL_S))
    if number % 4 == 0:
        transaction = connection.transaction()
        await transaction.start()
        await jobs.submit_standalone(connection, {"type": "work", "queue": "campaign"})  # notifies at once
        await asyncio.sleep(env.random.uniform(0, MAX_COMMIT_DELAY_S))
        await transaction.rollback()
    elif number % 4 == 1:
        async with connection.transaction():
            handle = await env.client.submit(app.work(number, 0), on=connection)
            await asyncio.sleep(env.random.uniform(0, MAX_COMMIT_DELAY_S))
        env.recorder.write_line("acknowledged", str(handle.id))
    else:
        handle = await env.client.submit(app.work(number, 0))
        env.recorder.write_line("acknowledged", str(handle.id))


def iterate_start_delays(history: RunHistory) -> Iterable[tuple[str, float]]:
    """Yield each acknowledged task with the seconds from its commit to its first start."""
    began = {task: min(run.began for run in runs) for task, runs in history.runs_by_task.items()}
    for line in history.recorded:
        if line.kind == "acknowledged" and line.task in began:
            yield line.task, (began[line.task] - line.at) / NANOSECONDS_PER_SECOND


def check_i14_starts_in_time(history: RunHistory) -> Iterable[Violation]:
    """Check that each task starts within the interval between notifications, plus the slack."""
    limit_s = WAKEUP_INTERVAL_S + min(history.slack_s, MAX_SLACK_S)
    for task, seconds in iterate_start_delays(history):
        if seconds > limit_s:
            yield Violation(
                "I14", task, f"started {seconds:.2f} s after its commit, the limit is {limit_s} s"
            )


FAULT_RUNS = [
    FaultRun(
        "wakeups",
        "suppressed notifications, rolled back ones, and killed sleepers",
        _run_wakeups,
        FaultDose(20, 40),
        FaultDose(20, 2_000),
        (check_i4_no_overlap, check_i14_starts_in_time),
    )
]
