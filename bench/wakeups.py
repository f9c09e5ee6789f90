"""Benchmark of wake-ups: 64 connections submit single jobs while no, one or fifty workers sleep.

The workers are rows that never wake up, which is the worst case: every submit sees a sleeping worker. One
connection listens. Rates are printed as ratios to the rate without sleeping workers.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from contextlib import AsyncExitStack

from bench.engine import create_database
from holdfast.engine import jobs
from holdfast.engine.connection import Connection, open_connection
from holdfast.settings import Secret, load_settings

CONNECTIONS = 64
SLEEPING_WORKERS = (0, 1, 50)
ROUNDS = 5
SECONDS_PER_ROUND = 4.0
JOB = {"type": "noop", "queue": "default"}


class WakeupBenchmark:
    """Counts submits and notifications per second."""

    def __init__(self, connections: list[Connection], listener: Connection) -> None:
        self._connections = connections
        self._listener = listener
        self._notifications = 0

    async def listen(self) -> None:
        def count(*_: object) -> None:
            self._notifications += 1

        await self._listener.add_listener("holdfast", count)

    async def measure(self, sleeping: int) -> tuple[float, float, float]:
        """Return submits per second, notifications per second and the 99th percentile of a submit in ms."""
        await self._listener.execute("delete from holdfast.workers")
        await self._listener.execute(
            """insert into holdfast.workers (name, queues, sleeping, started_at, seen_at)
               select 'sleeping ' || n, '{default}', true, holdfast.now(), holdfast.now()
               from generate_series(1, $1) as n""",
            sleeping,
        )
        self._notifications = 0
        started_at = time.monotonic()
        results = await asyncio.gather(*(self._submit(each, started_at) for each in self._connections))
        seconds = time.monotonic() - started_at
        waits = sorted(wait for result in results for wait in result)
        return (
            len(waits) / seconds,
            self._notifications / seconds,
            waits[round((len(waits) - 1) * 0.99)] * 1000,
        )

    async def _submit(self, connection: Connection, started_at: float) -> list[float]:
        waits: list[float] = []
        while (begin := time.monotonic()) - started_at < SECONDS_PER_ROUND:
            await jobs.submit_standalone(connection, JOB)
            waits.append(time.monotonic() - begin)
        return waits


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("server", help="Create the database on the server with this URL.")
    options = parser.parse_args()
    settings = load_settings({})
    rates: dict[int, list[float]] = {sleeping: [] for sleeping in SLEEPING_WORKERS}
    async with AsyncExitStack() as stack:
        url = Secret(await stack.enter_async_context(create_database(Secret(options.server), settings)))
        connections = [
            await stack.enter_async_context(open_connection(url, settings)) for _ in range(CONNECTIONS + 1)
        ]
        benchmark = WakeupBenchmark(connections[1:], connections[0])
        await benchmark.listen()
        await benchmark.measure(0)  # plans and caches
        for _ in range(ROUNDS):
            for sleeping in SLEEPING_WORKERS:
                rate, notifications, p99 = await benchmark.measure(sleeping)
                rates[sleeping].append(rate)
                print(
                    f"{sleeping:>3} sleeping workers: {rate:,.0f} submits/s, p99 {p99:.0f} ms,"
                    f" {notifications:.0f} notifications/s",
                    flush=True,
                )
    base = statistics.median(rates[0])
    for sleeping in SLEEPING_WORKERS[1:]:
        ratio = statistics.median(rates[sleeping]) / base
        print(f"{sleeping} sleeping workers: {ratio:.2f} of the rate with none")


if __name__ == "__main__":
    asyncio.run(main())
