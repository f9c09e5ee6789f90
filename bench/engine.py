"""How fast the engine submits, claims and finishes, next to the bare statements on the same server.

    python -m bench.engine postgresql://user@host/postgres [--tasks 100000] [--rows 10000000]
        [--rounds 3] [--only drain,pinned,...]

Makes databases of its own and drops them. All parts run in turn, several times, and the best of each counts.
Every number is printed with its ratio to a baseline of the same run; only ratios and counted things (WAL
bytes, buffers) compare across machines.
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

from bench.history import HISTORY, pages_now, questions
from holdfast.engine import install, leases, scratch
from holdfast.settings import Secret, Settings, load_settings

Connection = asyncpg.Connection
QUEUE = "bench"
TYPE = "noop"
ARGS = {"url": "https://example.com/some/page", "width": 1280, "note": "x" * 120}
PAGE = 1000
DRAIN = "drain, batches of 100"
BARE_DRAIN = "bare statements, batches of 100"

BARE = """
create table bare (id uuid primary key, pos bigint generated always as identity, status text not null,
  attempt int not null default 0, nonce bigint, lease_until timestamptz, args jsonb) with (fillfactor = 70);
create index bare_ready on bare (pos) where status = 'ready';
create table bare_done (id uuid, attempt int, finished_at timestamptz, args jsonb, output jsonb);
create index on bare_done (id);
"""
BARE_CLAIM = """
with picked as materialized (
  select id from bare where status = 'ready' and pos >= $2 order by pos limit $1 for update skip locked)
update bare b set status = 'running', attempt = b.attempt + 1, nonce = 1, lease_until = clock_timestamp()
from picked p where b.id = p.id returning b.id, b.pos, b.attempt, b.args
"""
BARE_FINISH = """
with gone as (delete from bare where id = any($1) returning *)
insert into bare_done select id, attempt, clock_timestamp(), args, '1' from gone
"""


@dataclass
class Result:
    name: str
    rate: float
    fifths: list[float] = field(default_factory=list)
    wal: float | None = None
    pages: float | None = None

    def show(self, base: Result | None = None) -> None:
        ratio = f"{self.rate / base.rate:6.2f} x {base.name}" if base else ""
        wal = f"  {self.wal:6.0f} WAL bytes/task" if self.wal else ""
        pages = f"  {self.pages:5.1f} pages/task" if self.pages else ""
        fifths = (
            f"  first fifth {self.fifths[0]:,.0f}/s, last {self.fifths[-1]:,.0f}/s" if self.fifths else ""
        )
        print(f"{self.name:42} {self.rate:9,.0f}/s {ratio:28}{wal}{pages}{fifths}", flush=True)


@asynccontextmanager
async def database(server: Secret, settings: Settings) -> AsyncGenerator[str]:
    name = f"hf_bench_{uuid.uuid4().hex[:8]}"
    await scratch.create_database(server, name, settings)
    url = scratch.url_of_database(server, name)
    await install.migrate_database(url, settings)
    try:
        yield url.reveal()
    finally:
        await scratch.drop_database(server, name, settings)


async def wal_now(conn: Connection) -> int:
    return await conn.fetchval("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")


async def submit(url: str, count: int, *, keys: int = 0, connections: int = 1) -> Result:
    async def send(number: int) -> None:
        conn = await asyncpg.connect(url)
        for start in range(number * PAGE, count, PAGE * connections):
            jobs = [
                {
                    "type": TYPE,
                    "queue": QUEUE,
                    "args": ARGS,
                    **({"limit_key": f"k{n % keys}"} if keys else {}),
                }
                for n in range(start, min(start + PAGE, count))
            ]
            await conn.fetch("select holdfast.submit_many($1)", msgspec.json.encode(jobs).decode())
        await conn.close()

    watch = await asyncpg.connect(url)
    before, started_at = await wal_now(watch), time.perf_counter()
    await asyncio.gather(*(send(number) for number in range(connections)))
    seconds = time.perf_counter() - started_at
    wal = (await wal_now(watch) - before) / count
    await watch.close()
    return Result(f"submit_many, pages of 1,000, {connections} at once", count / seconds, wal=wal)


async def submit_one_by_one(url: str, count: int) -> Result:
    conn = await asyncpg.connect(url)
    body = msgspec.json.encode({"type": TYPE, "queue": "single", "args": ARGS}).decode()
    async with conn.transaction():
        started_at = time.perf_counter()
        for _ in range(count):
            await conn.fetchval("select holdfast.submit($1)", body)
        seconds = time.perf_counter() - started_at
    await conn.close()
    return Result("submit, one each, one transaction", count / seconds)


async def drain(url: str, name: str, count: int, *, batch: int, connections: int = 2) -> Result:
    """Claim and finish `count` tasks, the outcomes of one batch in the call that takes the next."""
    marks: list[tuple[float, int]] = []
    left = [count]

    async def work(number: int) -> None:
        conn = await asyncpg.connect(url)
        outcomes: list[leases.Outcome] = []
        cursors = None
        while True:
            slots = min(batch, left[0])
            left[0] -= slots
            if not slots and not outcomes:
                break
            answer = await leases.finish_and_claim(
                conn,
                worker=f"bench-{number}",
                outcomes=outcomes,
                slots=slots,
                queues=[QUEUE],
                types=[TYPE],
                cursors=cursors,
            )
            if outcomes:
                marks.append((time.perf_counter(), len(outcomes)))
            left[0] += slots - len(answer.tasks)
            cursors = answer.cursors
            outcomes = [
                leases.Outcome(id=t.id, attempt=t.attempt, nonce=t.nonce, kind="succeed", body=b"1")
                for t in answer.tasks
            ]
        await conn.close()

    watch = await asyncpg.connect(url)
    await asyncio.sleep(1.5)  # servers tell what they read at most once a second
    looked = await pages_now(watch)
    before, started_at = await wal_now(watch), time.perf_counter()
    await asyncio.gather(*(work(n) for n in range(connections)))
    seconds = time.perf_counter() - started_at
    wal = (await wal_now(watch) - before) / count
    await asyncio.sleep(1.5)
    pages = (await pages_now(watch) - looked) / count
    await watch.close()
    return Result(name, count / seconds, _fifths(started_at, marks), wal, pages)


def _fifths(started_at: float, marks: list[tuple[float, int]]) -> list[float]:
    marks = sorted(marks)
    size = max(len(marks) // 5, 1)
    rates: list[float] = []
    start = started_at
    for group in (marks[n : n + size] for n in range(0, size * 5, size)):
        if group and group[-1][0] > start:
            rates.append(sum(n for _, n in group) / (group[-1][0] - start))
            start = group[-1][0]
    return rates


async def bare(url: str, count: int, *, batch: int, connections: int = 2) -> Result:
    conn = await asyncpg.connect(url)
    await conn.execute(BARE)
    await conn.execute(
        "insert into bare (id, status, args) "
        "select gen_random_uuid(), 'ready', $1 from generate_series(1, $2)",
        msgspec.json.encode(ARGS).decode(),
        count,
    )
    before, started_at = await wal_now(conn), time.perf_counter()

    async def work() -> None:
        own = await asyncpg.connect(url)
        ids: list[uuid.UUID] = []
        cursor = 0
        while True:
            async with own.transaction():
                if ids:
                    await own.execute(BARE_FINISH, sorted(ids))
                rows = await own.fetch(BARE_CLAIM, batch, max(cursor - 2000, 0))
            ids = [row["id"] for row in rows]
            if not ids:
                break
            cursor = max(row["pos"] for row in rows)
        await own.close()

    await asyncio.gather(*(work() for _ in range(connections)))
    seconds = time.perf_counter() - started_at
    wal = (await wal_now(conn) - before) / count
    await conn.close()
    return Result(BARE_DRAIN, count / seconds, wal=wal)


@asynccontextmanager
async def pinned(url: str) -> AsyncGenerator[None]:
    """Somebody holds an old snapshot for the whole run."""
    conn = await asyncpg.connect(url)
    transaction = conn.transaction(isolation="repeatable_read", readonly=True)
    await transaction.start()
    await conn.fetchval("select count(*) from pg_class")
    yield
    await transaction.rollback()
    await conn.close()


@dataclass
class Bench:
    server: Secret
    settings: Settings
    tasks: int
    rows: int = 10_000_000
    best: dict[str, Result] = field(default_factory=dict)

    def keep(self, *results: Result) -> None:
        """The best of its rounds counts, so that a slow moment of the machine hits nobody alone."""
        for result in results:
            if result.rate > getattr(self.best.get(result.name), "rate", 0.0):
                self.best[result.name] = result

    def show(self) -> None:
        rough, base = self.best.get(BARE_DRAIN), self.best.get(DRAIN)
        for result in self.best.values():
            result.show(None if result is rough else rough if result is base else base)

    async def drain(self) -> None:
        async with database(self.server, self.settings) as url:
            self.keep(await submit(url, self.tasks))
            self.keep(await drain(url, DRAIN, self.tasks, batch=100))
            self.keep(await bare(url, self.tasks, batch=100))
            self.keep(await submit(url, self.tasks, connections=2))
            self.keep(await drain(url, "drain, batches of 200", self.tasks, batch=200))
            await submit(url, self.tasks)
            self.keep(await drain(url, "drain, one connection", self.tasks, batch=100, connections=1))
            self.keep(await submit_one_by_one(url, 5000))

    async def pinned(self) -> None:
        async with database(self.server, self.settings) as url, pinned(url):
            await submit(url, self.tasks)
            self.keep(await drain(url, "drain, old snapshot", self.tasks, batch=100))

    async def writer(self) -> None:
        """A transaction that wrote something stays open: the cursor cannot know what it may still commit."""
        async with database(self.server, self.settings) as url:
            await submit(url, self.tasks)
            conn = await asyncpg.connect(url)
            transaction = conn.transaction()
            await transaction.start()
            await conn.fetchval("select holdfast.submit($1)", '{"type": "late", "queue": "late"}')
            self.keep(await drain(url, "drain, open writing transaction", self.tasks, batch=100))
            await transaction.rollback()
            await conn.close()

    async def backlog(self) -> None:
        async with database(self.server, self.settings) as url:
            await submit(url, 1_000_000)
            self.keep(await drain(url, "drain at 1,000,000 waiting", self.tasks, batch=100))

    async def history(self) -> None:
        """Ten million rows that ended, and what people ask while they are there."""
        async with database(self.server, self.settings) as url:
            conn = await asyncpg.connect(url)
            await submit(url, 1000)
            await drain(url, "", 1000, batch=100)
            await conn.execute("select holdfast.tick()")
            for _ in range(0, self.rows, 500_000):
                await conn.execute(HISTORY, min(500_000, self.rows))
            await submit(url, self.tasks)
            name = f"drain, {self.rows:,} rows of history"
            self.keep(await drain(url, name, self.tasks, batch=100))
            await submit(url, self.tasks)
            await conn.execute("analyze holdfast.tasks, holdfast.history")
            self.keep(await drain(url, "the same, fresh statistics", self.tasks, batch=100))
            await submit(url, 10)
            await questions(conn)
            await conn.close()

    async def running(self) -> None:
        """Ten thousand leases that live, held by somebody else."""
        async with database(self.server, self.settings) as url:
            await submit(url, 10_000 + self.tasks)
            conn = await asyncpg.connect(url)
            for _ in range(20):
                await leases.finish_and_claim(conn, worker="holder", slots=500, queues=[QUEUE])
            await conn.close()
            self.keep(await drain(url, "drain, 10,000 running", self.tasks, batch=100))

    async def statistics(self) -> None:
        """The planner believes that the tables are empty, then that they are as full as they were."""
        async with database(self.server, self.settings) as url:
            conn = await asyncpg.connect(url)
            await conn.execute("alter table holdfast.tasks set (autovacuum_enabled = off)")
            await conn.execute("analyze holdfast.tasks, holdfast.lanes, holdfast.history")
            await submit(url, 2 * self.tasks)
            self.keep(await drain(url, "drain, statistics of nothing", self.tasks, batch=100))
            await conn.execute("analyze holdfast.tasks, holdfast.lanes, holdfast.history")
            self.keep(await drain(url, "drain, statistics of before", self.tasks, batch=100))
            await conn.close()

    async def limits(self) -> None:
        """A limit for each key, next to the same keys without one."""
        async with database(self.server, self.settings) as url:
            conn = await asyncpg.connect(url)
            await submit(url, self.tasks, keys=100)
            self.keep(await drain(url, "drain, 100 keys in turn", self.tasks, batch=100))
            await conn.execute(
                "select holdfast.put_limit('per-key', p_queue => $1, p_per_key => true, p_max_running => 10)",
                QUEUE,
            )
            await conn.close()
            await submit(url, self.tasks, keys=100)
            self.keep(await drain(url, "drain, 100 keys, 10 each at once", self.tasks, batch=100))
            await submit(url, self.tasks, keys=100)
            async with pinned(url):
                self.keep(await drain(url, "the same, old snapshot", self.tasks, batch=100))

    async def keys(self) -> None:
        """Many keys that take turns, without a limit."""
        async with database(self.server, self.settings) as url:
            await submit(url, self.tasks, keys=5000)
            self.keep(await drain(url, "drain, 5,000 keys in turn", self.tasks, batch=100))


PARTS = ("drain", "pinned", "writer", "backlog", "running", "statistics", "limits", "keys", "history")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3, help="of which the best of each counts")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of history")
    parser.add_argument(
        "--only", default=",".join(PARTS), help="parts by name; ratios need drain, which comes first"
    )
    options = parser.parse_args()
    bench = Bench(Secret(options.server), load_settings({}), options.tasks, options.rows)
    try:
        for number in range(options.rounds):
            for name in options.only.split(","):
                part: Callable[[], Awaitable[None]] = getattr(bench, PARTS[PARTS.index(name)])
                if name != "history" or not number:  # filling it takes minutes
                    await part()
    finally:
        bench.show()


if __name__ == "__main__":
    asyncio.run(main())
