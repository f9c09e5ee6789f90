"""Benchmark of worker processes: rate of no-op tasks, wake-up time, memory.

    python bench/worker.py postgresql://...          a server on which you may create databases

Prints elapsed time, which depends on what else the machine does, and CPU time per task, which hardly does.
The CPU time of the server includes all its processes. It needs a server on the same Linux machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from holdfast import Client, task
from holdfast.engine import install, scratch
from holdfast.engine.connection import Connection, open_connection
from holdfast.settings import Secret, Settings, load_settings

BENCH_QUEUE = "bench"
PART_NAMES = ("drain", "two", "plain", "wakeup", "sleepers", "memory")
DRAIN_ROUNDS = 3
MEMORY_ROUNDS = 10  # batches of no-ops, to see whether memory grows
CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@task(queue=BENCH_QUEUE)
async def noop(n: int) -> None:
    pass


@task(queue=BENCH_QUEUE)
def noop_in_thread(n: int) -> None:
    pass


@task(queue=BENCH_QUEUE)
async def return_start_time() -> float:
    return time.monotonic()


@task(queue=BENCH_QUEUE)
async def sleep_for(seconds: float) -> None:
    await asyncio.sleep(seconds)


@asynccontextmanager
async def create_database(server: Secret, settings: Settings) -> AsyncGenerator[Secret]:
    """Create a database with Holdfast, yield its URL, and drop the database."""
    name = f"hf_bench_{uuid4().hex[:12]}"
    await scratch.create_test_database(server, name, settings)
    url = scratch.build_database_url(server, name)
    try:
        await install.migrate_database(url, settings)
        yield url
    finally:
        await scratch.drop_test_database(server, name, settings)


def start_worker(url: Secret, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "--log-level", "warning", "worker", __file__, *options],
        env={**os.environ, "HOLDFAST_DATABASE_URL": url.reveal()},
    )


def read_server_cpu_seconds(postmaster: int) -> float:
    """Return the CPU time of a PostgreSQL server and its processes, in seconds."""
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if postmaster in (int(folder.name), int(fields[1])):
                total += int(fields[11]) + int(fields[12])
            if postmaster == int(folder.name):
                total += int(fields[13]) + int(fields[14])  # processes that have ended
    return total / CLOCK_TICKS_PER_SECOND


async def get_postmaster_pid(connection: Connection) -> int:
    """Return the pid of the postmaster: the parent of the backend that serves the connection."""
    pid = await connection.fetchval("select pg_backend_pid()")
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])  # noqa: ASYNC240


@dataclass
class WorkerBenchmark:
    """The parts of the benchmark. `rates` holds tasks per second by number of worker processes."""

    server: Secret
    settings: Settings
    tasks: int
    concurrency: int
    rates: dict[int, list[float]] = field(default_factory=dict)

    def print_process_ratio(self) -> None:
        """Print the median rates of one and two processes. Medians even out slow minutes of the machine."""
        if {1, 2} <= self.rates.keys():
            one, two = (statistics.median(self.rates[processes]) for processes in (1, 2))
            print(
                f"drain noop, medians: {one:,.0f}/s by one, {two:,.0f}/s by two, {two / one:.2f} times",
                flush=True,
            )

    async def measure_drain(self, processes: int = 1, task_name: str = "noop") -> None:
        """Measure the rate from the first outcome to the last, without starting and stopping workers."""
        async with (
            create_database(self.server, self.settings) as url,
            open_connection(url, self.settings) as connection,
        ):
            await self._submit_noops(url, task_name, self.tasks)
            await connection.execute("vacuum analyze holdfast.tasks")
            postmaster = await get_postmaster_pid(connection)
            before, used = read_server_cpu_seconds(postmaster), read_children_cpu_seconds()
            running = [start_worker(url, "-c", str(self.concurrency), "--drain") for _ in range(processes)]
            for process in running:
                await asyncio.to_thread(process.wait)
            server = read_server_cpu_seconds(postmaster) - before
            client = read_children_cpu_seconds() - used - processes * self._measure_idle_worker_cpu_s(url)
            seconds = await connection.fetchval(
                "select extract(epoch from max(finished_at) - min(finished_at))::float8 from holdfast.history"
            )
            done = await connection.fetchval("select count(*) from holdfast.history")
            if task_name == "noop":
                self.rates.setdefault(processes, []).append(done / seconds)
            print(
                f"drain {task_name:6} {processes} process(es): {done / seconds:9,.0f}/s   "
                f"worker {client / done * 1e6:5.1f} us/task   server {server / done * 1e6:5.1f} us/task"
            )

    def _measure_idle_worker_cpu_s(self, url: Secret) -> float:
        """Return the CPU time of a worker that starts, finds no task and exits, in seconds."""
        before = read_children_cpu_seconds()
        start_worker(url, "--drain").wait()
        return read_children_cpu_seconds() - before

    async def _submit_noops(self, url: Secret, task_name: str, count: int) -> None:
        task_types = {"noop": noop, "plain": noop_in_thread}
        async with Client(url.reveal(), settings=self.settings) as client:
            for at in range(0, count, 1000):
                await client.submit_many([task_types[task_name](n) for n in range(at, min(at + 1000, count))])

    async def measure_plain(self) -> None:
        """Measure the rate of a plain function, which runs in a thread."""
        await self.measure_drain(task_name="plain")

    async def measure_two(self) -> None:
        """Measure the rate of two worker processes."""
        await self.measure_drain(processes=2)

    async def measure_wakeup(self) -> None:
        """Measure the time from the submit, and from its commit, until an idle worker starts the task."""
        async with create_database(self.server, self.settings) as url:
            process = start_worker(url)
            async with Client(url.reveal(), settings=self.settings) as client:
                await (await client.submit(return_start_time())).result()
                called: list[float] = []
                committed: list[float] = []
                for _ in range(100):
                    await asyncio.sleep(0.7)  # let the worker go idle again
                    before = time.monotonic()
                    job = await client.submit(return_start_time())
                    after = time.monotonic()
                    ran = await job.result()
                    called.append((ran - before) * 1000)
                    committed.append((ran - after) * 1000)
            process.terminate()
            process.wait()
        _print_percentiles("since the submit was called", called)
        _print_percentiles("since its commit was known", committed)

    async def measure_sleepers(self) -> None:
        """Measure the memory of one process that runs 10,000 sleeping tasks at once."""
        async with (
            create_database(self.server, self.settings) as url,
            open_connection(url, self.settings) as connection,
        ):
            process = start_worker(url, "-c", "10000")
            async with Client(url.reveal(), settings=self.settings) as client:
                for _ in range(10):
                    await client.submit_many([sleep_for(20.0) for _ in range(1000)])
            maximum, size = 0, 0.0
            while await connection.fetchval("select count(*) from holdfast.tasks"):
                running = await connection.fetchval(
                    "select count(*) from holdfast.tasks where status = 'running'"
                )
                maximum, size = max(maximum, running), max(size, _read_resident_mib(process.pid))
                await asyncio.sleep(1)
            print(f"memory: {maximum:,} slept at once, in {size:.0f} MiB", flush=True)
            process.terminate()
            process.wait()

    async def measure_memory(self) -> None:
        """Measure the memory of one process after each tenth of a million no-ops."""
        async with (
            create_database(self.server, self.settings) as url,
            open_connection(url, self.settings) as connection,
        ):
            process = start_worker(url, "-c", str(self.concurrency))
            sizes: list[float] = []
            for number in range(MEMORY_ROUNDS):
                await self._submit_noops(url, "noop", self.tasks)
                while await connection.fetchval("select exists (select from holdfast.tasks)"):  # noqa: ASYNC110
                    await asyncio.sleep(0.5)
                sizes.append(_read_resident_mib(process.pid))
                print(f"memory: {sizes[-1]:.2f} MiB after {(number + 1) * self.tasks:,} no-ops", flush=True)
            # The first rounds fill caches. Growth after them is permanent.
            growth_mib = (sizes[-1] - sizes[1]) / (len(sizes) - 2) / self.tasks * 100_000
            print(f"memory: {growth_mib:+.2f} MiB per 100,000 no-ops, the first two rounds left out")
            process.terminate()
            process.wait()


def _print_percentiles(since: str, waits: list[float]) -> None:
    waits.sort()
    last = len(waits) - 1
    p50, p99 = statistics.median(waits), waits[round(last * 0.99)]
    print(f"wake-up, {since}: p50 {p50:.1f} ms   p99 {p99:.1f} ms   max {waits[-1]:.1f} ms", flush=True)


def read_children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _read_resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("server", help="Create the databases on the server with this URL.")
    parser.add_argument(
        "--tasks", type=int, default=100_000, help="Run this many tasks per part. Default: 100,000."
    )
    parser.add_argument(
        "--concurrency", type=int, default=400, help="Run this many tasks at once per worker. Default: 400."
    )
    parser.add_argument("--only", default=",".join(PART_NAMES), help="Run these parts. Default: all.")
    options = parser.parse_args()
    benchmark = WorkerBenchmark(Secret(options.server), load_settings({}), options.tasks, options.concurrency)
    parts: dict[str, Callable[[], Awaitable[None]]] = {
        name: getattr(benchmark, f"measure_{name}") for name in PART_NAMES
    }
    part_names = options.only.split(",")
    for number in range(DRAIN_ROUNDS):
        for name in part_names:
            if name in ("drain", "two") or not number:
                await parts[name]()
    benchmark.print_process_ratio()


if __name__ == "__main__":
    asyncio.run(main())
