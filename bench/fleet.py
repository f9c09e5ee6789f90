"""Benchmark of several servers: shards here, then a standby (bench/standby.py).

It shows what one job costs the server with 1, 2 and 4 shards, and whether a call touches two.

Jobs are submitted one by one for many owners and then drained. Transactions, row changes, WAL and CPU time
are counted, not elapsed time, so they mean nearly the same on a busy machine. Submits and the drain are
counted apart: each shard has a worker of its own, with its share of the slots, so that claims are smaller
with more shards. WAL of full pages is counted apart: more databases have more pages to write after a
checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import time
from collections import Counter
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

from bench import standby
from bench.engine import create_database
from holdfast import Client, Worker, shard_of, task
from holdfast.engine import shards
from holdfast.engine.connection import open_connection
from holdfast.settings import Secret, Settings, load_settings

SHARD_COUNTS = (1, 2, 4)
JOBS = 20_000
WARM_UP_JOBS = 50
OWNERS = 64
SUBMITTERS = 8
SLOTS = 100


@task(queue="fleet")
async def noop(number: int) -> int:
    return number


async def measure_shards(
    server: Secret, settings: Settings, count: int, jobs: int = JOBS
) -> dict[str, dict[str, float]]:
    """Submit and drain jobs on `count` shards. Return the costs of one job, summed over the shards."""
    async with AsyncExitStack() as stack:
        urls: dict[int, str] = {}
        for number in range(1, count + 1):
            urls[number] = str(await stack.enter_async_context(create_database(server, settings)))
            async with open_connection(Secret(urls[number]), settings) as connection:
                await shards.set_shard(connection, number)
        client = await stack.enter_async_context(Client(shards=urls, settings=settings))
        await _submit_jobs(client, WARM_UP_JOBS)
        await _drain_jobs(client)
        async with open_connection(server, settings) as connection:
            await connection.execute("checkpoint")
        counters = [await _read_counters(urls, settings)]
        shares = Counter(await _submit_jobs(client, jobs))
        counters.append(await _read_counters(urls, settings))
        await _drain_jobs(client)
        counters.append(await _read_counters(urls, settings))
        costs = {
            phase: {name: (after[name] - before[name]) / jobs for name in before}
            for phase, (before, after) in zip(("submit", "drain"), pairwise(counters), strict=True)
        }
        return {**costs, "shares": {"smallest": min(shares.values()) / jobs * count}}


async def _submit_jobs(client: Client, jobs: int) -> list[int]:
    """Submit jobs one by one over some connections. Return the shard of each."""
    left = iter(range(jobs))
    numbers: list[int] = []

    async def submit() -> None:
        for number in left:
            handle = await client.submit(noop(number), owner=f"owner {number % OWNERS}")
            numbers.append(shard_of(handle.id))

    await asyncio.gather(*(submit() for _ in range(SUBMITTERS)))
    return numbers


async def _drain_jobs(client: Client) -> None:
    async with Worker(
        client, tasks=[noop], concurrency=SLOTS, until="drained", deliver_webhooks=False
    ) as worker:
        await worker.run()


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
            # One server has all databases of this benchmark, so its WAL is not added up.
            wal = await connection.fetchrow("select wal_records, wal_fpi, wal_bytes from pg_stat_wal")
            assert wal is not None
            totals |= Counter({"WAL records": wal[0], "full pages": wal[1], "WAL bytes": int(wal[2])})
            server = _find_parent(int(await connection.fetchval("select pg_backend_pid()")))
    totals["server CPU µs"] = _read_server_cpu_us(server)
    totals["client CPU µs"] = int(time.process_time() * 1e6)
    return totals


def _find_parent(pid: int) -> int:
    return int(_read_process_fields(pid)[1])


def _read_server_cpu_us(server: int) -> int:
    """Return the CPU time of a local server: of its running processes, and of those that have ended."""
    ticks = sum(map(int, _read_process_fields(server)[11:15]))  # own, and of children that have ended
    for child in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError):
            ticks += sum(map(int, _read_process_fields(int(child))[11:13]))
    return ticks * 1_000_000 // os.sysconf("SC_CLK_TCK")


def _read_process_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("server", help="Create the databases on the server with this URL.")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"Measure this many jobs. Default: {JOBS}.")
    parser.add_argument("--shards-only", action="store_true", help="Skip the standby and the failover.")
    options = parser.parse_args()
    settings = load_settings({})
    for count in SHARD_COUNTS:
        costs = await measure_shards(Secret(options.server), settings, count, options.jobs)
        for phase, values in costs.items():
            text = ", ".join(f"{name} {value:.2f}" for name, value in values.items())
            print(f"{count} shards, {phase}: {text}", flush=True)
    if not options.shards_only:
        await standby.main()


if __name__ == "__main__":
    asyncio.run(main())
