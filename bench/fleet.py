"""Benchmark of several servers: shards here, then a standby (bench/standby.py).

It shows what one job costs the server with 1, 2 and 4 shards, and whether a call touches two.

Jobs are submitted one by one for many owners and then drained. WAL bytes, transactions and row changes are
counted, not timed, so they mean the same on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from bench import standby
from bench.engine import create_database
from holdfast import Client, Worker, shard_of, task
from holdfast.engine import shards
from holdfast.engine.connection import open_connection
from holdfast.settings import Secret, Settings, load_settings

SHARD_COUNTS = (1, 2, 4)
JOBS = 2000
WARM_UP_JOBS = 50
OWNERS = 64
SUBMITTERS = 8


@task(queue="fleet")
async def noop(number: int) -> int:
    return number


async def measure_shards(
    server: Secret, settings: Settings, count: int, jobs: int = JOBS
) -> dict[str, float]:
    """Submit and drain jobs on `count` shards. Return the cost of one job, summed over the shards."""
    async with AsyncExitStack() as stack:
        urls: dict[int, str] = {}
        for number in range(1, count + 1):
            urls[number] = str(await stack.enter_async_context(create_database(server, settings)))
            async with open_connection(Secret(urls[number]), settings) as connection:
                await shards.set_shard(connection, number)
        client = await stack.enter_async_context(Client(shards=urls, settings=settings))
        await _submit_and_drain(client, WARM_UP_JOBS)
        before = await _read_counters(urls, settings)
        numbers = await _submit_and_drain(client, jobs)
        after = await _read_counters(urls, settings)
        costs = {name: (after[name] - before[name]) / jobs for name in before}
        shares = Counter(numbers)
        return {**costs, "smallest share": min(shares.values()) / jobs * count}


async def _submit_and_drain(client: Client, jobs: int) -> list[int]:
    """Submit jobs one by one over some connections, and run them. Return the shard of each."""
    left = iter(range(jobs))
    numbers: list[int] = []

    async def submit() -> None:
        for number in left:
            handle = await client.submit(noop(number), owner=f"owner {number % OWNERS}")
            numbers.append(shard_of(handle.id))

    await asyncio.gather(*(submit() for _ in range(SUBMITTERS)))
    async with Worker(
        client, tasks=[noop], concurrency=100, until="drained", deliver_webhooks=False
    ) as worker:
        await worker.run()
    return numbers


async def _read_counters(urls: dict[int, str], settings: Settings) -> Counter[str]:
    totals: Counter[str] = Counter()
    for url in urls.values():
        async with open_connection(Secret(url), settings) as connection:
            await connection.execute("select pg_stat_force_next_flush()")
            row = await connection.fetchrow(
                """select xact_commit as transactions,
                     tup_inserted + tup_updated + tup_deleted as "row changes"
                   from pg_stat_database where datname = current_database()"""
            )
            assert row is not None
            totals.update(dict(row))
            totals["WAL bytes"] = int(
                await connection.fetchval("select pg_current_wal_lsn() - '0/0'::pg_lsn")
            )
    return totals


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("server", help="Create the databases on the server with this URL.")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"Measure this many jobs. Default: {JOBS}.")
    options = parser.parse_args()
    settings = load_settings({})
    for count in SHARD_COUNTS:
        costs = await measure_shards(Secret(options.server), settings, count, options.jobs)
        print(
            f"{count} shards:", ", ".join(f"{name} {value:.2f}" for name, value in costs.items()), flush=True
        )
    await standby.main()


if __name__ == "__main__":
    asyncio.run(main())
