"""What is measured, in parts that can be run by themselves. Each fills in what it finds as it goes: if a step
breaks, what came before it counts."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from statistics import median, quantiles

import asyncpg

from bench.peers import rows
from bench.peers.memory import megabytes
from bench.peers.trials import Trial, UnsupportedMeasurementError

Measurements = dict[str, float | str]
WARM_UP_JOBS = 5  # jobs whose waits do not count
SINGLE_ENQUEUES = 600
ONE = "enqueue one by one"
ROUNDS = {"turns": 3}  # of parts that everybody plays several times
SETTLE_SECONDS, IDLE_SECONDS, STATISTICS_DELAY_SECONDS = 10.0, 30.0, 1.2
MEMORY_GROWTH_SECONDS = 15.0  # seconds of work at most for the growth of memory
NOT_MEASURED = float("nan")
NOT_POSTGRES = "its jobs are not in PostgreSQL"
COUNTS = """select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint as wal,
  xact_commit + xact_rollback as transactions,
  (select sum(n_tup_upd + n_tup_del) from pg_stat_user_tables) as dead
  from pg_stat_database where datname = current_database()"""


@dataclass(frozen=True)
class Sizes:
    """How much of everything. `seconds` is the time a drain of very many is watched."""

    scale: float = 1.0
    backlog: int = 1_000_000
    history: int = 10_000_000
    running: int = 10_000
    seconds: float = 12.0
    by_api: float = 15.0  # seconds; what takes longer to enqueue is multiplied in the tables

    def jobs(self, trial: Trial) -> int:
        return max(int(trial.entry.jobs * self.scale), 50)

    def growth(self) -> list[int]:
        """Tenfold steps up to the backlog, which is a part of its own."""
        return [size for size in (1_000, 10_000, 100_000) if size < self.backlog]


@contextlib.contextmanager
def timed(trial: Trial, what: str) -> Iterator[None]:
    started_at = time.monotonic()
    yield
    print(f"  {trial.entry.name} {what}: {time.monotonic() - started_at:.0f} s", file=sys.stderr, flush=True)


@contextlib.asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def _counts(connection: asyncpg.Connection) -> dict[str, float]:
    await asyncio.sleep(STATISTICS_DELAY_SECONDS)  # they come late
    measurements = dict(await connection.fetchrow(COUNTS) or {})
    return {name: float(value or 0) for name, value in measurements.items()}


async def basic(trial: Trial, sizes: Sizes, measurements: Measurements) -> None:
    single, jobs = max(int(SINGLE_ENQUEUES * sizes.scale), 20), sizes.jobs(trial)
    await trial.make()
    with timed(trial, "enqueue"):
        measurements[ONE] = single / trial.run("one", str(single))["seconds"]
        measurements["enqueue bulk"] = trial.bulk(jobs)
        await trial.emptied()
    with timed(trial, "1 process"):
        await _counted(trial, jobs, measurements)
    with timed(trial, "2 processes"):
        measurements["drain, 2 processes"] = await trial.drain(jobs, 2)
    with timed(trial, "idle"):
        await _idle_and_wake_up(trial, max(int(100 * sizes.scale), 20) + WARM_UP_JOBS, measurements)
    if trial.entry.redis:
        raise UnsupportedMeasurementError(f"WAL, transactions, dead rows: {NOT_POSTGRES}")


async def turns(trial: Trial, sizes: Sizes, measurements: Measurements) -> None:
    """One round; the caller goes round several times, so that a slow minute of the machine hits everybody."""
    single, jobs = max(int(SINGLE_ENQUEUES * sizes.scale), 20), sizes.jobs(trial)
    await trial.make()
    trial.rounds.setdefault(ONE, []).append(single / trial.run("one", str(single))["seconds"])
    await trial.drain(single)
    for processes, what in ((1, "drain, 1 process"), (2, "drain, 2 processes")):
        trial.rounds.setdefault(what, []).append(await trial.drain(jobs, processes))
    for what, rates in trial.rounds.items():
        measurements[what] = median(rates)
        measurements[f"{what}, from to"] = f"{min(rates):,.0f} to {max(rates):,.0f}"


async def _counted(trial: Trial, jobs: int, measurements: Measurements) -> None:
    """A drain by one process, with what it cost a job, from enqueueing in bulk to the end."""
    async with _connected(trial.dsn) as connection:
        before, looks = await _counts(connection), trial.looks
        measurements["drain, 1 process"] = rate = await trial.drain(jobs)
        trial.clear = 0.0 if math.isnan(rate) else rate
        after = await _counts(connection)
    if trial.entry.redis:
        return
    ours = trial.looks - looks + 1
    measurements["WAL bytes/job"] = (after["wal"] - before["wal"]) / jobs
    measurements["transactions/job"] = max(after["transactions"] - before["transactions"] - ours, 0.0) / jobs
    measurements["dead rows/job"] = (after["dead"] - before["dead"]) / jobs


async def _idle_and_wake_up(trial: Trial, jobs: int, measurements: Measurements) -> None:
    """Transactions a minute of an idle worker; then from enqueue to handler, one each 25 ms.

    The first few do not count: both sides open connections and have their statements planned.
    """
    worker = trial.start()
    await asyncio.sleep(SETTLE_SECONDS)
    async with _connected(trial.dsn) as connection:  # kept: connecting is a transaction, too
        before = await _counts(connection)
        await asyncio.sleep(IDLE_SECONDS)
        after = await _counts(connection)
    if not trial.entry.redis:
        idle = (
            (after["transactions"] - before["transactions"] - 1)
            * 60
            / (IDLE_SECONDS + STATISTICS_DELAY_SECONDS)
        )
        measurements["idle transactions/min"] = max(idle, 0.0)
    trial.run("paced", str(jobs))
    await asyncio.sleep(1.5)
    waits = sorted(trial.stop(worker)["waits_ms"][WARM_UP_JOBS:])
    cuts = quantiles(waits, n=100) if len(waits) > 1 else [NOT_MEASURED] * 99
    measurements["wake-up p50 ms"], measurements["wake-up p99 ms"] = cuts[49], cuts[98]


def _compared(measurements: Measurements, what: str, rate: float, clear: float) -> None:
    measurements["usual drain"], measurements[what], measurements["share of its usual"] = (
        clear,
        rate,
        rate / clear,
    )


@contextlib.asynccontextmanager
async def _snapshot(dsn: str) -> AsyncIterator[None]:
    """Somebody who looks at the database as it is now, for as long as this lasts."""
    async with _connected(dsn) as connection, connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("select count(*) from pg_class")
        yield


async def pinned(trial: Trial, sizes: Sizes, measurements: Measurements) -> None:
    if trial.entry.redis:
        raise UnsupportedMeasurementError(NOT_POSTGRES)
    trial.clear = 0.0  # the one right before it says more than an earlier one
    clear = await trial.usual(sizes.jobs(trial))
    await trial.make()
    with timed(trial, "pinned"):
        async with _snapshot(trial.dsn):
            rate = await trial.drain(sizes.jobs(trial))
    _compared(measurements, "drain, snapshot pinned", rate, clear)


async def backlog(trial: Trial, sizes: Sizes, measurements: Measurements) -> None:
    clear = await trial.usual(sizes.jobs(trial))
    rate = await _with_waiting(trial, sizes, sizes.backlog, sizes.seconds)
    _compared(measurements, f"drain, {sizes.backlog:,} waiting", rate, clear)


async def growth(trial: Trial, sizes: Sizes, measurements: Measurements) -> None:
    await trial.usual(sizes.jobs(trial))  # tells how fast its bulk call is
    for size in sizes.growth():
        measurements[f"{size:,}"] = await _with_waiting(trial, sizes, size, sizes.seconds / 2)


async def _with_waiting(trial: Trial, sizes: Sizes, size: int, seconds: float) -> float:
    await trial.make()
    with timed(trial, f"fill {size:,}"):
        how = await trial.fill(size, sizes.by_api)
    with timed(trial, f"drain {size:,} ({how})"):
        # Of the largest none is at the end in time, so one look is enough.
        look = max(0.01, size / 1_000_000) if size < 500_000 else seconds
        return await trial.drain_for(size, seconds, look)


async def history(trial: Trial, sizes: Sizes, measurements: Measurements) -> None:
    """Finished rows, then more waiting than can be done meanwhile: counting is slow, so we look once."""
    if trial.entry.name not in rows.FINISHED:
        measurements[f"drain, {sizes.history:,} finished"] = "none kept"
        return
    clear = await trial.usual(sizes.jobs(trial))
    await trial.make()
    trial.run("bulk", "3")
    await trial.emptied()
    with timed(trial, f"fill {sizes.history:,}"):
        await _maintained(trial)
        await rows.multiply(trial.dsn, rows.FINISHED[trial.entry.name], sizes.history)
        jobs = max(int(clear * sizes.seconds * 3), 1_000)
        await trial.fill(jobs, sizes.by_api)
    with timed(trial, "drain with history"):
        rate = await trial.drain_for(jobs, sizes.seconds, look=sizes.seconds)
    _compared(measurements, f"drain, {sizes.history:,} finished", rate, clear)


async def _maintained(trial: Trial) -> None:
    if trial.entry.prepare_history:
        async with _connected(trial.dsn) as connection:
            await connection.execute(trial.entry.prepare_history)


async def running(trial: Trial, sizes: Sizes, measurements: Measurements) -> None:
    """Another worker holds very many that do not end, and renews what it has to; one drains beside it."""
    if trial.entry.cannot_hold:
        raise UnsupportedMeasurementError(trial.entry.cannot_hold)
    clear = await trial.usual(sizes.jobs(trial))
    await trial.make()
    with timed(trial, f"hold {sizes.running:,}"):
        trial.bulk(sizes.running)
        holder = trial.start(PEER_HOLD="1", PEER_AT_ONCE=str(sizes.running))
        await trial.reached(holder, sizes.running, 45)
        await asyncio.sleep(2)
    with timed(trial, "drain beside them"):
        rate = await trial.drain(sizes.jobs(trial), others=sizes.running)
    if holder.process.poll() is not None:
        raise RuntimeError("the worker that held them ended by itself")
    # One that lost its jobs to its own rescue, or took others, did not hold what we say it held.
    if (begun := int(trial.stop(holder)["handled"])) != sizes.running:
        raise RuntimeError(f"the worker that should hold {sizes.running:,} was given {begun:,}")
    _compared(measurements, f"drain, {sizes.running:,} running", rate, clear)


async def memory(trial: Trial, sizes: Sizes, measurements: Measurements) -> None:
    """Of one worker: before its first job, after its usual drain, and how it grows from there."""
    jobs, clear = sizes.jobs(trial), await trial.usual(sizes.jobs(trial))
    await trial.make()
    worker = trial.start()
    with timed(trial, "memory"):
        await asyncio.sleep(5)
        measurements["idle MB"] = megabytes(worker.process.pid)
        trial.bulk(jobs)
        await trial.until_empty()
        await asyncio.sleep(1)
        measurements["after its usual drain MB"] = after = megabytes(worker.process.pid)
    more = min(int(100_000 * sizes.scale), int(MEMORY_GROWTH_SECONDS * min(clear, trial.bulk_rate)))
    if more < 20_000 * sizes.scale:  # a few MB of chance would look like a lot
        raise UnsupportedMeasurementError(
            f"growth: it would do no more than {more:,} jobs in {MEMORY_GROWTH_SECONDS:.0f} s"
        )
    with timed(trial, f"memory, {more:,} more"):
        trial.bulk(more)
        await trial.until_empty()
        await asyncio.sleep(1)
        measurements["growth MB/100,000 jobs"] = (megabytes(worker.process.pid) - after) * 100_000 / more


Part = Callable[[Trial, Sizes, Measurements], Awaitable[None]]
PARTS: dict[str, Part] = {
    "turns": turns,
    "basic": basic,
    "pinned": pinned,
    "backlog": backlog,
    "growth": growth,
    "history": history,
    "running": running,
    "memory": memory,
}
