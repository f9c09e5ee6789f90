"""Benchmark of the engine: submit, claim and finish tasks, compared with plain SQL on the same server.

    python -m bench.engine postgresql://user@host/postgres [--tasks 100000] [--rows 10000000]
        [--rounds 3] [--only drain,pinned,...]

Creates databases and drops them. All parts run in turn, several times; the best result of each part counts.
Every rate is printed with its ratio to a baseline of the same run. Only ratios and counts (WAL bytes, pages)
compare across machines.
"""

from __future__ import annotations

import argparse
import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import asyncpg
import msgspec

from bench.history import INSERT_HISTORY_ROWS, count_accessed_pages, measure_user_queries
from holdfast.engine import install, leases, scratch
from holdfast.settings import Secret, Settings, load_settings

Connection = asyncpg.Connection
BENCH_QUEUE = "bench"
TASK_TYPE = "noop"
TASK_ARGS = {"url": "https://example.com/some/page", "width": 1280, "note": "x" * 120}
SUBMIT_BATCH_SIZE = 1000
ENGINE_DRAIN_LABEL = "drain, batches of 100"
PLAIN_DRAIN_LABEL = "plain SQL, batches of 100"

CREATE_PLAIN_TABLES_SQL = """
create table bare (id uuid primary key, pos bigint generated always as identity, status text not null,
  attempt int not null default 0, nonce bigint, lease_until timestamptz, args jsonb) with (fillfactor = 70);
create index bare_ready on bare (pos) where status = 'ready';
create table bare_done (id uuid, attempt int, finished_at timestamptz, args jsonb, output jsonb);
create index on bare_done (id);
"""
PLAIN_CLAIM_SQL = """
with picked as materialized (
  select id from bare where status = 'ready' and pos >= $2 order by pos limit $1 for update skip locked)
update bare b set status = 'running', attempt = b.attempt + 1, nonce = 1, lease_until = clock_timestamp()
from picked p where b.id = p.id returning b.id, b.pos, b.attempt, b.args
"""
PLAIN_FINISH_SQL = """
with gone as (delete from bare where id = any($1) returning *)
insert into bare_done select id, attempt, clock_timestamp(), args, '1' from gone
"""


@dataclass
class BenchmarkResult:
    """The rate of one measurement in tasks per second, with its costs per task."""

    name: str
    rate: float
    fifths: list[float] = field(default_factory=list)
    wal_bytes: float | None = None
    pages: float | None = None

    def print_rate(self, baseline: BenchmarkResult | None = None) -> None:
        ratio = f"{self.rate / baseline.rate:6.2f} x {baseline.name}" if baseline else ""
        wal_text = f"  {self.wal_bytes:6.0f} WAL bytes/task" if self.wal_bytes else ""
        pages_text = f"  {self.pages:5.1f} pages/task" if self.pages else ""
        fifths_text = (
            f"  first fifth {self.fifths[0]:,.0f}/s, last {self.fifths[-1]:,.0f}/s" if self.fifths else ""
        )
        print(f"{self.name:42} {self.rate:9,.0f}/s {ratio:28}{wal_text}{pages_text}{fifths_text}", flush=True)


@asynccontextmanager
async def create_database(server: Secret, settings: Settings) -> AsyncGenerator[str]:
    """Create a database with Holdfast, yield its URL, and drop the database."""
    name = f"hf_bench_{uuid.uuid4().hex[:8]}"
    await scratch.create_test_database(server, name, settings)
    url = scratch.build_database_url(server, name)
    await install.migrate_database(url, settings)
    try:
        yield url.reveal()
    finally:
        await scratch.drop_test_database(server, name, settings)


async def read_wal_position(conn: Connection) -> int:
    return await conn.fetchval("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")


async def submit_tasks(url: str, count: int, *, keys: int = 0, connections: int = 1) -> BenchmarkResult:
    async def submit_share(number: int) -> None:
        conn = await asyncpg.connect(url)
        for start in range(number * SUBMIT_BATCH_SIZE, count, SUBMIT_BATCH_SIZE * connections):
            jobs = [
                {
                    "type": TASK_TYPE,
                    "queue": BENCH_QUEUE,
                    "args": TASK_ARGS,
                    **({"limit_key": f"k{n % keys}"} if keys else {}),
                }
                for n in range(start, min(start + SUBMIT_BATCH_SIZE, count))
            ]
            await conn.fetch("select holdfast.submit_many($1)", msgspec.json.encode(jobs).decode())
        await conn.close()

    watch = await asyncpg.connect(url)
    before, started_at = await read_wal_position(watch), time.perf_counter()
    await asyncio.gather(*(submit_share(number) for number in range(connections)))
    seconds = time.perf_counter() - started_at
    wal_bytes = (await read_wal_position(watch) - before) / count
    await watch.close()
    return BenchmarkResult(
        f"submit_many, batches of 1,000, {connections} connection(s)", count / seconds, wal_bytes=wal_bytes
    )


async def submit_one_by_one(url: str, count: int) -> BenchmarkResult:
    conn = await asyncpg.connect(url)
    body = msgspec.json.encode({"type": TASK_TYPE, "queue": "single", "args": TASK_ARGS}).decode()
    async with conn.transaction():
        started_at = time.perf_counter()
        for _ in range(count):
            await conn.fetchval("select holdfast.submit($1)", body)
        seconds = time.perf_counter() - started_at
    await conn.close()
    return BenchmarkResult("submit, one each, one transaction", count / seconds)


async def drain_tasks(
    url: str, name: str, count: int, *, batch: int, connections: int = 2
) -> BenchmarkResult:
    """Claim and finish `count` tasks. One call reports the outcomes of a batch and claims the next."""
    marks: list[tuple[float, int]] = []
    remaining = [count]

    async def run_worker(number: int) -> None:
        conn = await asyncpg.connect(url)
        outcomes: list[leases.Outcome] = []
        cursors = None
        while True:
            slots = min(batch, remaining[0])
            remaining[0] -= slots
            if not slots and not outcomes:
                break
            response = await leases.finish_and_claim(
                conn,
                worker=f"bench-{number}",
                outcomes=outcomes,
                slots=slots,
                queues=[BENCH_QUEUE],
                types=[TASK_TYPE],
                cursors=cursors,
            )
            if outcomes:
                marks.append((time.perf_counter(), len(outcomes)))
            remaining[0] += slots - len(response.tasks)
            cursors = response.cursors
            outcomes = [
                leases.Outcome(id=t.id, attempt=t.attempt, nonce=t.nonce, kind="succeed", body=b"1")
                for t in response.tasks
            ]
        await conn.close()

    watch = await asyncpg.connect(url)
    await asyncio.sleep(1.5)  # a server publishes its page counts at most once per second
    pages_before = await count_accessed_pages(watch)
    before, started_at = await read_wal_position(watch), time.perf_counter()
    await asyncio.gather(*(run_worker(n) for n in range(connections)))
    seconds = time.perf_counter() - started_at
    wal_bytes = (await read_wal_position(watch) - before) / count
    await asyncio.sleep(1.5)
    pages = (await count_accessed_pages(watch) - pages_before) / count
    await watch.close()
    return BenchmarkResult(
        name, count / seconds, _compute_rates_by_fifth(started_at, marks), wal_bytes, pages
    )


def _compute_rates_by_fifth(started_at: float, marks: list[tuple[float, int]]) -> list[float]:
    """Return the rate of each fifth of a run, from pairs of time and number of finished tasks."""
    marks = sorted(marks)
    size = max(len(marks) // 5, 1)
    rates: list[float] = []
    start = started_at
    for group in (marks[n : n + size] for n in range(0, size * 5, size)):
        if group and group[-1][0] > start:
            rates.append(sum(n for _, n in group) / (group[-1][0] - start))
            start = group[-1][0]
    return rates


async def drain_plain_table(url: str, count: int, *, batch: int, connections: int = 2) -> BenchmarkResult:
    """Drain a table with plain SQL statements, as the baseline for the engine."""
    conn = await asyncpg.connect(url)
    await conn.execute(CREATE_PLAIN_TABLES_SQL)
    await conn.execute(
        "insert into bare (id, status, args) "
        "select gen_random_uuid(), 'ready', $1 from generate_series(1, $2)",
        msgspec.json.encode(TASK_ARGS).decode(),
        count,
    )
    before, started_at = await read_wal_position(conn), time.perf_counter()

    async def run_worker() -> None:
        connection = await asyncpg.connect(url)
        ids: list[uuid.UUID] = []
        cursor = 0
        while True:
            async with connection.transaction():
                if ids:
                    await connection.execute(PLAIN_FINISH_SQL, sorted(ids))
                rows = await connection.fetch(PLAIN_CLAIM_SQL, batch, max(cursor - 2000, 0))
            ids = [row["id"] for row in rows]
            if not ids:
                break
            cursor = max(row["pos"] for row in rows)
        await connection.close()

    await asyncio.gather(*(run_worker() for _ in range(connections)))
    seconds = time.perf_counter() - started_at
    wal_bytes = (await read_wal_position(conn) - before) / count
    await conn.close()
    return BenchmarkResult(PLAIN_DRAIN_LABEL, count / seconds, wal_bytes=wal_bytes)


@asynccontextmanager
async def hold_snapshot(url: str) -> AsyncGenerator[None]:
    """Hold a snapshot open in another session while the block runs."""
    conn = await asyncpg.connect(url)
    transaction = conn.transaction(isolation="repeatable_read", readonly=True)
    await transaction.start()
    await conn.fetchval("select count(*) from pg_class")
    yield
    await transaction.rollback()
    await conn.close()


@dataclass
class EngineBenchmark:
    """The parts of the benchmark, and the best result of each measurement."""

    server: Secret
    settings: Settings
    tasks: int
    rows: int = 10_000_000
    best_results: dict[str, BenchmarkResult] = field(default_factory=dict)

    def keep_best(self, *results: BenchmarkResult) -> None:
        """Keep the best result of each name, so that a slow moment of the machine does not count."""
        for result in results:
            if result.rate > getattr(self.best_results.get(result.name), "rate", 0.0):
                self.best_results[result.name] = result

    def print_results(self) -> None:
        plain, baseline = self.best_results.get(PLAIN_DRAIN_LABEL), self.best_results.get(ENGINE_DRAIN_LABEL)
        for result in self.best_results.values():
            result.print_rate(None if result is plain else plain if result is baseline else baseline)

    async def measure_drain(self) -> None:
        """Measure submits and drains of an otherwise empty database, and the plain SQL baseline."""
        async with create_database(self.server, self.settings) as url:
            self.keep_best(await submit_tasks(url, self.tasks))
            self.keep_best(await drain_tasks(url, ENGINE_DRAIN_LABEL, self.tasks, batch=100))
            self.keep_best(await drain_plain_table(url, self.tasks, batch=100))
            self.keep_best(await submit_tasks(url, self.tasks, connections=2))
            self.keep_best(await drain_tasks(url, "drain, batches of 200", self.tasks, batch=200))
            await submit_tasks(url, self.tasks)
            self.keep_best(
                await drain_tasks(url, "drain, one connection", self.tasks, batch=100, connections=1)
            )
            self.keep_best(await submit_one_by_one(url, 5000))

    async def measure_pinned(self) -> None:
        """Drain while another session holds an old snapshot."""
        async with create_database(self.server, self.settings) as url, hold_snapshot(url):
            await submit_tasks(url, self.tasks)
            self.keep_best(await drain_tasks(url, "drain, old snapshot", self.tasks, batch=100))

    async def measure_writer(self) -> None:
        """Drain while a writing transaction stays open, so that the cursor cannot advance."""
        async with create_database(self.server, self.settings) as url:
            await submit_tasks(url, self.tasks)
            conn = await asyncpg.connect(url)
            transaction = conn.transaction()
            await transaction.start()
            await conn.fetchval("select holdfast.submit($1)", '{"type": "late", "queue": "late"}')
            self.keep_best(await drain_tasks(url, "drain, open writing transaction", self.tasks, batch=100))
            await transaction.rollback()
            await conn.close()

    async def measure_backlog(self) -> None:
        """Drain with a million waiting tasks."""
        async with create_database(self.server, self.settings) as url:
            await submit_tasks(url, 1_000_000)
            self.keep_best(await drain_tasks(url, "drain at 1,000,000 waiting", self.tasks, batch=100))

    async def measure_history(self) -> None:
        """Drain with ten million ended jobs in the history, then measure the queries of users."""
        async with create_database(self.server, self.settings) as url:
            conn = await asyncpg.connect(url)
            await submit_tasks(url, 1000)
            await drain_tasks(url, "", 1000, batch=100)
            await conn.execute("select holdfast.tick()")
            for _ in range(0, self.rows, 500_000):
                await conn.execute(INSERT_HISTORY_ROWS, min(500_000, self.rows))
            await submit_tasks(url, self.tasks)
            name = f"drain, {self.rows:,} rows of history"
            self.keep_best(await drain_tasks(url, name, self.tasks, batch=100))
            await submit_tasks(url, self.tasks)
            await conn.execute("analyze holdfast.tasks, holdfast.history")
            self.keep_best(await drain_tasks(url, "the same, fresh statistics", self.tasks, batch=100))
            await submit_tasks(url, 10)
            await measure_user_queries(conn)
            await conn.close()

    async def measure_running(self) -> None:
        """Drain while another worker holds 10,000 live leases."""
        async with create_database(self.server, self.settings) as url:
            await submit_tasks(url, 10_000 + self.tasks)
            conn = await asyncpg.connect(url)
            for _ in range(20):
                await leases.finish_and_claim(conn, worker="holder", slots=500, queues=[BENCH_QUEUE])
            await conn.close()
            self.keep_best(await drain_tasks(url, "drain, 10,000 running", self.tasks, batch=100))

    async def measure_statistics(self) -> None:
        """Drain with planner statistics of empty tables, then with statistics of the full tables."""
        async with create_database(self.server, self.settings) as url:
            conn = await asyncpg.connect(url)
            await conn.execute("alter table holdfast.tasks set (autovacuum_enabled = off)")
            await conn.execute("analyze holdfast.tasks, holdfast.lanes, holdfast.history")
            await submit_tasks(url, 2 * self.tasks)
            self.keep_best(await drain_tasks(url, "drain, statistics of nothing", self.tasks, batch=100))
            await conn.execute("analyze holdfast.tasks, holdfast.lanes, holdfast.history")
            self.keep_best(await drain_tasks(url, "drain, statistics of before", self.tasks, batch=100))
            await conn.close()

    async def measure_limits(self) -> None:
        """Drain 100 keys without a limit, then with a limit per key."""
        async with create_database(self.server, self.settings) as url:
            conn = await asyncpg.connect(url)
            await submit_tasks(url, self.tasks, keys=100)
            self.keep_best(await drain_tasks(url, "drain, 100 keys in turn", self.tasks, batch=100))
            await conn.execute(
                "select holdfast.put_limit('per-key', p_queue => $1, p_per_key => true, p_max_running => 10)",
                BENCH_QUEUE,
            )
            await conn.close()
            await submit_tasks(url, self.tasks, keys=100)
            self.keep_best(await drain_tasks(url, "drain, 100 keys, 10 each at once", self.tasks, batch=100))
            await submit_tasks(url, self.tasks, keys=100)
            async with hold_snapshot(url):
                self.keep_best(await drain_tasks(url, "the same, old snapshot", self.tasks, batch=100))

    async def measure_keys(self) -> None:
        """Drain 5,000 keys in turn, without a limit."""
        async with create_database(self.server, self.settings) as url:
            await submit_tasks(url, self.tasks, keys=5000)
            self.keep_best(await drain_tasks(url, "drain, 5,000 keys in turn", self.tasks, batch=100))


PART_NAMES = ("drain", "pinned", "writer", "backlog", "running", "statistics", "limits", "keys", "history")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", help="Create the databases on the server with this URL.")
    parser.add_argument("--tasks", type=int, default=100_000, help="Drain this many tasks. Default: 100,000.")
    parser.add_argument(
        "--rounds", type=int, default=3, help="Run every part this often and keep the best. Default: 3."
    )
    parser.add_argument(
        "--rows", type=int, default=10_000_000, help="Insert this many history rows. Default: 10,000,000."
    )
    parser.add_argument(
        "--only", default=",".join(PART_NAMES), help="Run these parts. Ratios need drain. Default: all."
    )
    options = parser.parse_args()
    benchmark = EngineBenchmark(Secret(options.server), load_settings({}), options.tasks, options.rows)
    try:
        for number in range(options.rounds):
            for name in options.only.split(","):
                part: Callable[[], Awaitable[None]] = getattr(benchmark, f"measure_{name}")
                if (
                    name != "history" or not number
                ):  # in the first round only: filling the history takes minutes
                    await part()
    finally:
        benchmark.print_results()


if __name__ == "__main__":
    asyncio.run(main())
