"""Benchmark of the dashboard's pages with many jobs: `python -m bench.dashboard`.

Fills a new database with a million waiting and ten million ended jobs, starts the API as a process, and reads
every page over HTTP as a signed-in administrator. Prints the median and the 95th percentile of each page, the
CPU time of the API and of its database connections per request, and the pages above the target.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import asyncpg
import httpx

from bench.machine import describe_machine_use, read_machine_ticks
from bench.many_jobs import insert_large_backlog, insert_large_history
from bench.system_processes import SystemBenchmark, choose_port, print_rows_at_once, read_cpu_seconds
from holdfast import settings as settings_module
from holdfast.engine import embedded, install, maintenance, sessions
from holdfast.engine.access import hash_secret
from holdfast.engine.connection import Connection
from holdfast.engine.sessions import NewSession
from holdfast.settings import Secret

TARGET_P95_MS = 300
SERVER_OPTIONS = {"fsync": "off", "shared_buffers": "512MB", "max_wal_size": "4GB"}
PAGES = {
    "overview": "/",
    "overview, a day compared": "/?span=24h&compare=day",
    "overview, 7 days": "/?span=7d",
    "alerts": "/alerts",
    "alert rules": "/alerts/rules",
    "jobs": "/jobs",
    "jobs, failed": "/jobs?q=state:failed",
    "jobs, ready": "/jobs?q=state:ready",
    "jobs, running (none)": "/jobs?q=state:running",
    "jobs, cancelled": "/jobs?q=state:cancelled",
    "jobs, a task type": "/jobs?q=task:t7",
    "jobs, a queue": "/jobs?q=queue:q3",
    "jobs, an owner": "/jobs?q=owner:owner77",
    "jobs, an owner's failed": "/jobs?q=owner:owner77+state:failed",
    "jobs, a payload": "/jobs?q=args.n:9999998",
    "jobs, no such payload": "/jobs?q=args.url:nowhere",
    "jobs, no such word": "/jobs?q=nowhere",
    "jobs, an error": "/jobs?q=error:TimeoutError",
    "jobs, slow ones": "/jobs?q=run:>1h",
    "bulk cancel, a queue": "/bulk/new?verb=cancel&q=queue:q3",
    "bulk cancel, an owner": "/bulk/new?verb=cancel&q=owner:owner77",
    "bulk retry, all failed": "/bulk/new?verb=retry&q=state:failed",
    "job, failed": "/jobs/{failed}",
    "job, ready": "/jobs/{ready}",
    "errors": "/errors",
    "errors, 7 days": "/errors?span=7d",
    "one error": "/error?cause=TimeoutError+f7",
    "batches and bulk actions": "/bulk",
    "files": "/files",
    "queues": "/queues",
    "one queue": "/queue?name=q3",
    "tasks": "/tasks",
    "one task": "/task?name=t7",
    "schedules": "/schedules",
    "messages": "/messages",
    "limits": "/limits",
    "webhooks": "/webhooks",
    "workers": "/workers",
    "charts by owner, 30 days": "/charts?by=owner&span=30d",
    "database": "/database",
    "audit log": "/audit",
    "sessions": "/sessions",
    "settings": "/settings",
}


async def main(options: argparse.Namespace) -> None:
    folder = "/var/tmp" if os.access("/var/tmp", os.W_OK) else None  # a million jobs may not fit into memory
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=folder) as home:
        if options.url:
            await measure_pages(Secret(options.url), Path(home), options)
            return
        Path(home).chmod(0o755)  # noqa: ASYNC240
        settings = settings_module.load_settings({"home": home}, environ={})
        server = embedded.start_server(settings, options=SERVER_OPTIONS)
        try:
            await install.migrate_database(server.url, settings)
            await fill_database(server.url, options.waiting, options.ended)
            await measure_pages(server.url, Path(home), options)
        finally:
            server.release()
            embedded.stop_server(settings)


async def fill_database(url: Secret, waiting: int, ended: int) -> None:
    started_at = time.monotonic()
    connection = await asyncpg.connect(url.reveal())
    await insert_large_backlog(connection, waiting)
    await insert_large_history(url.reveal(), ended)
    await connection.execute("vacuum analyze")
    await maintenance.tick_operations(connection)
    await connection.execute("select holdfast.evaluate_alerts(0)")
    await connection.close()
    seconds = time.monotonic() - started_at
    print(f"{waiting:,} waiting and {ended:,} ended jobs inserted in {seconds:.0f} s")


async def measure_pages(url: Secret, home: Path, options: argparse.Namespace) -> None:
    bench = SystemBenchmark(url, "127.0.0.1", home)
    port = choose_port()
    ticks = read_machine_ticks()
    connection = await asyncpg.connect(url.reveal())
    cookie = await start_session(connection)
    ids = await find_example_jobs(connection)
    async with bench.run("api", "--port", str(port)) as api_pid, bench.http:
        await bench.wait_for_api(f"http://127.0.0.1:{port}")
        cookies = {"holdfast_session": cookie}
        base = f"http://127.0.0.1:{port}/dashboard"
        slow: list[str] = []
        async with httpx.AsyncClient(timeout=60, cookies=cookies) as client:
            for name, path in PAGES.items():
                if options.only in name:
                    url_of_page = base + path.format(**ids)
                    p95_ms = await measure_page(client, connection, api_pid, name, url_of_page, options.calls)
                    slow += [name] if p95_ms > TARGET_P95_MS else []
    await connection.close()
    print(describe_machine_use(ticks, read_machine_ticks()))
    print(f"pages above {TARGET_P95_MS} ms (p95): {', '.join(slow) or 'none'}")


async def start_session(connection: Connection) -> str:
    """Sign an administrator in and return the cookie."""
    cookie = secrets.token_urlsafe(32)
    session = NewSession(digest=hash_secret(cookie), login="link", name="bench", role="admin", tenant=None)
    await sessions.start_session(connection, session, timedelta(hours=12))
    return cookie


async def find_example_jobs(connection: Connection) -> dict[str, str]:
    queries = {
        "failed": "select id from holdfast.history where status = 'failed' order by finished_at desc limit 1",
        "ready": "select id from holdfast.tasks where status = 'ready' limit 1",
    }
    return {name: str(await connection.fetchval(query)) for name, query in queries.items()}


async def measure_page(
    client: httpx.AsyncClient, connection: Connection, api_pid: int, name: str, url: str, calls: int
) -> float:
    """Read a page again and again, print what it cost, and return the 95th percentile in milliseconds."""
    await read_page(client, url)  # fills caches and prepares statements
    backends = await list_backends(connection)
    before = {pid: read_cpu_seconds(pid) for pid in backends}
    api_before = read_cpu_seconds(api_pid)
    times_ms: list[float] = []
    timeouts = 0
    for _ in range(calls):
        started_at = time.monotonic()
        timeouts += not await read_page(client, url)
        times_ms.append((time.monotonic() - started_at) * 1000)
    # A connection that the pool closed meanwhile has no CPU time any more, and is left out.
    database_s = sum(max(0.0, read_cpu_seconds(pid) - seconds) for pid, seconds in before.items())
    api_ms = (read_cpu_seconds(api_pid) - api_before) * 1000 / calls
    p95_ms = statistics.quantiles(times_ms, n=20, method="inclusive")[-1]
    print(
        f"{name:26} p50 {statistics.median(times_ms):6.0f} ms   p95 {p95_ms:6.0f} ms"
        f"   CPU database {database_s * 1000 / calls:6.0f} ms, API {api_ms:5.0f} ms"
        + (f"   {timeouts} of {calls} timed out" if timeouts else "")
    )
    return float("inf") if timeouts else p95_ms


async def read_page(client: httpx.AsyncClient, url: str) -> bool:
    """Read a page and return whether it answered before the database's time limit."""
    response = await client.get(url)
    is_timeout = "The database took longer than" in response.text
    if response.status_code != 200 and not is_timeout:
        raise SystemExit(f"{url} answered {response.status_code}: {response.text[-500:]}")
    return not is_timeout


async def list_backends(connection: Connection) -> list[int]:
    rows = await connection.fetch(
        "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    )
    return [row["pid"] for row in rows]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.dashboard", description=__doc__)
    parser.add_argument("--waiting", type=int, default=1_000_000, help="Waiting jobs. Default: 1,000,000.")
    parser.add_argument("--ended", type=int, default=10_000_000, help="Ended jobs. Default: 10,000,000.")
    parser.add_argument("--calls", type=int, default=40, help="Requests for each page. Default: 40.")
    parser.add_argument("--only", default="", help="Measure the pages whose name contains this text.")
    parser.add_argument("--url", help="Use this filled database instead of creating one.")
    return parser.parse_args()


if __name__ == "__main__":
    print_rows_at_once()
    asyncio.run(main(parse_options()))
