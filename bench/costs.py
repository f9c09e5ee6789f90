"""Count what tasks cost the server: CPU time and WAL bytes per task, for each kind of work.

    python -m bench.costs postgresql://user@host/postgres [--tasks 10000] [--only single,failed,...]

Counted costs hardly depend on what else the machine does, so they can be compared before and after a change.
CPU time is that of the one backend that serves the calls; the server must run on the same Linux machine.
Every kind of work is compared with a single task that succeeds, submit included.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from bench.engine import TASK_ARGS, create_database, read_wal_position
from holdfast.engine import leases
from holdfast.engine.jobs import submit_many
from holdfast.model import Progress
from holdfast.settings import Secret, load_settings

QUEUE = "costs"
TASK_TYPE = "noop"
BATCH_SIZE = 100
DEFAULT_CONCURRENCY_BATCH_SIZE = 5  # half of the ten tasks that a worker runs at once by default
GRAPH_WIDTH = 100
ROUNDS = 3
# As the worker reports a short exception: three frames.
ERROR_BODY = msgspec.json.encode(
    {
        "type": "ValueError",
        "message": "the remote service refused the request",
        "traceback": "Traceback (most recent call last):\n"
        + "".join(
            f'  File "/srv/app/lib/python3.11/site-packages/app/module_{n}.py", line {n}7, in function_{n}\n'
            f"    value_{n} = await client.request(url, timeout=settings.timeout_s)\n"
            for n in range(3)
        )
        + "ValueError: the remote service refused the request\n",
        "fingerprint": "ValueError module_2.py:function_2",
    }
)
REPORTS_PER_TASK = 5


@dataclass
class Cost:
    """CPU microseconds, WAL bytes and statements per task."""

    cpu_us: float
    wal_bytes: float
    statements: float


@dataclass
class Meter:
    """A connection whose backend is measured."""

    connection: asyncpg.Connection
    pid: int
    statements: int = 0

    async def start(self) -> tuple[float, int, int]:
        wal_bytes = await read_wal_position(self.connection)
        return self._read_cpu_us(), wal_bytes, self.statements

    async def stop(self, before: tuple[float, int, int], tasks: int) -> Cost:
        cpu_us = self._read_cpu_us() - before[0]
        wal_bytes = await read_wal_position(self.connection) - before[1]
        return Cost(cpu_us / tasks, wal_bytes / tasks, (self.statements - before[2]) / tasks)

    def _read_cpu_us(self) -> float:
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1000

    async def fetch(self, query: str, *arguments: object) -> list[Any]:
        self.statements += 1
        return await self.connection.fetch(query, *arguments)


Outcomes = Callable[[leases.LeasedTask], leases.Outcome]


def succeed_task(task: leases.LeasedTask) -> leases.Outcome:
    return leases.Outcome(id=task.id, attempt=task.attempt, nonce=task.nonce, kind="succeed", body=b"1")


def fail_task(task: leases.LeasedTask) -> leases.Outcome:
    return leases.Outcome(id=task.id, attempt=task.attempt, nonce=task.nonce, kind="fail", body=ERROR_BODY)


async def submit_singles(meter: Meter, count: int, **options: object) -> None:
    for start in range(0, count, 1000):
        jobs = [
            {"type": TASK_TYPE, "queue": QUEUE, "args": TASK_ARGS, **options}
            for _ in range(min(1000, count - start))
        ]
        meter.statements += 1
        await submit_many(meter.connection, jobs)


async def submit_graphs(meter: Meter, count: int) -> None:
    """Submit jobs of a hundred tasks and one that waits for all of them."""
    task = {"type": TASK_TYPE, "queue": QUEUE, "args": TASK_ARGS}
    tasks = [{**task, "name": f"part {n}"} for n in range(GRAPH_WIDTH)]
    join = {**task, "name": "join", "after": [t["name"] for t in tasks]}
    body = msgspec.json.encode({"type": "graph", "tasks": [*tasks, join]}).decode()
    for _ in range(count // (GRAPH_WIDTH + 1)):
        await meter.fetch("select holdfast.submit($1)", body)


async def drain_tasks(
    meter: Meter, build_outcome: Outcomes = succeed_task, batch_size: int = BATCH_SIZE
) -> int:
    """Claim and finish all tasks that are ready. Return their number."""
    outcomes: list[leases.Outcome] = []
    cursors, count = None, 0
    while True:
        meter.statements += 1
        response = await leases.finish_and_claim(
            meter.connection,
            worker="costs",
            outcomes=outcomes,
            slots=batch_size,
            queues=[QUEUE],
            types=[TASK_TYPE],
            cursors=cursors,
            nonce=leases.create_nonce(),
        )
        cursors, finished = response.cursors, len(outcomes)
        count += finished
        outcomes = [build_outcome(task) for task in response.tasks]
        if not outcomes and not finished:
            return count


@dataclass
class CostBenchmark:
    server: Secret
    tasks: int
    results: dict[str, list[Cost]] = field(default_factory=dict[str, list[Cost]])

    async def measure(self, name: str, part: Callable[[Meter], Awaitable[int]]) -> None:
        """Measure one part in a database of its own. `part` returns its number of tasks."""
        async with create_database(self.server, load_settings({})) as url:
            connection = await asyncpg.connect(url)
            meter = Meter(connection, await connection.fetchval("select pg_backend_pid()"))
            await submit_singles(meter, 200)  # plans are cached from here on
            await drain_tasks(meter, batch_size=10)
            before = await meter.start()
            count = await part(meter)
            self.results.setdefault(name, []).append(await meter.stop(before, count))
            await connection.close()

    async def measure_submit(self) -> None:
        async def submit(meter: Meter) -> int:
            await submit_singles(meter, self.tasks)
            return self.tasks

        await self.measure("submit_many, by 1,000", submit)

    async def measure_one(self) -> None:
        async def submit(meter: Meter) -> int:
            body = msgspec.json.encode({"type": TASK_TYPE, "queue": QUEUE, "args": TASK_ARGS}).decode()
            for _ in range(self.tasks // 5):
                await meter.fetch("select holdfast.submit_standalone($1)", body)
            return self.tasks // 5

        await self.measure("submit_standalone", submit)

    async def measure_single(self) -> None:
        async def run(meter: Meter) -> int:
            await submit_singles(meter, self.tasks)
            return await drain_tasks(meter)

        await self.measure("succeed", run)

    async def measure_small(self) -> None:
        async def run(meter: Meter) -> int:
            await submit_singles(meter, self.tasks // 2)
            return await drain_tasks(meter, batch_size=DEFAULT_CONCURRENCY_BATCH_SIZE)

        await self.measure("succeed, batches of 5", run)

    async def measure_failed(self) -> None:
        async def run(meter: Meter) -> int:
            await submit_singles(meter, self.tasks, attempts=1)
            return await drain_tasks(meter, fail_task)

        await self.measure("fail for good", run)

    async def measure_retried(self) -> None:
        async def run(meter: Meter) -> int:
            await submit_singles(meter, self.tasks)
            return await drain_tasks(meter, fail_task)

        await self.measure("fail and wait for a retry", run)

    async def measure_graph(self) -> None:
        async def run(meter: Meter) -> int:
            await submit_graphs(meter, self.tasks)
            return await drain_tasks(meter)

        await self.measure("graph of 100 and a join", run)

    async def measure_graph_submit(self) -> None:
        async def run(meter: Meter) -> int:
            await submit_graphs(meter, self.tasks)
            return self.tasks

        await self.measure("submit of such graphs", run)

    async def measure_report(self) -> None:
        await self._measure_reports("report progress, one by one", batch_size=1)
        await self._measure_reports("report progress, ten at once", batch_size=10)

    async def _measure_reports(self, name: str, batch_size: int) -> None:
        """Report the progress of 100 tasks. A worker combines the reports of its running tasks."""

        async def run(meter: Meter) -> int:
            await submit_singles(meter, 100)
            response = await leases.finish_and_claim(
                meter.connection, worker="costs", slots=100, queues=[QUEUE], types=[TASK_TYPE]
            )
            for percent in range(REPORTS_PER_TASK):
                progress = Progress(percent=percent * 20.0, phase="phase")
                for start in range(0, len(response.tasks), batch_size):
                    meter.statements += 1
                    tasks = response.tasks[start : start + batch_size]
                    await leases.save_progress(meter.connection, [(task, progress) for task in tasks])
            return len(response.tasks) * REPORTS_PER_TASK

        await self.measure(name, run)

    def print_results(self) -> None:
        baseline = self._get_median("succeed") if "succeed" in self.results else None
        for name in self.results:
            cost = self._get_median(name)
            line = (
                f"{name:28} {cost.cpu_us:8.1f} us {cost.wal_bytes:8.0f} WAL bytes "
                f"{cost.statements:6.3f} statements"
            )
            if baseline is not None:
                line += (
                    f"  {cost.cpu_us / baseline.cpu_us:5.2f} x CPU"
                    f" {cost.wal_bytes / baseline.wal_bytes:5.2f} x WAL"
                )
            print(line, flush=True)

    def _get_median(self, name: str) -> Cost:
        """Return the median of the rounds: a checkpoint in one of them adds WAL."""
        costs = self.results[name]
        return Cost(
            statistics.median(c.cpu_us for c in costs),
            statistics.median(c.wal_bytes for c in costs),
            costs[0].statements,
        )


PART_NAMES = ("single", "small", "failed", "retried", "graph", "graph_submit", "submit", "one", "report")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("server", help="Create the databases on the server with this URL.")
    parser.add_argument("--tasks", type=int, default=10_000, help="Tasks per part. Default: 10,000.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"Default: {ROUNDS}.")
    parser.add_argument("--only", default=",".join(PART_NAMES), help="Run these parts. Default: all.")
    options = parser.parse_args()
    benchmark = CostBenchmark(Secret(options.server), options.tasks)
    for _ in range(options.rounds):
        for name in options.only.split(","):
            await getattr(benchmark, f"measure_{name}")()
    benchmark.print_results()


if __name__ == "__main__":
    asyncio.run(main())
