"""Message queues against pgmq's own SQL, in the same server and the same run.

    python bench/queues.py postgresql://postgres@127.0.0.1:5432/postgres [--messages 50000] [--connections 2]

Needs a role that may create databases. pgmq's SQL is taken from the PyPI package `pgmq`, which is installed
into a scratch environment for the run unless --pgmq-sql names the file. Two databases are made and dropped:
one with Holdfast, one with pgmq. Every scenario runs on both in turn, several times, and the best of each
side counts, so a slow moment of the machine hits neither alone. Rates are messages per second in batches of
100, each statement its own transaction. Batches are made and counted in the server: a Python client that
encodes and decodes every message is as busy as the server, and would be half of what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from holdfast import settings as settings_module
from holdfast.engine import install
from holdfast.settings import Secret

BATCH = 100
BODY = '{"url": "https://example.org/some/page", "width": 1280, "tags": ["one", "two"], "attempt": 1}'
PGMQ = "pgmq==1.1.4"  # carries pgmq 1.13.0


@dataclass
class Side:
    name: str
    url: str
    connections: list[asyncpg.Connection]

    async def many(self, work: Callable[[asyncpg.Connection], Awaitable[list[float]]]) -> list[float]:
        """Run on all connections at once; the moments at which batches were done, in order."""
        moments = await asyncio.gather(*(work(connection) for connection in self.connections))
        return sorted(moment for each in moments for moment in each)


def rate(moments: list[float], started_at: float) -> float:
    return len(moments) * BATCH / (moments[-1] - started_at)


async def send(connection: asyncpg.Connection, batches: int) -> list[float]:
    moments = []
    for _ in range(batches):
        await connection.fetchval(
            "select count(*) from pgmq.send_batch('b', array_fill($1::jsonb, array[$2::integer]))",
            BODY,
            BATCH,
        )
        moments.append(time.perf_counter())
    return moments


async def drain(connection: asyncpg.Connection, act: str, batches: int | None) -> list[float]:
    moments: list[float] = []
    while batches is None or len(moments) < batches:
        ids = await connection.fetchval("select array_agg(msg_id) from pgmq.read('b', 600, $1)", BATCH)
        if not ids:
            break
        if act != "read":
            await connection.fetchval(f"select count(*) from pgmq.{act}('b', $1::bigint[])", ids)
        moments.append(time.perf_counter())
    return moments


async def fresh(side: Side) -> None:
    connection = side.connections[0]
    await connection.execute("set client_min_messages = error; select pgmq.drop_queue('b')")
    await connection.execute("select pgmq.create('b'); checkpoint")


async def fill(side: Side, messages: int) -> float:
    share = messages // BATCH // len(side.connections)
    started_at = time.perf_counter()
    return rate(await side.many(lambda connection: send(connection, share)), started_at)


async def clear(side: Side, act: str, messages: int) -> dict[str, float]:
    await fresh(side)
    sent = await fill(side, messages)
    started_at = time.perf_counter()
    return {
        "send_batch": sent,
        f"read+{act}": rate(await side.many(lambda c: drain(c, act, None)), started_at),
    }


async def pinned(side: Side, messages: int) -> dict[str, float]:
    """Another session holds an old snapshot during the whole run."""
    await fresh(side)
    await fill(side, messages)
    holder = await asyncpg.connect(side.url)
    try:
        await holder.execute("begin isolation level repeatable read; select count(*) from pg_class")
        started_at = time.perf_counter()
        moments = await side.many(lambda c: drain(c, "delete", None))
    finally:
        await holder.close()
    fifth = len(moments) // 5
    return {
        "pinned read+delete": rate(moments, started_at),
        "pinned, first fifth": rate(moments[:fifth], started_at),
        "pinned, last fifth": rate(moments[-fifth:], moments[-fifth - 1]),
    }


async def deep(side: Side, messages: int, waiting: int) -> dict[str, float]:
    await fresh(side)
    insert = (
        "insert into pgmq.q_b (vt, message) select clock_timestamp(), $1::jsonb from generate_series(1, $2)"
    )
    await side.connections[0].execute(insert, BODY, waiting)
    # Messages that wait have waited for longer than a checkpoint. Without one here, the server would write
    # out the whole fill on the same cores while the reads are timed; with it, reads pay for full-page images.
    await side.connections[0].execute("vacuum analyze pgmq.q_b")
    await side.connections[0].execute("checkpoint")
    started_at = time.perf_counter()
    share = messages // BATCH // len(side.connections)
    moments = await side.many(lambda c: drain(c, "delete", share))
    return {f"{waiting:,} waiting a while, read+delete": rate(moments, started_at)}


async def flying(side: Side, messages: int, flight: int) -> dict[str, float]:
    await fresh(side)
    await fill(side, flight)
    await side.many(lambda c: drain(c, "read", None))
    await fill(side, messages)
    started_at = time.perf_counter()
    moments = await side.many(lambda c: drain(c, "delete", None))
    return {f"{flight:,} in flight, read+delete": rate(moments, started_at)}


def find_sql(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", PGMQ], check=True)
    measurements = [path for path in folder.rglob("pgmq.sql") if path.parent.name == "sql"]
    return measurements[0]


@asynccontextmanager
async def database(admin: str, name: str) -> AsyncIterator[str]:
    connection = await asyncpg.connect(admin)
    await connection.execute(f"drop database if exists {name}")
    await connection.execute(f"create database {name}")
    try:
        yield urlsplit(admin)._replace(path=f"/{name}").geturl()
    finally:
        await connection.execute(f"drop database if exists {name} with (force)")
        await connection.close()


async def run(options: argparse.Namespace, sql: str) -> None:
    async with database(options.url, "bench_holdfast") as ours, database(options.url, "bench_pgmq") as theirs:
        await install.migrate_database(Secret(ours), settings_module.load_settings({}))
        plain = await asyncpg.connect(theirs)
        await plain.execute(sql)
        await plain.close()
        sides = [
            Side(name, url, [await asyncpg.connect(url) for _ in range(options.connections)])
            for name, url in (("holdfast", ours), ("pgmq", theirs))
        ]
        await compare(sides, options)
        for side in sides:
            for connection in side.connections:
                await connection.close()


async def compare(sides: list[Side], options: argparse.Namespace) -> None:
    count = options.messages
    scenarios: dict[str, Callable[[Side], Awaitable[dict[str, float]]]] = {
        "archive": lambda side: clear(side, "archive", count),
        "delete": lambda side: clear(side, "delete", count),
        "pinned": lambda side: pinned(side, count),
        "waited": lambda side: deep(side, count, count),
        "deep": lambda side: deep(side, count, options.waiting),
        "flying": lambda side: flying(side, count, options.flight),
    }
    best: dict[str, dict[str, float]] = {side.name: {} for side in sides}
    for _ in range(options.rounds):  # all of them in every round, so that each has had its quiet moment
        for name in options.only or scenarios:
            for side in sides:
                for what, value in (await scenarios[name](side)).items():
                    best[side.name][what] = max(best[side.name].get(what, 0), value)
    print(f"{'messages per second':44}{'holdfast':>12}{'pgmq':>12}{'ratio':>8}{'of our clear rate':>20}")
    short = best["holdfast"].get("read+delete")
    for what, value in best["holdfast"].items():
        theirs = best["pgmq"][what]
        share = f"{value / short:.0%}" if short and what.endswith(("read+delete", "fifth")) else ""
        print(f"{what:44}{value:12,.0f}{theirs:12,.0f}{value / theirs:8.2f}{share:>20}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--flight", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", nargs="*", choices=["archive", "delete", "pinned", "waited", "deep", "flying"]
    )
    parser.add_argument("--pgmq-sql", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sql = options.pgmq_sql or find_sql(Path(folder))
        asyncio.run(run(options, sql.read_text(encoding="utf-8")))


if __name__ == "__main__":
    sys.exit(main())
