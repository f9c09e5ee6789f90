"""`holdfast bench`: what this database does with this version, in half a minute.

It works in a database of its own on the same server, made for this and dropped afterwards, so that it neither
disturbs yours nor leaves history behind. One process submits and works at once, with tasks that do nothing:
the numbers are an upper bound for one process, and they share the machine with whatever else runs there.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

import click

from holdfast.cli.session import CliSession, json_option, pass_session
from holdfast.client import Client
from holdfast.definitions.tasks import task
from holdfast.engine import embedded, install, operate, scratch
from holdfast.engine.connection import Database
from holdfast.errors import DatabaseRightsError, RefusedError
from holdfast.settings import Secret, Settings, redact_url
from holdfast.version import __version__
from holdfast.worker import Worker

QUEUE = "bench"
PORTION = 1000


@task(queue=QUEUE)
async def nothing(number: int) -> int:
    """Does nothing, so that all that is measured is us."""
    return number


@dataclass(frozen=True)
class Spread:
    """Durations in milliseconds."""

    median: float
    p95: float

    @classmethod
    def of(cls, seconds: list[float]) -> Spread:
        cuts = statistics.quantiles(seconds, n=20, method="inclusive")
        return cls(statistics.median(seconds) * 1000, cuts[18] * 1000)


@click.command()
@click.option("--jobs", type=click.IntRange(100, 1_000_000), default=10_000, show_default=True,
              help="Jobs to submit in bulk and to drain.")  # fmt: skip
@click.option("--samples", type=click.IntRange(20, 10_000), default=200, show_default=True,
              help="Single calls to time.")  # fmt: skip
@click.option("--concurrency", "-c", type=click.IntRange(1, 1000), default=100, show_default=True,
              help="Tasks at once.")  # fmt: skip
@json_option
@pass_session
def bench(session: CliSession, jobs: int, samples: int, concurrency: int) -> None:
    """Measure throughput and latency of this database with this version."""
    settings = session.settings
    url, server = embedded.locate(settings)
    try:
        session.run_server(_bench(session, settings, url, (jobs, samples, concurrency)))
    finally:
        if server:
            server.release()


async def _bench(session: CliSession, settings: Settings, url: Secret, sizes: tuple[int, int, int]) -> None:
    jobs, samples, concurrency = sizes
    out = session.output
    async with _own_database(url, settings) as own, Database(own, settings) as database:
        async with database.connection() as connection:
            version = connection.get_server_version()
        where = redact_url(url.reveal())
        out.print_line(f"holdfast {__version__} on PostgreSQL {version.major}.{version.micro} at {where}")
        async with Client(own.reveal(), settings=settings) as client:
            found: dict[str, Any] = {
                "round_trip_ms": await _round_trips(database, samples),
                "submit_one_ms": await _submits(client, samples),
                "submit_many_per_s": await _submit_many(client, jobs),
            }
            async with _working(database, concurrency) as done:
                found["drain_per_s"] = await done(samples + jobs)
                found["result_ms"] = await _results(client, samples)
    _tell(session, found, sizes)


@asynccontextmanager
async def _own_database(url: Secret, settings: Settings) -> AsyncGenerator[Secret]:
    name = f"holdfast_bench_{secrets.token_hex(4)}"
    try:
        await scratch.create(url, name, settings)
    except DatabaseRightsError as problem:
        raise RefusedError(
            "This role may not create the database that the measurement is to happen in.",
            fix="Grant it createdb, or run it as the owner of the server.",
        ) from problem
    try:
        own = scratch.on_database(url, name)
        await install.migrate(own, settings)
        yield own
    finally:
        await scratch.drop(url, name, settings)


async def _timed(count: int, act: Callable[[int], Awaitable[object]]) -> Spread:
    seconds: list[float] = []
    for number in range(count):
        began = time.perf_counter()
        await act(number)
        seconds.append(time.perf_counter() - began)
    return Spread.of(seconds)


async def _round_trips(database: Database, count: int) -> Spread:
    async with database.connection() as connection:
        return await _timed(count, lambda _: connection.fetchval("select 1"))


async def _submits(client: Client, count: int) -> Spread:
    return await _timed(count, lambda number: client.submit(nothing(number)))


async def _submit_many(client: Client, count: int) -> float:
    began = time.perf_counter()
    for start in range(0, count, PORTION):
        await client.submit_many([nothing(n) for n in range(start, min(start + PORTION, count))])
    return count / (time.perf_counter() - began)


@asynccontextmanager
async def _working(database: Database, concurrency: int) -> AsyncGenerator[Callable[[int], Awaitable[float]]]:
    """A worker that runs meanwhile; what is given tells how fast it drains so many."""
    stop = asyncio.Event()
    began = time.perf_counter()
    worker = Worker(database, {nothing.name: nothing}, concurrency=concurrency)
    running = asyncio.create_task(worker.run(stop))

    async def drained(count: int) -> float:
        while True:
            if running.done() or not await _left(database):
                return count / (time.perf_counter() - began)
            await asyncio.sleep(0.02)

    try:
        yield drained
    finally:
        stop.set()
        await running


async def _left(database: Database) -> int:
    async with database.connection() as connection:
        found = await operate.task_queues(connection, QUEUE, most=1)
    return sum(row["ready"] + row["running"] for row in found)


async def _results(client: Client, count: int) -> Spread:
    """From the call of submit to its result in hand, with a worker that has nothing else to do."""

    async def one(number: int) -> None:
        job = await client.submit(nothing(number))
        await job.result()

    return await _timed(count, one)


def _tell(session: CliSession, found: dict[str, Any], sizes: tuple[int, int, int]) -> None:
    jobs, samples, concurrency = sizes
    if session.output.json:
        plain = {name: asdict(v) if isinstance(v, Spread) else v for name, v in found.items()}
        session.output.print_record({"version": __version__, "jobs": jobs, "samples": samples, **plain})
        return
    rows = [
        ("round trip to the database", found["round_trip_ms"], ""),
        ("submit one job", found["submit_one_ms"], ""),
        ("submit and await its result", found["result_ms"], "an idle worker, tasks that do nothing"),
        ("submit many", found["submit_many_per_s"], f"{jobs:,} jobs, {PORTION:,} a call"),
        ("drain", found["drain_per_s"], f"one process, {concurrency} at once, its start included"),
    ]
    for name, value, note in rows:
        told = _spread(value) if isinstance(value, Spread) else f"{value:>10,.0f} a second"
        session.output.print_line(f"  {name:<28} {told:<34} {note}".rstrip())


def _spread(spread: Spread) -> str:
    return f"{spread.median:>10.2f} ms  (p95 {spread.p95:.2f} ms)"
