"""Benchmark of the HTTP API: starts `holdfast api` as a child process and sends requests to it.

    python -m bench.api postgresql://user@host/postgres [--only submit,streams,read] [--rows 1000000]

submit   latency of 200 job submissions per second, sent on schedule even if responses are late
streams  1,000 event streams of 50 running jobs: database connections, order of events, delivery delay
read     latency of GET for a user's own job among --rows jobs of other users, with row-level security

Creates a database and drops it afterwards. The client runs on the same machine, so its load adds to the
latencies. The CPU time of the API process per request compares better between busy machines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg

from bench.api_throughput import USERS, compare_submits
from bench.http_clients import (
    JWT_ISSUER,
    JWT_SECRET,
    SERVICE_KEY,
    HttpConnection,
    create_user_token,
    read_cpu_seconds,
)
from bench.machine import describe_machine_use, read_machine_ticks
from holdfast.engine import install, scratch
from holdfast.settings import Secret, Settings, load_settings

APP_FILE = Path(__file__).parent / "api_app.py"
INSERT_HISTORY_ROWS = """
insert into holdfast.history (id, policy_id, due_at, started_at, finished_at, keep_until, attempt, failures,
  crashes, priority, status, args, output, owner, event_seq)
select holdfast.new_id(holdfast.build_id_prefix(now() - n * interval '1 second'), '00'), $2, now(), now(),
  now(),
  now() + interval '1 day', 1, 0, 0, 0, 'succeeded', '{"n": 1}', '1', 'user-' || (n % 10000), 1
from generate_series(1, $1::int) as n
"""


def percentile_ms(values: list[float], share: float) -> float:
    """Return a percentile in milliseconds, from values in seconds. `share` is such as 0.95."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


async def measure_submits(base: str, pid: int, rate: int, seconds: int) -> None:
    connections: asyncio.Queue[HttpConnection] = asyncio.Queue()
    for _ in range(32):
        connections.put_nowait(HttpConnection(base))
    tokens = [create_user_token(f"user-{number}") for number in range(USERS)]
    latencies: list[float] = []
    failed = 0
    body = json.dumps({"type": "noop", "params": {"n": 1}}).encode()

    async def send_request(due: float) -> None:
        nonlocal failed
        connection = await connections.get()
        status, _ = await connection.request("POST", "/api/jobs/start", random.choice(tokens), body)
        latencies.append(time.perf_counter() - due)  # since the scheduled time of the request
        failed += status != 202
        connections.put_nowait(connection)

    for measured in (False, True):  # one second of warm-up first
        latencies.clear()
        started_at, used = time.perf_counter(), read_cpu_seconds(pid)
        tasks = []
        for number in range(rate * (seconds if measured else 1)):
            due = started_at + number / rate
            await asyncio.sleep(max(0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(send_request(due)))
        await asyncio.gather(*tasks)
    each = (read_cpu_seconds(pid) - used) / len(latencies) * 1000
    print(
        f"submit   {len(latencies)} at {rate}/s: p50 {percentile_ms(latencies, 0.5):.1f} ms, "
        f"p95 {percentile_ms(latencies, 0.95):.1f} ms, p99 {percentile_ms(latencies, 0.99):.1f} ms, "
        f"failed {failed}, API CPU {each:.2f} ms each"
    )


async def measure_streams(base: str, conn: asyncpg.Connection, count: int, jobs: int) -> None:  # noqa: C901
    connection = HttpConnection(base)
    tokens = [create_user_token(f"user-{number}") for number in range(jobs)]
    job_ids: list[str] = []
    for number in range(jobs):
        started = {"type": "several", "params": {"n": 20}}
        _, text = await connection.request(
            "POST", "/api/jobs/start", tokens[number], json.dumps(started).encode()
        )
        job_ids.append(json.loads(text)["id"])
    idle = await count_busy_connections(conn)
    delays: list[float] = []
    sequence_errors = 0
    opened = asyncio.Semaphore(0)

    async def follow_stream(number: int) -> int:
        nonlocal sequence_errors
        last_seq, event_count = None, 0
        path = f"/api/jobs/{job_ids[number % jobs]}/events"
        async for event, seq, at in HttpConnection(base).read_events(path, tokens[number % jobs]):
            if event == "snapshot":
                opened.release()
            elif seq is not None and event != "end":
                event_count += 1
                delays.append(at - sent.get((job_ids[number % jobs], seq), at))
            if seq is not None:
                sequence_errors += last_seq is not None and event != "end" and seq != last_seq + 1
                last_seq = seq
            if event == "end":
                return event_count
        return event_count

    sent: dict[tuple[str, int], float] = {}
    started_at = time.perf_counter()
    watchers = [asyncio.create_task(follow_stream(number)) for number in range(count)]
    for _ in range(count):
        await opened.acquire()
    opening = time.perf_counter() - started_at
    maximum = 0
    worker = "bench"
    while True:
        rows = await conn.fetch("select * from holdfast.claim_tasks($1, 50, null, '{streams}')", worker)
        if not rows:
            break
        for row in rows:
            await conn.execute(
                "select holdfast.complete_task($1, $2, $3, '1')", row["id"], row["attempt"], row["nonce"]
            )
            now = time.time()
            job = str(row["job_id"])
            seq = await conn.fetchval("select event_seq from holdfast.jobs where id = $1", row["job_id"])
            sent.setdefault((job, seq), now)
        maximum = max(maximum, await count_busy_connections(conn))
    output = sum(await asyncio.gather(*watchers))
    print(
        f"streams  {count} on {jobs} jobs, opened in {opening:.1f} s: {output} events, "
        f"out of order or missing {sequence_errors}, database connections {maximum} at most ({idle} before), "
        f"delivered p50 {percentile_ms(delays, 0.5):.0f} ms, p95 {percentile_ms(delays, 0.95):.0f} ms"
    )


async def count_busy_connections(conn: asyncpg.Connection) -> int:
    """Count the connections of the API that run or listen. Idle connections of its pool do not count."""
    return await conn.fetchval(
        """select count(*) from pg_stat_activity
           where datname = current_database() and pid <> pg_backend_pid()
             and (state <> 'idle' or query ilike '%listen%' or query ilike 'notify%')"""
    )


async def measure_reads(base: str, conn: asyncpg.Connection, rows: int) -> None:
    policy_id = await conn.fetchval("select holdfast.find_or_create_task_policy('bench', 'noop', '{}')")
    started_at = time.perf_counter()
    for start in range(0, rows, 100_000):
        await conn.execute(INSERT_HISTORY_ROWS, min(100_000, rows - start), policy_id)
    await conn.execute("vacuum analyze holdfast.history")
    fill_seconds = time.perf_counter() - started_at
    sample = await conn.fetch(
        "select id, owner from holdfast.history tablesample system (1) where owner is not null limit 2000"
    )
    connection = HttpConnection(base)
    latencies: list[float] = []
    list_latencies: list[float] = []
    for row in random.sample(sample, min(1000, len(sample))):
        token = create_user_token(row["owner"])
        before = time.perf_counter()
        status, _ = await connection.request("GET", f"/api/jobs/{row['id']}", token)
        latencies.append(time.perf_counter() - before)
        assert status == 200, status
    for row in random.sample(sample, 200):
        before = time.perf_counter()
        await connection.request("GET", "/api/jobs?limit=50", create_user_token(row["owner"]))
        list_latencies.append(time.perf_counter() - before)
    health_latencies: list[float] = []
    for _ in range(500):
        before = time.perf_counter()
        await connection.request("GET", "/healthz", "-")
        health_latencies.append(time.perf_counter() - before)
    print(
        f"read     among {rows:,} rows (inserted in {fill_seconds:.0f} s): "
        f"GET p50 {percentile_ms(latencies, 0.5):.1f} ms, p95 {percentile_ms(latencies, 0.95):.1f} ms; "
        f"own list p95 {percentile_ms(list_latencies, 0.95):.1f} ms; "
        f"/healthz p50 {percentile_ms(health_latencies, 0.5):.1f} ms, "
        f"p95 {percentile_ms(health_latencies, 0.95):.1f} ms"
    )
    await print_query_costs(conn, sample[0]["id"], sample[0]["owner"])


async def print_query_costs(conn: asyncpg.Connection, job: uuid.UUID, owner: str) -> None:
    """Print the pages and the execution time that the same queries cost inside the database."""
    for call in (f"holdfast.get_job('{job}')", "holdfast.list_jobs('{}', null, 50)"):
        async with conn.transaction():
            await conn.execute(
                "select set_config('request.jwt.claims', $1, true)", json.dumps({"sub": owner})
            )
            await conn.execute("set local role authenticated")
            for _ in range(3):
                rows = await conn.fetch(f"explain (analyze, buffers, timing off) select * from {call}")
        lines = [row[0].strip() for row in rows]
        output = [line for line in lines if line.startswith(("Buffers", "Execution"))]
        print(f"         inside the database, {call.partition('(')[0]}: {'; '.join(dict.fromkeys(output))}")


@asynccontextmanager
async def serve_api(url: Secret) -> AsyncGenerator[tuple[str, int]]:
    """Start the API as a child process and yield its URL and its pid."""
    environ = {
        **os.environ,
        "HOLDFAST_DATABASE_URL": url.reveal(),
        "HOLDFAST_SERVICE_KEY": SERVICE_KEY,
        "HOLDFAST_JWT_SECRET": JWT_SECRET,
        "HOLDFAST_JWT_ISSUER": JWT_ISSUER,
        "HOLDFAST_USER_JOBS": "1000000",
        "HOLDFAST_USER_STREAMS": "1000",
        "HOLDFAST_API_RATE": "100000",
        "HOLDFAST_API_BURST": "100000",
        "HOLDFAST_LOG_FORMAT": "json",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast", "api", str(APP_FILE), "--port", "0", "--no-dashboard",
        env=environ, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr
    try:
        while True:
            text = (await process.stderr.readline()).decode()
            if not text:
                raise RuntimeError("the API did not start")
            if "api.started" in text:
                base = json.loads(text)["url"]
                break
        drain = asyncio.create_task(process.stderr.read())
        yield base, process.pid
        drain.cancel()
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("server", help="Create the database on the server with this URL.")
    parser.add_argument("--only", default="submit,streams,read", help="Run these parts. Default: all.")
    parser.add_argument("--seconds", type=int, default=20, help="Submit for this many seconds. Default: 20.")
    parser.add_argument("--streams", type=int, default=1000, help="Open this many streams. Default: 1000.")
    parser.add_argument(
        "--rate", type=int, default=200, help="Submit this many jobs per second. Default: 200."
    )
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="Insert this many history rows. Default: 1,000,000."
    )
    options = parser.parse_args()
    settings: Settings = load_settings({"database_url": options.server})
    server, name = Secret(options.server), f"hf_bench_{uuid.uuid4().hex[:12]}"
    ticks = read_machine_ticks()
    await scratch.create_test_database(server, name, settings)
    url = scratch.build_database_url(server, name)
    try:
        await install.migrate_database(url, settings)
        conn = await asyncpg.connect(url.reveal())
        async with serve_api(url) as (base, pid):
            if "submit" in options.only:
                await measure_submits(base, pid, options.rate, options.seconds)
                await compare_submits(url, base, pid)
            if "streams" in options.only:
                await measure_streams(base, conn, options.streams, max(1, options.streams // 20))
            if "read" in options.only:
                await measure_reads(base, conn, options.rows)
        await conn.close()
        print(describe_machine_use(ticks, read_machine_ticks()))
    finally:
        await scratch.drop_test_database(server, name, settings)


if __name__ == "__main__":
    asyncio.run(main())
