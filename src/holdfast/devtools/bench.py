"""`holdfast bench`: measure throughput and latency of this version on this database, in half a minute.

The measurement uses a database of its own on the same server, which it creates first and drops afterwards.
It neither disturbs your data nor leaves history behind. One process submits and runs tasks that do nothing.
The results are an upper bound for one process, and share the machine with everything else that runs on it.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

import click

from holdfast.cli.session import CliSession, json_option, pass_session
from holdfast.client import Client
from holdfast.definitions.tasks import task
from holdfast.engine import embedded, install, queues, scratch
from holdfast.engine.connection import Database
from holdfast.errors import DatabasePermissionError, RefusedError
from holdfast.settings import Secret, Settings, redact_url
from holdfast.version import __version__
from holdfast.worker.runtime import WorkerRuntime

BENCH_QUEUE = "bench"
SUBMIT_BATCH_SIZE = 1000
DRAIN_POLL_INTERVAL_S = 0.02


@task(queue=BENCH_QUEUE)
async def return_number(number: int) -> int:
    """Return the argument. The task does no work, so that the benchmark measures only Holdfast."""
    return number


@dataclass(frozen=True)
class LatencyStats:
    """The median and the 95th percentile of measured durations, in milliseconds."""

    median: float
    p95: float

    @classmethod
    def from_seconds(cls, seconds: list[float]) -> LatencyStats:
        percentiles = statistics.quantiles(seconds, n=20, method="inclusive")
        return cls(statistics.median(seconds) * 1000, percentiles[18] * 1000)


@dataclass(frozen=True)
class BenchSize:
    """The size of a benchmark: number of jobs, number of latency samples, and concurrency."""

    jobs: int
    samples: int
    concurrency: int


@dataclass(frozen=True)
class BenchResult:
    """The measured latencies and throughput of a benchmark."""

    round_trip_ms: LatencyStats
    submit_one_ms: LatencyStats
    submit_many_per_s: float
    drain_per_s: float
    result_ms: LatencyStats


@click.command("bench")
@click.option(
    "--jobs",
    type=click.IntRange(100, 1_000_000),
    default=10_000,
    show_default=True,
    help="Submit and run this many jobs to measure throughput.",
)
@click.option(
    "--samples",
    type=click.IntRange(20, 10_000),
    default=200,
    show_default=True,
    help="Measure latency with this many calls, one after another.",
)
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Let the worker run at most this many tasks at once.",
)
@json_option
@pass_session
def bench_command(session: CliSession, jobs: int, samples: int, concurrency: int) -> None:
    """Measure throughput and latency of this version on this database.

    The measurement takes about half a minute. It uses a temporary database on the same server.
    """
    settings, size = session.settings, BenchSize(jobs, samples, concurrency)
    url, server = embedded.locate_database(settings)
    try:
        result = session.run_server(_run_bench(session, settings, url, size))
    finally:
        if server:
            server.release()
    _print_bench_result(session, result, size)


async def _run_bench(session: CliSession, settings: Settings, url: Secret, size: BenchSize) -> BenchResult:
    async with _create_temporary_database(url, settings) as own_url, Database(own_url, settings) as database:
        async with database.connection() as connection:
            version = connection.get_server_version()
        shown_url = redact_url(url.reveal())
        session.output.print_line(
            f"holdfast {__version__} on PostgreSQL {version.major}.{version.micro} at {shown_url}"
        )
        async with Client(own_url.reveal(), settings=settings) as client:
            round_trip = await _measure_round_trip_latency(database, size.samples)
            submit_one = await _measure_submit_latency(client, size.samples)
            submit_many = await _measure_submit_rate(client, size.jobs)
            async with _run_bench_worker(database, size.concurrency) as measure_drain_rate:
                drain = await measure_drain_rate(size.samples + size.jobs)
                result = await _measure_result_latency(client, size.samples)
    return BenchResult(round_trip, submit_one, submit_many, drain, result)


@asynccontextmanager
async def _create_temporary_database(url: Secret, settings: Settings) -> AsyncGenerator[Secret]:
    name = f"holdfast_bench_{secrets.token_hex(4)}"
    try:
        await scratch.create_test_database(url, name, settings)
    except DatabasePermissionError as error:
        raise RefusedError(
            "This role may not create the temporary database for the measurement.",
            fix="Grant it createdb, or run the command as the owner of the server.",
        ) from error
    try:
        own_url = scratch.build_database_url(url, name)
        await install.migrate_database(own_url, settings)
        yield own_url
    finally:
        await scratch.drop_test_database(url, name, settings)


async def _measure_call_latency(count: int, call: Callable[[int], Awaitable[object]]) -> LatencyStats:
    seconds: list[float] = []
    for number in range(count):
        started = time.perf_counter()
        await call(number)
        seconds.append(time.perf_counter() - started)
    return LatencyStats.from_seconds(seconds)


async def _measure_round_trip_latency(database: Database, count: int) -> LatencyStats:
    async with database.connection() as connection:
        return await _measure_call_latency(count, lambda _: connection.fetchval("select 1"))


async def _measure_submit_latency(client: Client, count: int) -> LatencyStats:
    return await _measure_call_latency(count, lambda number: client.submit(return_number(number)))


async def _measure_submit_rate(client: Client, count: int) -> float:
    """Submit `count` jobs in batches and return the number of submitted jobs per second."""
    started = time.perf_counter()
    for start in range(0, count, SUBMIT_BATCH_SIZE):
        numbers = range(start, min(start + SUBMIT_BATCH_SIZE, count))
        await client.submit_many([return_number(number) for number in numbers])
    return count / (time.perf_counter() - started)


@asynccontextmanager
async def _run_bench_worker(
    database: Database, concurrency: int
) -> AsyncGenerator[Callable[[int], Awaitable[float]]]:
    """Run a worker inside the `async with` block. Yield a function that measures its throughput.

    The function waits until all jobs are done and returns the jobs per second since the worker started.
    """
    stop = asyncio.Event()
    started = time.perf_counter()
    worker = WorkerRuntime(database, {return_number.name: return_number}, concurrency=concurrency)
    worker_task = asyncio.create_task(worker.run(stop))

    async def measure_drain_rate(count: int) -> float:
        while True:
            if worker_task.done() or not await _count_unfinished_tasks(database):
                return count / (time.perf_counter() - started)
            await asyncio.sleep(DRAIN_POLL_INTERVAL_S)

    try:
        yield measure_drain_rate
    finally:
        stop.set()
        await worker_task


async def _count_unfinished_tasks(database: Database) -> int:
    async with database.connection() as connection:
        rows = await queues.list_task_queues(connection, BENCH_QUEUE, max_rows=1)
    return sum(row["ready"] + row["running"] for row in rows)


async def _measure_result_latency(client: Client, count: int) -> LatencyStats:
    """Measure the time from submit to result of single jobs, with an idle worker."""

    async def submit_and_wait(number: int) -> None:
        job = await client.submit(return_number(number))
        await job.result()

    return await _measure_call_latency(count, submit_and_wait)


def _print_bench_result(session: CliSession, result: BenchResult, size: BenchSize) -> None:
    if session.output.json:
        session.output.print_record(
            {"version": __version__, "jobs": size.jobs, "samples": size.samples, **asdict(result)}
        )
        return
    rows = [
        ("round trip to the database", _format_latency(result.round_trip_ms), ""),
        ("submit one job", _format_latency(result.submit_one_ms), ""),
        (
            "submit and wait for the result",
            _format_latency(result.result_ms),
            "idle worker, tasks do nothing",
        ),
        (
            "submit many",
            _format_rate(result.submit_many_per_s),
            f"{size.jobs:,} jobs, {SUBMIT_BATCH_SIZE:,} per call",
        ),
        (
            "run",
            _format_rate(result.drain_per_s),
            f"one process, {size.concurrency} at once, including its start",
        ),
    ]
    for name, value, note in rows:
        session.output.print_line(f"  {name:<31} {value:<34} {note}".rstrip())


def _format_latency(latency: LatencyStats) -> str:
    return f"{latency.median:>10.2f} ms  (p95 {latency.p95:.2f} ms)"


def _format_rate(jobs_per_s: float) -> str:
    return f"{jobs_per_s:>10,.0f} per second"
