"""The three numbers of the HTTP API, against `holdfast api` in a process of its own.

    python -m bench.api postgresql://user@host/postgres [--only submit,streams,read] [--rows 1000000]

submit   jobs started at 200 requests a second, sent on time whatever the answers do: latency by percentile
streams  1,000 event streams on 50 running jobs: connections they cost, events in order, time to delivery
read     GET of a job of one's own among --rows jobs of others, row-level security on: latency by percentile

Makes a database of its own and drops it. Latencies are those of this client, on the same machine; the
CPU time of the API process per request compares better between busy machines.
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
from urllib.parse import urlsplit

import asyncpg
import jwt

from holdfast.engine import install, scratch
from holdfast.settings import Secret, Settings, load_settings

SECRET = "a secret for the bench that is long enough for the algorithm"
ISSUER = "https://bench.test"
APP = Path(__file__).parent / "api_app.py"
FILL = """
insert into holdfast.history (id, policy_id, due_at, started_at, finished_at, keep_until, attempt, failures,
  crashes, priority, status, args, output, owner, event_seq)
select holdfast.new_id(holdfast.id_prefix(now() - n * interval '1 second'), '00'), $2, now(), now(), now(),
  now() + interval '1 day', 1, 0, 0, 0, 'succeeded', '{"n": 1}', '1', 'user-' || (n % 10000), 1
from generate_series(1, $1::int) as n
"""


def token(user: str) -> str:
    now = int(time.time())
    return jwt.encode(
        {"sub": user, "iss": ISSUER, "aud": "authenticated", "exp": now + 36_000}, SECRET, "HS256"
    )


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


class Line:
    """One connection that speaks just enough HTTP, so that the client costs little."""

    def __init__(self, base: str) -> None:
        self._host, self._port = urlsplit(base).hostname, urlsplit(base).port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, user: str, body: bytes = b"") -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {user}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            ),
            0,
        )
        return int(head[9:12]), await reader.readexactly(length)

    async def watch(self, path: str, user: str) -> AsyncGenerator[tuple[str, int | None, float]]:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {user}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if head[9:12] != b"200":
            raise RuntimeError(head.decode())
        event, number = "", None
        try:
            while line := await reader.readline():
                text = line.decode().strip()
                if text.startswith("event: "):
                    event = text[7:]
                elif text.startswith("id: "):
                    number = int(text[4:])
                elif text.startswith("data: "):
                    yield event, number, time.time()
                    event, number = "", None
        finally:
            writer.close()


def cpu(pid: int) -> float:
    """Seconds of CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def submit(base: str, pid: int, rate: int, seconds: int) -> None:
    lines: asyncio.Queue[Line] = asyncio.Queue()
    for _ in range(32):
        lines.put_nowait(Line(base))
    users = [token(f"user-{number}") for number in range(50)]
    took: list[float] = []
    failed = 0
    body = json.dumps({"type": "noop", "params": {"n": 1}}).encode()

    async def one(due: float) -> None:
        nonlocal failed
        line = await lines.get()
        status, _ = await line.ask("POST", "/api/jobs/start", random.choice(users), body)
        took.append(time.perf_counter() - due)  # from when it should have been sent
        failed += status != 202
        lines.put_nowait(line)

    for measured in (False, True):  # a second of warming up first
        took.clear()
        started_at, used = time.perf_counter(), cpu(pid)
        tasks = []
        for number in range(rate * (seconds if measured else 1)):
            due = started_at + number / rate
            await asyncio.sleep(max(0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(one(due)))
        await asyncio.gather(*tasks)
    each = (cpu(pid) - used) / len(took) * 1000
    print(
        f"submit   {len(took)} at {rate}/s: p50 {percentile(took, 0.5):.1f} ms, "
        f"p95 {percentile(took, 0.95):.1f} ms, p99 {percentile(took, 0.99):.1f} ms, "
        f"failed {failed}, API CPU {each:.2f} ms each"
    )


async def streams(base: str, conn: asyncpg.Connection, count: int, jobs: int) -> None:  # noqa: C901
    line = Line(base)
    me = [token(f"user-{number}") for number in range(jobs)]
    created: list[str] = []
    for number in range(jobs):
        started = {"type": "several", "params": {"n": 20}}
        _, text = await line.ask("POST", "/api/jobs/start", me[number], json.dumps(started).encode())
        created.append(json.loads(text)["id"])
    idle = await _connections(conn)
    late: list[float] = []
    wrong = 0
    opened = asyncio.Semaphore(0)

    async def watch(number: int) -> int:
        nonlocal wrong
        last, seen = None, 0
        path = f"/api/jobs/{created[number % jobs]}/events"
        async for event, seq, at in Line(base).watch(path, me[number % jobs]):
            if event == "snapshot":
                opened.release()
            elif seq is not None and event != "end":
                seen += 1
                late.append(at - sent.get((created[number % jobs], seq), at))
            if seq is not None:
                wrong += last is not None and event != "end" and seq != last + 1
                last = seq
            if event == "end":
                return seen
        return seen

    sent: dict[tuple[str, int], float] = {}
    started_at = time.perf_counter()
    watchers = [asyncio.create_task(watch(number)) for number in range(count)]
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
        maximum = max(maximum, await _connections(conn))
    output = sum(await asyncio.gather(*watchers))
    print(
        f"streams  {count} on {jobs} jobs, opened in {opening:.1f} s: {output} events, "
        f"out of order or missing {wrong}, database connections {maximum} at most ({idle} before), "
        f"delivered p50 {percentile(late, 0.5):.0f} ms, p95 {percentile(late, 0.95):.0f} ms"
    )


async def _connections(conn: asyncpg.Connection) -> int:
    """Those of the API that do something; its pool keeps idle ones of the requests that were answered."""
    return await conn.fetchval(
        """select count(*) from pg_stat_activity
           where datname = current_database() and pid <> pg_backend_pid()
             and (state <> 'idle' or query ilike '%listen%' or query ilike 'notify%')"""
    )


async def read(base: str, conn: asyncpg.Connection, rows: int) -> None:
    kind = await conn.fetchval("select holdfast.find_or_create_task_policy('bench', 'noop', '{}')")
    started_at = time.perf_counter()
    for start in range(0, rows, 100_000):
        await conn.execute(FILL, min(100_000, rows - start), kind)
    await conn.execute("vacuum analyze holdfast.history")
    filled = time.perf_counter() - started_at
    sample = await conn.fetch(
        "select id, owner from holdfast.history tablesample system (1) where owner is not null limit 2000"
    )
    line = Line(base)
    took: list[float] = []
    lists: list[float] = []
    for row in random.sample(sample, min(1000, len(sample))):
        user = token(row["owner"])
        before = time.perf_counter()
        status, _ = await line.ask("GET", f"/api/jobs/{row['id']}", user)
        took.append(time.perf_counter() - before)
        assert status == 200, status
    for row in random.sample(sample, 200):
        before = time.perf_counter()
        await line.ask("GET", "/api/jobs?limit=50", token(row["owner"]))
        lists.append(time.perf_counter() - before)
    bare: list[float] = []
    for _ in range(500):
        before = time.perf_counter()
        await line.ask("GET", "/healthz", "-")
        bare.append(time.perf_counter() - before)
    print(
        f"read     among {rows:,} rows (filled in {filled:.0f} s): GET p50 {percentile(took, 0.5):.1f} ms, "
        f"p95 {percentile(took, 0.95):.1f} ms; own list p95 {percentile(lists, 0.95):.1f} ms; "
        f"/healthz alone p50 {percentile(bare, 0.5):.1f} ms, p95 {percentile(bare, 0.95):.1f} ms"
    )
    await _inside(conn, sample[0]["id"], sample[0]["owner"])


async def _inside(conn: asyncpg.Connection, job: uuid.UUID, owner: str) -> None:
    """What the same costs the database, as the user: counted pages and its own time."""
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
async def served(url: Secret) -> AsyncGenerator[tuple[str, int]]:
    environ = {
        **os.environ,
        "HOLDFAST_DATABASE_URL": url.reveal(),
        "HOLDFAST_JWT_SECRET": SECRET,
        "HOLDFAST_JWT_ISSUER": ISSUER,
        "HOLDFAST_USER_JOBS": "1000000",
        "HOLDFAST_USER_STREAMS": "1000",
        "HOLDFAST_API_RATE": "100000",
        "HOLDFAST_API_BURST": "100000",
        "HOLDFAST_LOG_FORMAT": "json",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast", "api", str(APP), "--port", "0", "--no-dashboard",
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
    parser.add_argument("server")
    parser.add_argument("--only", default="submit,streams,read")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    settings: Settings = load_settings({"database_url": options.server})
    server, name = Secret(options.server), f"hf_bench_{uuid.uuid4().hex[:12]}"
    await scratch.create_database(server, name, settings)
    url = scratch.url_of_database(server, name)
    try:
        await install.migrate_database(url, settings)
        conn = await asyncpg.connect(url.reveal())
        async with served(url) as (base, pid):
            if "submit" in options.only:
                await submit(base, pid, options.rate, options.seconds)
            if "streams" in options.only:
                await streams(base, conn, options.streams, max(1, options.streams // 20))
            if "read" in options.only:
                await read(base, conn, options.rows)
        await conn.close()
    finally:
        await scratch.drop_database(server, name, settings)


if __name__ == "__main__":
    asyncio.run(main())
