"""Drain backlogs of different kinds by one worker, by turns, and compare each with plain tasks of one queue.

    python -m bench.backlogs postgresql://...        a server on which you may create databases

Prints rates, which depend on what else the machine does, and the CPU time of the server and of the worker per
task, which hardly do. It needs a server on the same Linux machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.machine import describe_machine_use, read_machine_ticks
from bench.worker import (
    create_database,
    get_postmaster_pid,
    read_children_cpu_seconds,
    read_server_cpu_seconds,
)
from holdfast import Client, task
from holdfast.engine.connection import Connection, open_connection
from holdfast.settings import Secret, load_settings

BENCH_QUEUE = "bench"
QUEUE_COUNT = 20
SUBMIT_BATCH_SIZE = 1000


@task(queue=BENCH_QUEUE)
async def noop(n: int) -> None:
    pass


@dataclass
class Backlog:
    """A kind of backlog: the options of the task with a number, and what was measured."""

    name: str
    get_options: Callable[[int], dict[str, Any]]
    max_running_per_key: int | None = None
    rates: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    worker_us: list[float] = field(default_factory=list)


def create_backlogs() -> list[Backlog]:
    return [
        Backlog("one queue", lambda _: {}),
        Backlog("20 queues", lambda n: {"queue": f"{BENCH_QUEUE}-{n % QUEUE_COUNT}"}),
        Backlog("10 priorities", lambda n: {"priority": n % 10}),
        Backlog("100 keys, 10 running of each", lambda n: {"limit_key": f"k{n % 100}"}, 10),
        Backlog("10,000 keys", lambda n: {"limit_key": f"k{n % 10_000}"}),
    ]


async def drain_backlog(server: Secret, backlog: Backlog, tasks: int, concurrency: int) -> None:
    """Submit the tasks to a new database, let one worker run them, and record what that cost."""
    settings = load_settings({})
    async with create_database(server, settings) as url, open_connection(url, settings) as connection:
        if backlog.max_running_per_key is not None:
            await connection.execute(
                "select holdfast.put_limit('per-key', p_queue => $1, p_per_key => true, p_max_running => $2)",
                *(BENCH_QUEUE, backlog.max_running_per_key),
            )
        async with Client(url.reveal(), settings=settings) as client:
            for at in range(0, tasks, SUBMIT_BATCH_SIZE):
                numbers = range(at, min(at + SUBMIT_BATCH_SIZE, tasks))
                await client.submit_many([noop(n).options(**backlog.get_options(n)) for n in numbers])
        await connection.execute("vacuum analyze holdfast.tasks, holdfast.lanes")
        postmaster = await get_postmaster_pid(connection)
        before, used = read_server_cpu_seconds(postmaster), read_children_cpu_seconds()
        await asyncio.to_thread(run_worker, url, concurrency)
        server_s = read_server_cpu_seconds(postmaster) - before
        worker_s = read_children_cpu_seconds() - used
        await record_drain(connection, backlog, server_s, worker_s)


async def record_drain(connection: Connection, backlog: Backlog, server_s: float, worker_s: float) -> None:
    done, seconds = await connection.fetchrow(
        "select count(*), extract(epoch from max(finished_at) - min(finished_at))::float8 "
        "from holdfast.history"
    )
    backlog.rates.append(done / seconds)
    backlog.server_us.append(server_s / done * 1e6)
    backlog.worker_us.append(worker_s / done * 1e6)
    print(f"{backlog.name:30} {done / seconds:9,.0f}/s", flush=True)


def run_worker(url: Secret, concurrency: int) -> None:
    queues = [BENCH_QUEUE, *(f"{BENCH_QUEUE}-{number}" for number in range(QUEUE_COUNT))]
    command = [sys.executable, "-m", "holdfast", "--log-level", "warning", "worker", __file__, "--drain"]
    subprocess.run(
        [*command, "-c", str(concurrency), "-q", ",".join(queues)],
        env={**os.environ, "HOLDFAST_DATABASE_URL": url.reveal()},
        check=True,
    )


def print_results(backlogs: list[Backlog]) -> None:
    plain = statistics.median(backlogs[0].rates)
    for backlog in backlogs:
        low, high = min(backlog.rates), max(backlog.rates)
        rate = statistics.median(backlog.rates)
        print(
            f"{backlog.name:30} {rate:9,.0f}/s ({low:,.0f} to {high:,.0f}), {rate / plain:.2f} of one queue; "
            f"server {statistics.median(backlog.server_us):.0f} us, "
            f"worker with its start {statistics.median(backlog.worker_us):.0f} us per task"
        )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("server", help="Create the databases on the server with this URL.")
    parser.add_argument("--tasks", type=int, default=60_000, help="Run this many tasks. Default: 60,000.")
    parser.add_argument("--rounds", type=int, default=5, help="Run every kind this often. Default: 5.")
    parser.add_argument(
        "--concurrency", type=int, default=400, help="Run this many tasks at once. Default: 400."
    )
    options = parser.parse_args()
    ticks = read_machine_ticks()
    backlogs = create_backlogs()
    for _ in range(options.rounds):
        for backlog in backlogs:
            await drain_backlog(Secret(options.server), backlog, options.tasks, options.concurrency)
    print_results(backlogs)
    print(describe_machine_use(ticks, read_machine_ticks()))


if __name__ == "__main__":
    asyncio.run(main())
