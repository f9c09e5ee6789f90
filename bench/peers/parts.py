"""The parts of the comparison. A part stores each measurement at once, so a later error does not lose it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles

import asyncpg

from bench.peers import rows
from bench.peers.memory import read_process_tree_mb
from bench.peers.trials import PeerTrial, UnsupportedMeasurementError

Measurements = dict[str, float | str]
WARM_UP_JOBS = 5  # jobs whose waiting times do not count
SINGLE_ENQUEUES = 600
ONE_BY_ONE_COLUMN = "enqueue one by one"
DEFAULT_CONCURRENCY = 10  # of a Holdfast worker
DEFAULT_CONCURRENCY_COLUMN = f"drain, {DEFAULT_CONCURRENCY} at once"
ROUNDS_BY_PART = {"turns": 3, "work": 5}  # other parts run once
WORK_AT_ONCE = 100
WORK_COLUMN = f"1 KB in and out, 5 ms, {WORK_AT_ONCE} at once"
IDLE_WARM_UP_SECONDS, IDLE_SECONDS, STATISTICS_DELAY_SECONDS = 10.0, 30.0, 1.2
MEMORY_GROWTH_SECONDS = 15.0  # maximum duration of the drain that measures growth
NOT_MEASURED = float("nan")
NOT_POSTGRES_REASON = "its jobs are not in PostgreSQL"
SELECT_COUNTERS = """select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint as wal,
  xact_commit + xact_rollback as transactions,
  (select sum(n_tup_upd + n_tup_del) from pg_stat_user_tables) as dead
  from pg_stat_database where datname = current_database()"""


@dataclass(frozen=True)
class WorkloadSizes:
    """The numbers of jobs per part. `seconds` is the maximum duration of a drain of very many jobs."""

    scale: float = 1.0
    backlog: int = 1_000_000
    history: int = 10_000_000
    running: int = 10_000
    seconds: float = 12.0
    max_enqueue_seconds: float = 15.0  # copy rows in the tables when enqueueing takes longer

    def get_drain_jobs(self, trial: PeerTrial) -> int:
        return max(int(trial.peer.jobs * self.scale), 50)

    def list_growth_steps(self) -> list[int]:
        """Return tenfold numbers of waiting jobs, below the backlog of the part `backlog`."""
        return [size for size in (1_000, 10_000, 100_000) if size < self.backlog]


@contextlib.contextmanager
def print_duration(trial: PeerTrial, column: str) -> Iterator[None]:
    started_at = time.monotonic()
    yield
    print(f"  {trial.peer.name} {column}: {time.monotonic() - started_at:.0f} s", file=sys.stderr, flush=True)


@contextlib.asynccontextmanager
async def _open_connection(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def _read_counters(connection: asyncpg.Connection) -> dict[str, float]:
    await asyncio.sleep(STATISTICS_DELAY_SECONDS)  # the server publishes its statistics late
    counters = dict(await connection.fetchrow(SELECT_COUNTERS) or {})
    return {name: float(value or 0) for name, value in counters.items()}


async def measure_basic(trial: PeerTrial, sizes: WorkloadSizes, measurements: Measurements) -> None:
    """Measure enqueue rates, drains by one and two processes, idle cost and wake-up time."""
    single, jobs = max(int(SINGLE_ENQUEUES * sizes.scale), 20), sizes.get_drain_jobs(trial)
    await trial.create_store()
    with print_duration(trial, "enqueue"):
        measurements[ONE_BY_ONE_COLUMN] = single / trial.run_adapter("one", str(single))["seconds"]
        measurements["enqueue bulk"] = trial.enqueue_bulk(jobs)
        await trial.drain_leftovers()
    with print_duration(trial, "1 process"):
        await _measure_drain_costs(trial, jobs, measurements)
    with print_duration(trial, "2 processes"):
        measurements["drain, 2 processes"] = await trial.measure_drain(jobs, 2)
    with print_duration(trial, "idle"):
        await _measure_idle_and_wake_up(trial, max(int(100 * sizes.scale), 20) + WARM_UP_JOBS, measurements)
    if trial.peer.redis:
        raise UnsupportedMeasurementError(f"WAL, transactions, dead rows: {NOT_POSTGRES_REASON}")


async def measure_turns(trial: PeerTrial, sizes: WorkloadSizes, measurements: Measurements) -> None:
    """Measure one round. The caller repeats rounds of all peers, so that a slow minute hits every peer."""
    single, jobs = max(int(SINGLE_ENQUEUES * sizes.scale), 20), sizes.get_drain_jobs(trial)
    add_rate = partial(_add_rate, trial, measurements)
    await trial.create_store()
    add_rate(ONE_BY_ONE_COLUMN, single / trial.run_adapter("one", str(single))["seconds"])
    await trial.measure_drain(single)
    add_rate("drain, 1 process", await trial.measure_drain(jobs))
    add_rate("enqueue bulk", trial.bulk_rate)
    add_rate("drain, 2 processes", await trial.measure_drain(jobs, 2))
    if not trial.peer.cannot_hold:  # a thread for each job: our configuration is what it has
        add_rate(
            DEFAULT_CONCURRENCY_COLUMN, await trial.measure_drain(jobs // 3, at_once=DEFAULT_CONCURRENCY)
        )
    if not trial.peer.redis:
        await trial.create_store()
        async with _hold_snapshot(trial.dsn):
            add_rate("drain, snapshot pinned", await trial.measure_drain(jobs // 3))


def _add_rate(trial: PeerTrial, measurements: Measurements, column: str, rate: float) -> None:
    """Add the rate of one round, and store the median and the range of all rounds."""
    rates = trial.rates_by_column.setdefault(column, [])
    rates.append(rate)
    measurements[column] = median(rates)
    measurements[f"{column}, from to"] = f"{min(rates):,.0f} to {max(rates):,.0f}"


async def measure_work(trial: PeerTrial, sizes: WorkloadSizes, measurements: Measurements) -> None:
    """Measure one round of jobs that wait for 5 ms and return the text of 1 KB that they got."""
    if not trial.peer.does_work:
        raise UnsupportedMeasurementError("its adapter has only no-op jobs")
    with trial.set_environment(PEER_WORK="1"):
        await trial.create_store()
        rate = await trial.measure_drain(sizes.get_drain_jobs(trial), at_once=WORK_AT_ONCE)
        _add_rate(trial, measurements, WORK_COLUMN, rate)


async def _measure_drain_costs(trial: PeerTrial, jobs: int, measurements: Measurements) -> None:
    """Measure a drain by one process, and WAL, transactions and dead rows per job."""
    async with _open_connection(trial.dsn) as connection:
        before, polls_before = await _read_counters(connection), trial.poll_count
        measurements["drain, 1 process"] = rate = await trial.measure_drain(jobs)
        trial.usual_rate = 0.0 if math.isnan(rate) else rate
        after = await _read_counters(connection)
    if trial.peer.redis:
        return
    own_transactions = trial.poll_count - polls_before + 1
    measurements["WAL bytes/job"] = (after["wal"] - before["wal"]) / jobs
    measurements["transactions/job"] = (
        max(after["transactions"] - before["transactions"] - own_transactions, 0.0) / jobs
    )
    measurements["dead rows/job"] = (after["dead"] - before["dead"]) / jobs


async def _measure_idle_and_wake_up(trial: PeerTrial, jobs: int, measurements: Measurements) -> None:
    """Measure transactions per minute of an idle worker, then the time from enqueue to handler.

    The first jobs do not count, because both sides open connections and plan their statements.
    """
    worker = trial.start_worker()
    await asyncio.sleep(IDLE_WARM_UP_SECONDS)
    async with _open_connection(
        trial.dsn
    ) as connection:  # one connection: connecting would count as a transaction
        before = await _read_counters(connection)
        await asyncio.sleep(IDLE_SECONDS)
        after = await _read_counters(connection)
    if not trial.peer.redis:
        idle = (
            (after["transactions"] - before["transactions"] - 1)
            * 60
            / (IDLE_SECONDS + STATISTICS_DELAY_SECONDS)
        )
        measurements["idle transactions/min"] = max(idle, 0.0)
    trial.run_adapter("paced", str(jobs))
    await asyncio.sleep(1.5)
    waits = sorted(trial.stop_worker(worker)["waits_ms"][WARM_UP_JOBS:])
    cuts = quantiles(waits, n=100) if len(waits) > 1 else [NOT_MEASURED] * 99
    measurements["wake-up p50 ms"], measurements["wake-up p99 ms"] = cuts[49], cuts[98]


def _add_comparison(measurements: Measurements, column: str, rate: float, usual_rate: float) -> None:
    measurements["usual drain"], measurements[column], measurements["share of its usual"] = (
        usual_rate,
        rate,
        rate / usual_rate,
    )


@contextlib.asynccontextmanager
async def _hold_snapshot(dsn: str) -> AsyncIterator[None]:
    """Hold a snapshot of the database while the block runs."""
    async with _open_connection(dsn) as connection, connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("select count(*) from pg_class")
        yield


async def measure_pinned(trial: PeerTrial, sizes: WorkloadSizes, measurements: Measurements) -> None:
    """Measure a drain while another session holds an old snapshot."""
    if trial.peer.redis:
        raise UnsupportedMeasurementError(NOT_POSTGRES_REASON)
    trial.usual_rate = 0.0  # measure again: an earlier rate is less comparable
    usual_rate = await trial.get_usual_rate(sizes.get_drain_jobs(trial))
    await trial.create_store()
    with print_duration(trial, "pinned"):
        async with _hold_snapshot(trial.dsn):
            rate = await trial.measure_drain(sizes.get_drain_jobs(trial))
    _add_comparison(measurements, "drain, snapshot pinned", rate, usual_rate)


async def measure_backlog(trial: PeerTrial, sizes: WorkloadSizes, measurements: Measurements) -> None:
    """Measure a drain with very many waiting jobs."""
    usual_rate = await trial.get_usual_rate(sizes.get_drain_jobs(trial))
    rate = await _measure_with_waiting(trial, sizes, sizes.backlog, sizes.seconds)
    _add_comparison(measurements, f"drain, {sizes.backlog:,} waiting", rate, usual_rate)


async def measure_growth(trial: PeerTrial, sizes: WorkloadSizes, measurements: Measurements) -> None:
    """Measure drains with 1,000, 10,000 and 100,000 waiting jobs."""
    await trial.get_usual_rate(sizes.get_drain_jobs(trial))  # measures the rate of the bulk call
    for size in sizes.list_growth_steps():
        measurements[f"{size:,}"] = await _measure_with_waiting(trial, sizes, size, sizes.seconds / 2)


async def _measure_with_waiting(trial: PeerTrial, sizes: WorkloadSizes, size: int, seconds: float) -> float:
    await trial.create_store()
    with print_duration(trial, f"fill {size:,}"):
        how = await trial.fill_queue(size, sizes.max_enqueue_seconds)
    with print_duration(trial, f"drain {size:,} ({how})"):
        # No peer drains the largest queue in time, so one count at the end is enough.
        poll_seconds = max(0.01, size / 1_000_000) if size < 500_000 else seconds
        return await trial.measure_drain_for(size, seconds, poll_seconds)


async def measure_history(trial: PeerTrial, sizes: WorkloadSizes, measurements: Measurements) -> None:
    """Measure a drain with many finished jobs. Counting is slow, so the remaining jobs are counted once."""
    if trial.peer.name not in rows.FINISHED_ROWS:
        measurements[f"drain, {sizes.history:,} finished"] = "none kept"
        return
    usual_rate = await trial.get_usual_rate(sizes.get_drain_jobs(trial))
    await trial.create_store()
    trial.run_adapter("bulk", "3")
    await trial.drain_leftovers()
    with print_duration(trial, f"fill {sizes.history:,}"):
        await _run_peer_maintenance(trial)
        await rows.multiply_rows(trial.dsn, rows.FINISHED_ROWS[trial.peer.name], sizes.history)
        jobs = max(int(usual_rate * sizes.seconds * 3), 1_000)
        await trial.fill_queue(jobs, sizes.max_enqueue_seconds)
    with print_duration(trial, "drain with history"):
        rate = await trial.measure_drain_for(jobs, sizes.seconds, poll_seconds=sizes.seconds)
    _add_comparison(measurements, f"drain, {sizes.history:,} finished", rate, usual_rate)


async def _run_peer_maintenance(trial: PeerTrial) -> None:
    if trial.peer.prepare_history:
        async with _open_connection(trial.dsn) as connection:
            await connection.execute(trial.peer.prepare_history)


async def measure_running(trial: PeerTrial, sizes: WorkloadSizes, measurements: Measurements) -> None:
    """Measure a drain while another worker holds many jobs that do not end."""
    if trial.peer.cannot_hold:
        raise UnsupportedMeasurementError(trial.peer.cannot_hold)
    usual_rate = await trial.get_usual_rate(sizes.get_drain_jobs(trial))
    await trial.create_store()
    with print_duration(trial, f"hold {sizes.running:,}"):
        trial.enqueue_bulk(sizes.running)
        holder = trial.start_worker(PEER_HOLD="1", PEER_AT_ONCE=str(sizes.running))
        await trial.wait_for_started_jobs(holder, sizes.running, 45)
        await asyncio.sleep(2)
    with print_duration(trial, "drain beside them"):
        rate = await trial.measure_drain(sizes.get_drain_jobs(trial), held_jobs=sizes.running)
    if holder.process.poll() is not None:
        raise RuntimeError("the worker that held the jobs exited")
    # A worker that lost its jobs to the rescue of its queue, or took other jobs, makes the result wrong.
    if (begun := int(trial.stop_worker(holder)["handled"])) != sizes.running:
        raise RuntimeError(f"the worker should hold {sizes.running:,} jobs and started {begun:,}")
    _add_comparison(measurements, f"drain, {sizes.running:,} running", rate, usual_rate)


async def measure_memory(trial: PeerTrial, sizes: WorkloadSizes, measurements: Measurements) -> None:
    """Measure the memory of one worker: idle, after its usual drain, and its growth after that."""
    jobs, usual_rate = sizes.get_drain_jobs(trial), await trial.get_usual_rate(sizes.get_drain_jobs(trial))
    await trial.create_store()
    worker = trial.start_worker()
    with print_duration(trial, "memory"):
        await asyncio.sleep(5)
        measurements["idle MB"] = read_process_tree_mb(worker.process.pid)
        trial.enqueue_bulk(jobs)
        await trial.wait_until_empty()
        await asyncio.sleep(1)
        measurements["after its usual drain MB"] = after = read_process_tree_mb(worker.process.pid)
    more = min(int(100_000 * sizes.scale), int(MEMORY_GROWTH_SECONDS * min(usual_rate, trial.bulk_rate)))
    if more < 20_000 * sizes.scale:  # too few jobs: a random MB would look like growth
        raise UnsupportedMeasurementError(f"growth: at most {more:,} jobs in {MEMORY_GROWTH_SECONDS:.0f} s")
    with print_duration(trial, f"memory, {more:,} more"):
        trial.enqueue_bulk(more)
        await trial.wait_until_empty()
        await asyncio.sleep(1)
        measurements["growth MB/100,000 jobs"] = (
            (read_process_tree_mb(worker.process.pid) - after) * 100_000 / more
        )


PartFunction = Callable[[PeerTrial, WorkloadSizes, Measurements], Awaitable[None]]
PART_FUNCTIONS: dict[str, PartFunction] = {
    "turns": measure_turns,
    "work": measure_work,
    "basic": measure_basic,
    "pinned": measure_pinned,
    "backlog": measure_backlog,
    "growth": measure_growth,
    "history": measure_history,
    "running": measure_running,
    "memory": measure_memory,
}
