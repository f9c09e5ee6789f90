"""Benchmark of clips: inserts in one transaction, the drain of their messages, and search over many clips.

    python -m bench.clips postgresql://postgres@127.0.0.1:5432/postgres [--clips 1000] [--searched 100000]
        [--minutes 5]

The role must be able to create databases; the benchmark creates one and drops it. The worker is a process of
its own, started by the command of the documentation. The scraping API is a local server; summary and
embeddings are the local ones, and no media is downloaded.

insert   one statement per row, all in one transaction, until it is committed
drain    clips that are done in a second, from the start of the worker
search   one clip with one passage of 256 dimensions each, all of one user: p95 of the SQL function
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import statistics
import time
import uuid
from datetime import timedelta

import asyncpg

from bench.system_processes import (
    SystemBenchmark,
    TimeBudget,
    add_budget_option,
    create_bench_database,
    print_rows_at_once,
)
from holdfast.systems import clips
from holdfast.systems.clips.passages import compute_signature, normalize_vector
from holdfast.testing import wait_until

MAX_INSERT_S, MIN_DRAIN_PER_S = 1.0, 20.0
MAX_SEARCH_P95_MS = {"pgvector": 50, "signatures": 400}
DIMENSION, TOPICS, SEARCHES, COPY_ROWS = 256, 2_000, 40, 5_000
TRANSCRIPT = [
    {"text": f"This is sentence {number} about ships, ropes and the wind.", "startMs": number * 4000}
    for number in range(30)
]


async def answer_scrape(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request as a scraping API does."""
    body = json.dumps({"success": True, "title": "A video", "transcript": TRANSCRIPT}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head.encode() + body)
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        writer.close()


async def measure_inserts(connection: asyncpg.Connection, count: int) -> bool:
    started = time.monotonic()
    async with connection.transaction():
        for number in range(count):
            await connection.execute(
                "insert into clipnest_videos (user_id, video_url) values ($1, $2)",
                uuid.UUID(int=number % 20 + 1),
                f"https://example.com/{number}",
            )
    seconds = time.monotonic() - started
    print(f"insert   {count} rows in one transaction: {seconds:.2f} s (at most {MAX_INSERT_S} s)")
    return seconds <= MAX_INSERT_S


async def measure_drain(bench: SystemBenchmark, count: int, deadline: float) -> bool:
    async def count_clips(statuses: str) -> int:
        query = f"select count(*) from clipnest_videos where processing_status in ({statuses})"
        return int(await bench.fetch_value(query))

    async def is_drained() -> bool:
        return await count_clips("'done', 'failed'") == count

    async with bench.run("worker", "holdfast.systems.clips"):
        started = time.monotonic()
        with contextlib.suppress(AssertionError):  # the row says how many were done
            await wait_until(is_drained, within=timedelta(seconds=max(1.0, deadline - started)))
        seconds, done = time.monotonic() - started, await count_clips("'done'")
    failed = await count_clips("'failed'")
    print(
        f"drain    {done / seconds:.1f} clips a second (at least {MIN_DRAIN_PER_S}), {done} of {count} done,"
        f" {failed} failed"
    )
    return done / seconds >= MIN_DRAIN_PER_S and not failed


async def fill_passages(
    connection: asyncpg.Connection, owner: uuid.UUID, count: int, deadline: float
) -> tuple[int, list[list[float]]]:
    """Store clips around random topics until the deadline. Return their number, and queries near topics."""
    stored = 0
    numbers = random.Random(3)
    topics = [[numbers.gauss(0, 1) for _ in range(DIMENSION)] for _ in range(TOPICS)]
    await connection.execute("alter table clipnest_videos disable trigger send_inserted_clips")
    for start in range(0, count, COPY_ROWS):
        if time.monotonic() > deadline:
            break
        rows = []
        for number in range(start, min(count, start + COPY_ROWS)):
            topic = topics[number % TOPICS]
            vector = normalize_vector([value + numbers.gauss(0, 0.7) for value in topic])
            rows.append((uuid.UUID(int=10**9 + number), vector, compute_signature(vector)))
        await connection.execute(
            "insert into clipnest_videos (id, user_id, video_url, processing_status)"
            " select i, $2, 'https://example.com/s/' || i, 'done' from unnest($1::uuid[]) i",
            [row[0] for row in rows], owner,
        )  # fmt: skip
        await connection.executemany(
            "insert into clip_passages (clip_id, number, user_id, body, embedding, embedding_model,"
            " embedding_dimension, signature) values ($1, 0, $2, 'words', $3, 'm', $4, $5::text::bit(256))",
            [(clip, owner, vector, DIMENSION, signature) for clip, vector, signature in rows],
        )
        stored += len(rows)
    await connection.execute("vacuum analyze clip_passages")
    near = [[value + numbers.gauss(0, 0.7) for value in numbers.choice(topics)] for _ in range(SEARCHES)]
    return stored, [normalize_vector(vector) for vector in near]


async def measure_search(connection: asyncpg.Connection, count: int, budget: TimeBudget) -> bool:
    owner, passed = uuid.uuid4(), True
    count, queries = await fill_passages(connection, owner, count, budget.take_share(0.5))
    print(f"fill     {count:,} clips with a passage each")
    await connection.execute("set maintenance_work_mem = '512MB'")  # for the index
    for mode in ("signatures", "pgvector"):
        if mode == "pgvector":
            started = time.monotonic()
            if not await connection.fetchval(f"select ensure_clip_index({DIMENSION})"):
                print("search   pgvector is not on this server")
                continue
            print(f"index    HNSW over {count:,} passages: {time.monotonic() - started:.0f} s")
        durations = []
        deadline = budget.take_share(0.3)
        for vector in queries:
            if time.monotonic() > deadline and len(durations) > 1:
                break
            started = time.monotonic()
            await connection.fetch(
                "select * from find_near_passages($1, $2, $3::text::bit(256), 'm', 10, $4)",
                owner, vector, compute_signature(vector), mode,
            )  # fmt: skip
            durations.append((time.monotonic() - started) * 1000)
        p95, limit = statistics.quantiles(durations, n=20)[-1], MAX_SEARCH_P95_MS[mode]
        median = statistics.median(durations)
        print(
            f"search   {count:,} clips, {mode}: p50 {median:.0f} ms, p95 {p95:.0f} ms (at most {limit} ms),"
            f" n {len(durations)}"
        )
        passed &= p95 <= limit
    return passed


async def run_benchmark(server_url: str, count: int, searched: int, minutes: float) -> bool:
    budget = TimeBudget(minutes)
    server = await asyncio.start_server(answer_scrape, "127.0.0.1", 0)
    site = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with create_bench_database(server_url) as (url, folder):
        bench = SystemBenchmark(url, site, folder)
        bench.environment |= {"HOLDFAST_SCRAPING_URL": f"http://{site}", "HOLDFAST_CLIPS_SOURCES": "scraping"}
        connection = await asyncpg.connect(url.reveal())
        try:
            await clips.install(connection)
            passed = await measure_inserts(connection, count)
            passed &= await measure_drain(bench, count, budget.take_share(0.3))
            return await measure_search(connection, searched, budget) and passed
        finally:
            await connection.close()
            server.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="URL of a PostgreSQL server")
    parser.add_argument("--clips", type=int, default=1_000, help="clips to insert and drain (1000)")
    parser.add_argument("--searched", type=int, default=100_000, help="clips to search (100000)")
    add_budget_option(parser)
    options = parser.parse_args()
    print_rows_at_once()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the processes and drops the database
    run = run_benchmark(options.url, options.clips, options.searched, options.minutes)
    return 0 if asyncio.run(run) else 1


if __name__ == "__main__":
    raise SystemExit(main())
