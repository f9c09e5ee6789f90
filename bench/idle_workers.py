"""Benchmark of idle workers: what many of them cost, and how many claims one submit causes.

Counts come from the log of the server, in which every statement has a line. CPU time and memory are those of
all worker processes, with their heartbeat processes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.system_processes import read_cpu_seconds, read_pss_megabytes
from campaign.servers import FaultServer
from holdfast import Client, load_settings, task
from holdfast.engine import install

SERVER_OPTIONS = {
    "max_connections": "1000",
    "log_statement": "all",
    "log_line_prefix": "%n %p ",  # the time in seconds, and the process of the connection
    "autovacuum": "off",
}
STATEMENT_LINE = re.compile(
    r"^(\d+\.\d+) (\d+) LOG:  (?:execute [^:]+|statement): (.*(?:\n\D.*)*)", re.MULTILINE
)
START_AT_ONCE = 8
SETTLE_SECONDS = 150.0  # connections that nobody needs are closed after 90 s
SUBMITS = 10
SECONDS_PER_SUBMIT = 8.0  # a worker that was woken asks for the last time after about 6 s
WOKEN_WITHIN_SECONDS = 0.2  # few other workers happen to poll in this time
APPLICATION = "from holdfast import task\n\n@task(name='noop')\nasync def noop() -> None: ...\n"


@task(name="noop")
async def noop() -> None: ...


def read_statements(log: Path, since: float, until: float) -> list[tuple[float, int, str]]:
    """Return time, connection and text of the statements in this time."""
    lines = STATEMENT_LINE.findall(log.read_text("utf-8"))
    statements = ((float(at), int(pid), " ".join(text.split())) for at, pid, text in lines)
    return [each for each in statements if since <= each[0] < until]


def count_claims_after(log: Path, submitted_at: float) -> int:
    """Count the claims of all connections that began to ask soon after a submit."""
    claims = [
        (at - submitted_at, pid)
        for at, pid, text in read_statements(log, submitted_at, submitted_at + SECONDS_PER_SUBMIT)
        if "finish_and_claim" in text
    ]
    woken = {pid for after, pid in claims if after < WOKEN_WITHIN_SECONDS}
    return sum(pid in woken for _, pid in claims)


@contextmanager
def run_worker(url: str, application: Path) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", str(application)],
        env={**os.environ, "DATABASE_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


async def wait_for_workers(client: Client, count: int) -> None:
    async with client.connection() as connection:
        while await connection.fetchval("select count(*) from holdfast.workers") < count:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def measure_idle_costs(server: FaultServer, pids: list[int], seconds: float) -> None:
    cpu_before, since = sum(map(read_cpu_seconds, pids)), time.time()
    await asyncio.sleep(seconds)
    worker_minutes = len(pids) * (time.time() - since) / 60
    statements = read_statements(server.log, since, time.time())
    cpu_ms = 1000 * (sum(map(read_cpu_seconds, pids)) - cpu_before)
    connection = await server.connect()
    sessions = await connection.fetchval(
        "select count(*) from pg_stat_activity where application_name like 'holdfast%'"
    )
    await connection.close()
    print(f"statements per worker and minute: {len(statements) / worker_minutes:.2f}")
    for text, count in Counter(text[:100] for _, _, text in statements).most_common(8):
        print(f"  {count / worker_minutes:.2f} {text}")
    print(f"CPU per worker and minute: {cpu_ms / worker_minutes:.0f} ms")
    print(f"memory per worker: {statistics.mean(map(read_pss_megabytes, pids)):.1f} MB (PSS)")
    print(f"connections per worker: {sessions / len(pids):.2f}", flush=True)


async def measure_submits(server: FaultServer, client: Client) -> None:
    claims: list[int] = []
    waits: list[float] = []
    for _ in range(SUBMITS):
        submitted_at, begin = time.time(), time.monotonic()
        await (await client.submit(noop())).result(within=60)
        waits.append(1000 * (time.monotonic() - begin))
        await asyncio.sleep(SECONDS_PER_SUBMIT)
        claims.append(count_claims_after(server.log, submitted_at))
    print(f"claims after one submit: {statistics.mean(claims):.1f} ({min(claims)} to {max(claims)})")
    print(f"submit until the result is here: {', '.join(f'{wait:.0f}' for wait in waits)} ms")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=20, help="number of worker processes (20)")
    parser.add_argument("--seconds", type=float, default=120.0, help="time of counting (120)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, ExitStack() as workers:
        application = Path(folder) / "idle_application.py"
        application.write_text(APPLICATION, "utf-8")
        server = FaultServer(Path(folder) / "server", SERVER_OPTIONS)
        server.start()
        try:
            await server.wait_until_ready()
            await install.migrate_database(server.url, load_settings())
            client = Client(server.url.reveal())
            pids: list[int] = []
            while len(pids) < options.workers:
                pids += [
                    workers.enter_context(run_worker(server.url.reveal(), application))
                    for _ in range(min(START_AT_ONCE, options.workers - len(pids)))
                ]
                await wait_for_workers(client, len(pids))
            await client.close()  # its own statements would be counted
            print(f"{options.workers} workers have started", flush=True)
            await asyncio.sleep(SETTLE_SECONDS)
            await measure_idle_costs(server, pids, options.seconds)
            client = Client(server.url.reveal())
            await measure_submits(server, client)
            await client.close()
            workers.close()
        finally:
            server.destroy()


if __name__ == "__main__":
    asyncio.run(main())
