"""How fast the engine submits, claims and finishes, next to the bare statements on the same server.

    python -m bench.engine postgresql://user@host/postgres [--tasks 100000] [--rows 10000000]
        [--only drain,pinned,...]

Makes databases of its own and drops them. Every number is printed with its ratio to a baseline of the same
run; only ratios and counted things (WAL bytes, buffers) compare across machines.
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

from holdfast.engine import install, leases, scratch
from holdfast.settings import Secret, Settings, load

Connection = asyncpg.Connection
QUEUE = "bench"
TYPE = "noop"
ARGS = {"url": "https://example.com/some/page", "width": 1280, "note": "x" * 120}
PAGE = 1000

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


HISTORY = """
insert into holdfast.history (id, kind_id, due_at, started_at, finished_at, keep_until, attempt, failures,
  crashes, priority, status, args, output)
select holdfast.new_id(holdfast.id_stem(holdfast.now() - n * interval '1 microsecond'), '00'), k.id,
  h.at, h.at, h.at, h.at + interval '1 day', 1, 0, 0, 0,
  case when n % 100000 = 1 then 'cancelled' when n % 1000 = 1 then 'failed' else 'succeeded' end,
  '{"url": "https://example.com/some/page"}', '1'
from generate_series(1, $1) as n, (select holdfast.now() as at) as h,
  (select id from holdfast.kinds limit 1) as k
"""
# What people ask. None may cost more with more rows.
QUESTIONS = {
    "explain a task": (
        "select holdfast.explain_task((select id from holdfast.tasks order by id desc limit 1))"
    ),
    "explain one that ended": "select holdfast.explain_task((select id from holdfast.history limit 1))",
    "a job by its id": "select holdfast.get_job((select id from holdfast.history limit 1))",
    "the newest jobs": "select holdfast.list_jobs()",
    "those that failed": """select holdfast.list_jobs('{"status": "failed"}')""",
    "those that were cancelled": """select holdfast.list_jobs('{"status": "cancelled"}')""",
    "those that run": """select holdfast.list_jobs('{"status": "running"}')""",
    "of a type that is rare": """select holdfast.list_jobs('{"type": "rare"}')""",
    "counts": "select holdfast.metrics()",
    "queues": "select holdfast.task_queues()",
    "a search": """select holdfast.search_jobs('{"state": {"in": ["failed"]}}')""",
    "cancel by owner": """select holdfast.cancel_jobs('{"owner": "nobody"}')""",
    "redrive, dry": """select holdfast.redrive('{"error_type": "None"}', 100, true)""",
}


async def questions(conn: Connection) -> None:
    for name, question in QUESTIONS.items():
        await conn.fetch(question)
        before, began = await pages_now(conn), time.perf_counter()
        await conn.fetch(question)
        took = time.perf_counter() - began
        print(f"    {name:30} {await pages_now(conn) - before:9,} pages {took * 1000:9.1f} ms", flush=True)


async def pages_now(conn: Connection) -> int:
    """Pages of all our tables that were looked at so far."""
    await conn.execute("select pg_stat_force_next_flush()")
    return int(
        await conn.fetchval(
            "select sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0))::bigint "
            "from pg_statio_user_tables where schemaname = 'holdfast'"
        )
    )


@dataclass
class Result:
    name: str
    rate: float
    fifths: list[float] = field(default_factory=list)
    wal: float | None = None
    pages: float | None = None

    def show(self, base: Result | None) -> None:
        ratio = f"{self.rate / base.rate:6.2f} x {base.name}" if base else ""
        wal = f"  {self.wal:6.0f} WAL bytes/task" if self.wal else ""
        pages = f"  {self.pages:5.1f} pages/task" if self.pages else ""
        fifths = (
            f"  first fifth {self.fifths[0]:,.0f}/s, last {self.fifths[-1]:,.0f}/s" if self.fifths else ""
        )
        print(f"{self.name:38} {self.rate:9,.0f}/s {ratio:28}{wal}{pages}{fifths}", flush=True)


@asynccontextmanager
async def database(server: Secret, settings: Settings) -> AsyncGenerator[str]:
    name = f"hf_bench_{uuid.uuid4().hex[:8]}"
    await scratch.create(server, name, settings)
    url = scratch.on_database(server, name)
    await install.migrate(url, settings)
    try:
        yield url.reveal()
    finally:
        await scratch.drop(server, name, settings)


async def wal_now(conn: Connection) -> int:
    return await conn.fetchval("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")


async def submit(url: str, count: int, *, keys: int = 0) -> Result:
    conn = await asyncpg.connect(url)
    before, began = await wal_now(conn), time.perf_counter()
    for start in range(0, count, PAGE):
        jobs = [
            {"type": TYPE, "queue": QUEUE, "args": ARGS, **({"limit_key": f"k{n % keys}"} if keys else {})}
            for n in range(start, min(start + PAGE, count))
        ]
        await conn.fetch("select holdfast.submit_many($1)", msgspec.json.encode(jobs).decode())
    seconds = time.perf_counter() - began
    wal = (await wal_now(conn) - before) / count
    await conn.close()
    return Result("submit_many, pages of 1,000", count / seconds, wal=wal)


async def submit_one_by_one(url: str, count: int) -> Result:
    conn = await asyncpg.connect(url)
    body = msgspec.json.encode({"type": TYPE, "queue": "single", "args": ARGS}).decode()
    async with conn.transaction():
        began = time.perf_counter()
        for _ in range(count):
            await conn.fetchval("select holdfast.submit($1)", body)
        seconds = time.perf_counter() - began
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
            answer = await leases.exchange(
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
    before, began = await wal_now(watch), time.perf_counter()
    await asyncio.gather(*(work(n) for n in range(connections)))
    seconds = time.perf_counter() - began
    wal = (await wal_now(watch) - before) / count
    await asyncio.sleep(1.5)
    pages = (await pages_now(watch) - looked) / count
    await watch.close()
    return Result(name, count / seconds, _fifths(began, marks), wal, pages)


def _fifths(began: float, marks: list[tuple[float, int]]) -> list[float]:
    marks = sorted(marks)
    size = max(len(marks) // 5, 1)
    rates: list[float] = []
    start = began
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
    before, began = await wal_now(conn), time.perf_counter()

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
    seconds = time.perf_counter() - began
    wal = (await wal_now(conn) - before) / count
    await conn.close()
    return Result(f"bare statements, batches of {batch}", count / seconds, wal=wal)


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
    base: Result | None = None

    async def drain(self) -> None:
        async with database(self.server, self.settings) as url:
            (await submit(url, self.tasks)).show(None)
            (await submit_one_by_one(url, 5000)).show(None)
            self.base = await drain(url, "drain, batches of 100", self.tasks, batch=100)
            rough = await bare(url, self.tasks, batch=100)
            rough.show(None)
            self.base.show(rough)
            await submit(url, self.tasks)
            (await drain(url, "drain, batches of 200", self.tasks, batch=200)).show(self.base)
            await submit(url, self.tasks)
            (await drain(url, "drain, one connection", self.tasks, batch=100, connections=1)).show(self.base)

    async def pinned(self) -> None:
        async with database(self.server, self.settings) as url, pinned(url):
            await submit(url, self.tasks)
            (await drain(url, "drain, old snapshot", self.tasks, batch=100)).show(self.base)

    async def writer(self) -> None:
        """A transaction that wrote something stays open: the cursor cannot know what it may still commit."""
        async with database(self.server, self.settings) as url:
            await submit(url, self.tasks)
            conn = await asyncpg.connect(url)
            transaction = conn.transaction()
            await transaction.start()
            await conn.fetchval("select holdfast.submit($1)", '{"type": "late", "queue": "late"}')
            (await drain(url, "drain, open writing transaction", self.tasks, batch=100)).show(self.base)
            await transaction.rollback()
            await conn.close()

    async def backlog(self) -> None:
        async with database(self.server, self.settings) as url:
            await submit(url, 1_000_000)
            (await drain(url, "drain at 1,000,000 waiting", self.tasks, batch=100)).show(self.base)

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
            (await drain(url, name, self.tasks, batch=100)).show(self.base)
            await submit(url, self.tasks)
            await conn.execute("analyze holdfast.tasks, holdfast.history")
            (await drain(url, "the same, fresh statistics", self.tasks, batch=100)).show(self.base)
            await submit(url, 10)
            await questions(conn)
            await conn.close()

    async def running(self) -> None:
        """Ten thousand leases that live, held by somebody else."""
        async with database(self.server, self.settings) as url:
            await submit(url, 10_000 + self.tasks)
            conn = await asyncpg.connect(url)
            for _ in range(20):
                await leases.exchange(conn, worker="holder", slots=500, queues=[QUEUE])
            await conn.close()
            (await drain(url, "drain, 10,000 running", self.tasks, batch=100)).show(self.base)

    async def statistics(self) -> None:
        """The planner believes that the tables are empty, then that they are as full as they were."""
        async with database(self.server, self.settings) as url:
            conn = await asyncpg.connect(url)
            await conn.execute("alter table holdfast.tasks set (autovacuum_enabled = off)")
            await conn.execute("analyze holdfast.tasks, holdfast.lanes, holdfast.history")
            await submit(url, 2 * self.tasks)
            (await drain(url, "drain, statistics of nothing", self.tasks, batch=100)).show(self.base)
            await conn.execute("analyze holdfast.tasks, holdfast.lanes, holdfast.history")
            (await drain(url, "drain, statistics of before", self.tasks, batch=100)).show(self.base)
            await conn.close()

    async def limits(self) -> None:
        async with database(self.server, self.settings) as url:
            conn = await asyncpg.connect(url)
            await conn.execute(
                "select holdfast.put_limit('per-key', p_queue => $1, p_per_key => true, p_max_running => 10)",
                QUEUE,
            )
            await conn.close()
            await submit(url, self.tasks, keys=100)
            (await drain(url, "drain, 100 keys, 10 each at once", self.tasks, batch=100)).show(self.base)
            await submit(url, self.tasks, keys=100)
            async with pinned(url):
                (await drain(url, "the same, old snapshot", self.tasks, batch=100)).show(self.base)

    async def keys(self) -> None:
        """Keys that take turns, without a limit: 100 of them, then 5,000."""
        for count in (100, 5000):
            async with database(self.server, self.settings) as url:
                await submit(url, self.tasks, keys=count)
                (await drain(url, f"drain, {count:,} keys in turn", self.tasks, batch=100)).show(self.base)


PARTS = ("drain", "pinned", "writer", "backlog", "running", "statistics", "limits", "keys", "history")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of history")
    parser.add_argument(
        "--only", default=",".join(PARTS), help="parts by name; ratios need drain, which comes first"
    )
    given = parser.parse_args()
    bench = Bench(Secret(given.server), load({}), given.tasks, given.rows)
    for name in given.only.split(","):
        part: Callable[[], Awaitable[None]] = getattr(bench, PARTS[PARTS.index(name)])
        await part()


if __name__ == "__main__":
    asyncio.run(main())
