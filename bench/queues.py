"""Benchmark of message queues against pgmq's own SQL, on the same server in the same run.

    python bench/queues.py postgresql://postgres@127.0.0.1:5432/postgres [--messages 50000] [--connections 2]

Needs a role that may create databases. Creates two databases, one with Holdfast and one with pgmq, and drops
them. The SQL of pgmq comes from the PyPI package `pgmq`, which is installed into a temporary environment
unless --pgmq-sql names a file. Every scenario runs on both databases in turn, several times. The best round
of each counts, so that a slow moment of the machine hits neither alone. Rates are messages per second
in batches of 100; each statement is a transaction. The server builds and counts the batches, because a Python
client that encodes and decodes every message needs as much CPU time as the server.
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

MESSAGES_PER_BATCH = 100
MESSAGE_BODY = '{"url": "https://example.org/some/page", "width": 1280, "tags": ["one", "two"], "attempt": 1}'
PGMQ_REQUIREMENT = "pgmq==1.1.4"  # contains pgmq 1.13.0


@dataclass
class Candidate:
    """A database under test: Holdfast or pgmq, with its open connections."""

    name: str
    url: str
    connections: list[asyncpg.Connection]

    async def run_on_all_connections(
        self, work: Callable[[asyncpg.Connection], Awaitable[list[float]]]
    ) -> list[float]:
        """Run `work` on all connections at once. Return the sorted times at which batches ended."""
        moments = await asyncio.gather(*(work(connection) for connection in self.connections))
        return sorted(moment for each in moments for moment in each)


def compute_rate(moments: list[float], started_at: float) -> float:
    """Return messages per second, from the times at which batches ended."""
    return len(moments) * MESSAGES_PER_BATCH / (moments[-1] - started_at)


async def send_batches(connection: asyncpg.Connection, batches: int) -> list[float]:
    moments = []
    for _ in range(batches):
        await connection.fetchval(
            "select count(*) from pgmq.send_batch('b', array_fill($1::jsonb, array[$2::integer]))",
            MESSAGE_BODY,
            MESSAGES_PER_BATCH,
        )
        moments.append(time.perf_counter())
    return moments


async def drain_batches(connection: asyncpg.Connection, action: str, batches: int | None) -> list[float]:
    """Read batches, and delete or archive each. Return the times at which batches ended."""
    moments: list[float] = []
    while batches is None or len(moments) < batches:
        ids = await connection.fetchval(
            "select array_agg(msg_id) from pgmq.read('b', 600, $1)", MESSAGES_PER_BATCH
        )
        if not ids:
            break
        if action != "read":
            await connection.fetchval(f"select count(*) from pgmq.{action}('b', $1::bigint[])", ids)
        moments.append(time.perf_counter())
    return moments


async def recreate_queue(candidate: Candidate) -> None:
    connection = candidate.connections[0]
    await connection.execute("set client_min_messages = error; select pgmq.drop_queue('b')")
    await connection.execute("select pgmq.create('b'); checkpoint")


async def fill_queue(candidate: Candidate, messages: int) -> float:
    """Send messages. Return the rate in messages per second."""
    share = messages // MESSAGES_PER_BATCH // len(candidate.connections)
    started_at = time.perf_counter()
    return compute_rate(
        await candidate.run_on_all_connections(lambda connection: send_batches(connection, share)), started_at
    )


async def measure_send_and_drain(candidate: Candidate, action: str, messages: int) -> dict[str, float]:
    await recreate_queue(candidate)
    sent = await fill_queue(candidate, messages)
    started_at = time.perf_counter()
    return {
        "send_batch": sent,
        f"read+{action}": compute_rate(
            await candidate.run_on_all_connections(lambda c: drain_batches(c, action, None)), started_at
        ),
    }


async def measure_with_old_snapshot(candidate: Candidate, messages: int) -> dict[str, float]:
    """Measure a drain while another session holds an old snapshot."""
    await recreate_queue(candidate)
    await fill_queue(candidate, messages)
    holder = await asyncpg.connect(candidate.url)
    try:
        await holder.execute("begin isolation level repeatable read; select count(*) from pg_class")
        started_at = time.perf_counter()
        moments = await candidate.run_on_all_connections(lambda c: drain_batches(c, "delete", None))
    finally:
        await holder.close()
    fifth = len(moments) // 5
    return {
        "pinned read+delete": compute_rate(moments, started_at),
        "pinned, first fifth": compute_rate(moments[:fifth], started_at),
        "pinned, last fifth": compute_rate(moments[-fifth:], moments[-fifth - 1]),
    }


async def measure_with_backlog(candidate: Candidate, messages: int, waiting: int) -> dict[str, float]:
    await recreate_queue(candidate)
    insert = (
        "insert into pgmq.q_b (vt, message) select clock_timestamp(), $1::jsonb from generate_series(1, $2)"
    )
    await candidate.connections[0].execute(insert, MESSAGE_BODY, waiting)
    # In production, waiting messages are older than the last checkpoint. Without a checkpoint here, the
    # server would write all inserted pages on the same cores during the measurement. With it, reads pay for
    # full-page images.
    await candidate.connections[0].execute("vacuum analyze pgmq.q_b")
    await candidate.connections[0].execute("checkpoint")
    started_at = time.perf_counter()
    share = messages // MESSAGES_PER_BATCH // len(candidate.connections)
    moments = await candidate.run_on_all_connections(lambda c: drain_batches(c, "delete", share))
    return {f"{waiting:,} waiting a while, read+delete": compute_rate(moments, started_at)}


async def measure_with_leased_messages(
    candidate: Candidate, messages: int, in_flight: int
) -> dict[str, float]:
    await recreate_queue(candidate)
    await fill_queue(candidate, in_flight)
    await candidate.run_on_all_connections(lambda c: drain_batches(c, "read", None))
    await fill_queue(candidate, messages)
    started_at = time.perf_counter()
    moments = await candidate.run_on_all_connections(lambda c: drain_batches(c, "delete", None))
    return {f"{in_flight:,} in flight, read+delete": compute_rate(moments, started_at)}


def install_pgmq_sql(folder: Path) -> Path:
    """Install the package `pgmq` into a new environment in `folder` and return the path of its SQL file."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", PGMQ_REQUIREMENT], check=True)
    paths = [path for path in folder.rglob("pgmq.sql") if path.parent.name == "sql"]
    return paths[0]


@asynccontextmanager
async def create_database(admin: str, name: str) -> AsyncIterator[str]:
    """Create an empty database, yield its URL, and drop the database."""
    connection = await asyncpg.connect(admin)
    await connection.execute(f"drop database if exists {name}")
    await connection.execute(f"create database {name}")
    try:
        yield urlsplit(admin)._replace(path=f"/{name}").geturl()
    finally:
        await connection.execute(f"drop database if exists {name} with (force)")
        await connection.close()


async def run_benchmark(options: argparse.Namespace, sql: str) -> None:
    async with (
        create_database(options.url, "bench_holdfast") as ours,
        create_database(options.url, "bench_pgmq") as theirs,
    ):
        await install.migrate_database(Secret(ours), settings_module.load_settings({}))
        plain = await asyncpg.connect(theirs)
        await plain.execute(sql)
        await plain.close()
        candidates = [
            Candidate(name, url, [await asyncpg.connect(url) for _ in range(options.connections)])
            for name, url in (("holdfast", ours), ("pgmq", theirs))
        ]
        await compare_candidates(candidates, options)
        for candidate in candidates:
            for connection in candidate.connections:
                await connection.close()


async def compare_candidates(candidates: list[Candidate], options: argparse.Namespace) -> None:
    count = options.messages
    scenarios: dict[str, Callable[[Candidate], Awaitable[dict[str, float]]]] = {
        "archive": lambda candidate: measure_send_and_drain(candidate, "archive", count),
        "delete": lambda candidate: measure_send_and_drain(candidate, "delete", count),
        "pinned": lambda candidate: measure_with_old_snapshot(candidate, count),
        "waited": lambda candidate: measure_with_backlog(candidate, count, count),
        "deep": lambda candidate: measure_with_backlog(candidate, count, options.waiting),
        "flying": lambda candidate: measure_with_leased_messages(candidate, count, options.flight),
    }
    best: dict[str, dict[str, float]] = {candidate.name: {} for candidate in candidates}
    for _ in range(options.rounds):  # every round runs all scenarios, so that slow minutes are spread
        for name in options.only or scenarios:
            for candidate in candidates:
                for measurement, value in (await scenarios[name](candidate)).items():
                    best[candidate.name][measurement] = max(best[candidate.name].get(measurement, 0), value)
    print(f"{'messages per second':44}{'holdfast':>12}{'pgmq':>12}{'ratio':>8}{'of our usual rate':>20}")
    usual = best["holdfast"].get("read+delete")
    for measurement, value in best["holdfast"].items():
        theirs = best["pgmq"][measurement]
        share = f"{value / usual:.0%}" if usual and measurement.endswith(("read+delete", "fifth")) else ""
        print(f"{measurement:44}{value:12,.0f}{theirs:12,.0f}{value / theirs:8.2f}{share:>20}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="Create the databases on the server with this URL.")
    parser.add_argument(
        "--messages", type=int, default=50_000, help="Send this many messages. Default: 50,000."
    )
    parser.add_argument("--connections", type=int, default=2, help="Use this many connections. Default: 2.")
    parser.add_argument(
        "--waiting",
        type=int,
        default=1_000_000,
        help="Insert this many waiting messages in 'deep'. Default: 1,000,000.",
    )
    parser.add_argument(
        "--flight", type=int, default=50_000, help="Lease this many messages in 'flying'. Default: 50,000."
    )
    parser.add_argument("--rounds", type=int, default=5, help="Run each scenario this often. Default: 5.")
    parser.add_argument(
        "--only",
        nargs="*",
        choices=["archive", "delete", "pinned", "waited", "deep", "flying"],
        help="Run these scenarios. Default: all.",
    )
    parser.add_argument(
        "--pgmq-sql", type=Path, help="Read the SQL of pgmq from this file. Default: install the package."
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sql = options.pgmq_sql or install_pgmq_sql(Path(folder))
        asyncio.run(run_benchmark(options, sql.read_text(encoding="utf-8")))


if __name__ == "__main__":
    sys.exit(main())
