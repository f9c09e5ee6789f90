"""How fast worker processes drain no-op tasks, how soon they wake up, and what they hold in memory.

    python bench/worker.py postgresql://...          a server on which databases may be made

Seconds depend on what else the machine does; processor time per task hardly does, so both are printed. Server
time is that of all its processes, where they can be seen (same machine, Linux).
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

QUEUE = "bench"
PARTS = ("drain", "two", "plain", "wakeup", "sleepers", "memory")
ROUNDS_OF_DRAINS = 3
ROUNDS = 10  # of no-ops, to see whether memory grows
TICKS = os.sysconf("SC_CLK_TCK")


@task(queue=QUEUE)
async def noop(n: int) -> None:
    pass


@task(queue=QUEUE)
def plain(n: int) -> None:
    pass


@task(queue=QUEUE)
async def stamp() -> float:
    return time.monotonic()


@task(queue=QUEUE)
async def sleeper(seconds: float) -> None:
    await asyncio.sleep(seconds)


@asynccontextmanager
async def database(server: Secret, settings: Settings) -> AsyncGenerator[Secret]:
    name = f"hf_bench_{uuid4().hex[:12]}"
    await scratch.create_database(server, name, settings)
    url = scratch.url_of_database(server, name)
    try:
        await install.migrate_database(url, settings)
        yield url
    finally:
        await scratch.drop_database(server, name, settings)


def worker(url: Secret, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "--log-level", "warning", "worker", __file__, *options],
        env={**os.environ, "HOLDFAST_DATABASE_URL": url.reveal()},
    )


def server_seconds(postmaster: int) -> float:
    """Processor time of a server and all its processes, as far as they live."""
    total = 0
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if postmaster in (int(place.name), int(fields[1])):
                total += int(fields[11]) + int(fields[12])
            if postmaster == int(place.name):
                total += int(fields[13]) + int(fields[14])  # of those that have ended
    return total / TICKS


async def postmaster_of(connection: Connection) -> int:
    """Of a server on this machine: the parent of the process that serves us."""
    pid = await connection.fetchval("select pg_backend_pid()")
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])  # noqa: ASYNC240


@dataclass
class Bench:
    server: Secret
    settings: Settings
    tasks: int
    concurrency: int
    rates: dict[int, list[float]] = field(default_factory=dict)

    def ratio(self) -> None:
        """Medians of all rounds: a machine has faster and slower minutes."""
        if {1, 2} <= self.rates.keys():
            one, two = (statistics.median(self.rates[processes]) for processes in (1, 2))
            print(
                f"drain noop, medians: {one:,.0f}/s by one, {two:,.0f}/s by two, {two / one:.2f} times",
                flush=True,
            )

    async def drain(self, processes: int = 1, which: str = "noop") -> None:
        """From the first outcome to the last, with the work of starting and ending left out."""
        async with (
            database(self.server, self.settings) as url,
            open_connection(url, self.settings) as connection,
        ):
            await self._submit(url, which, self.tasks)
            await connection.execute("vacuum analyze holdfast.tasks")
            postmaster = await postmaster_of(connection)
            before, used = server_seconds(postmaster), _children_seconds()
            running = [worker(url, "-c", str(self.concurrency), "--drain") for _ in range(processes)]
            for process in running:
                await asyncio.to_thread(process.wait)
            server = server_seconds(postmaster) - before
            client = _children_seconds() - used - processes * self._idle_seconds(url)
            seconds = await connection.fetchval(
                "select extract(epoch from max(finished_at) - min(finished_at))::float8 from holdfast.history"
            )
            done = await connection.fetchval("select count(*) from holdfast.history")
            if which == "noop":
                self.rates.setdefault(processes, []).append(done / seconds)
            print(
                f"drain {which:6} {processes} process(es): {done / seconds:9,.0f}/s   "
                f"worker {client / done * 1e6:5.1f} us/task   server {server / done * 1e6:5.1f} us/task"
            )

    def _idle_seconds(self, url: Secret) -> float:
        """What a worker costs that finds nothing to do."""
        before = _children_seconds()
        worker(url, "--drain").wait()
        return _children_seconds() - before

    async def _submit(self, url: Secret, which: str, count: int) -> None:
        kinds = {"noop": noop, "plain": plain}
        async with Client(url.reveal(), settings=self.settings) as client:
            for at in range(0, count, 1000):
                await client.submit_many([kinds[which](n) for n in range(at, min(at + 1000, count))])

    async def plain(self) -> None:
        await self.drain(which="plain")

    async def two(self) -> None:
        await self.drain(processes=2)

    async def wakeup(self) -> None:
        """From the submit of a task, and from its commit, until it runs in a worker that slept."""
        async with database(self.server, self.settings) as url:
            process = worker(url)
            async with Client(url.reveal(), settings=self.settings) as client:
                await (await client.submit(stamp())).result()
                called: list[float] = []
                committed: list[float] = []
                for _ in range(100):
                    await asyncio.sleep(0.7)  # asleep again
                    before = time.monotonic()
                    job = await client.submit(stamp())
                    after = time.monotonic()
                    ran = await job.result()
                    called.append((ran - before) * 1000)
                    committed.append((ran - after) * 1000)
            process.terminate()
            process.wait()
        _print_waits("since the submit was called", called)
        _print_waits("since its commit was known", committed)

    async def sleepers(self) -> None:
        """10,000 tasks that sleep at once in one process."""
        async with (
            database(self.server, self.settings) as url,
            open_connection(url, self.settings) as connection,
        ):
            process = worker(url, "-c", "10000")
            async with Client(url.reveal(), settings=self.settings) as client:
                for _ in range(10):
                    await client.submit_many([sleeper(20.0) for _ in range(1000)])
            maximum, size = 0, 0.0
            while await connection.fetchval("select count(*) from holdfast.tasks"):
                running = await connection.fetchval(
                    "select count(*) from holdfast.tasks where status = 'running'"
                )
                maximum, size = max(maximum, running), max(size, _resident(process.pid))
                await asyncio.sleep(1)
            print(f"memory: {maximum:,} slept at once, in {size:.0f} MiB", flush=True)
            process.terminate()
            process.wait()

    async def memory(self) -> None:
        """A million no-ops in a process that did nothing else: what it holds after each part."""
        async with (
            database(self.server, self.settings) as url,
            open_connection(url, self.settings) as connection,
        ):
            process = worker(url, "-c", str(self.concurrency))
            sizes: list[float] = []
            for number in range(ROUNDS):
                await self._submit(url, "noop", self.tasks)
                while await connection.fetchval("select exists (select from holdfast.tasks)"):  # noqa: ASYNC110
                    await asyncio.sleep(0.5)
                sizes.append(_resident(process.pid))
                print(f"memory: {sizes[-1]:.2f} MiB after {(number + 1) * self.tasks:,} no-ops", flush=True)
            # The first rounds fill what is kept for reuse; what grows after that grows for good.
            grown = (sizes[-1] - sizes[1]) / (len(sizes) - 2) / self.tasks * 100_000
            print(f"memory: {grown:+.2f} MiB per 100,000 no-ops, the first two rounds left out")
            process.terminate()
            process.wait()


def _print_waits(since: str, waits: list[float]) -> None:
    waits.sort()
    last = len(waits) - 1
    p50, p99 = statistics.median(waits), waits[round(last * 0.99)]
    print(f"wake-up, {since}: p50 {p50:.1f} ms   p99 {p99:.1f} ms   most {waits[-1]:.1f} ms", flush=True)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("server")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--concurrency", type=int, default=400)
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args()
    bench = Bench(Secret(options.server), load_settings({}), options.tasks, options.concurrency)
    parts: dict[str, Callable[[], Awaitable[None]]] = {name: getattr(bench, name) for name in PARTS}
    chosen = options.only.split(",")
    for number in range(ROUNDS_OF_DRAINS):
        for name in chosen:
            if name in ("drain", "two") or not number:
                await parts[name]()
    bench.ratio()


if __name__ == "__main__":
    asyncio.run(main())
