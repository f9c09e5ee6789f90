"""Run all features together and watch memory, bloat and latency: `make soak HOURS=n`.

Starts an embedded PostgreSQL with durable defaults, the API, two worker processes and a worker for each
system that needs no browser. Submitters keep a steady load of every kind of work. A sample is taken at
regular times and written to soak-report.jsonl. The exit code is 1 if a curve grew, a
process died, or the API answered with an error of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from bench.soak import app
from bench.soak.curves import Sample, find_growing_curves, sum_memory_of_tree
from bench.soak.systems import (
    SYSTEM_NAMES,
    SYSTEM_WORKERS,
    LocalSite,
    SystemLoad,
    build_system_environment,
    create_soak_webhook,
    install_systems,
    serve_local_site,
)
from bench.system_processes import choose_port
from holdfast import Client
from holdfast.engine import embedded, install
from holdfast.settings import Settings, load_settings
from holdfast.testing import wait_until

SERVICE_KEY = "soak" * 10
START_TIMEOUT = timedelta(minutes=2)
READ_TABLES = """
select coalesce(sum(pg_total_relation_size(relid)), 0)::float8 as bytes,
       coalesce(sum(n_dead_tup), 0)::float8 as dead
from pg_stat_user_tables
where schemaname = 'holdfast' and relname in ('jobs', 'tasks', 'lanes', 'workers', 'limit_counters', 'queues')
"""
COUNT_WAITING = "select count(*) from holdfast.tasks"


@dataclass
class Soak:
    """The running parts, and what has been measured since the last sample."""

    client: Client
    processes: dict[str, asyncio.subprocess.Process]
    rate: float
    systems: SystemLoad
    latencies_s: list[float] = field(default_factory=list[float])
    finished_jobs: int = 0
    finished_streams: int = 0
    number: int = 0
    samples: list[Sample] = field(default_factory=list[Sample])
    failures: list[str] = field(default_factory=list[str])

    async def submit_forever(self) -> None:
        """Submit one round of every kind of work, about `rate` rounds a second."""
        while True:
            await self._submit_round()
            await asyncio.sleep(random.uniform(0.5, 1.5) / self.rate)

    async def _submit_round(self) -> None:
        self.number += 1
        number = self.number
        await self.client.submit(
            app.sometimes_fails(number), key=f"once:{number}", labels={"round": str(number % 7)}
        )
        await self.client.submit(app.in_a_thread(200), owner=f"user-{number % 20}")
        await self.client.submit(app.limited(number), limit_key=f"user-{number % 5}")
        await self.client.queues.send("soak_letters", {"number": number})
        if number % 5 == 0:
            await self.client.submit(app.has_children(3))
            await self.client.submit(app.saves_a_file(20_000), owner=f"user-{number % 20}")
        if number % 20 == 0:
            await self.client.submit(app.in_a_child(number))
            cancelled = await self.client.submit(app.waits_for_cancel())
            await cancelled.cancel()
        if number % 50 == 0:
            await self.client.submit_many([app.probe(index) for index in range(100)])

    async def probe_forever(self) -> None:
        """Measure the time from submit to result, again and again."""
        while True:
            started_at = time.monotonic()
            job = await self.client.submit(app.probe(1), priority=5)
            await job.result()
            self.latencies_s.append(time.monotonic() - started_at)
            self.finished_jobs += 1
            await asyncio.sleep(0.2)

    async def browse_forever(self, base: str) -> None:
        """Read the API and the dashboard's numbers as people do."""
        async with httpx.AsyncClient(
            base_url=base, headers={"authorization": f"Bearer {SERVICE_KEY}"}
        ) as http:
            while True:
                for path in ("/api/jobs?limit=20", "/api/stats", "/metrics", "/api/queues"):
                    response = await http.get(path, timeout=60)
                    if response.status_code >= 500:
                        self.failures.append(f"GET {path} answered {response.status_code}")
                await asyncio.sleep(2)

    async def stream_forever(self, base: str) -> None:
        """Follow the events of one job after another to their end, as pages do."""
        headers = {"authorization": f"Bearer {SERVICE_KEY}"}
        async with httpx.AsyncClient(base_url=base, headers=headers, timeout=60) as http:
            while True:
                job = await self.client.submit(app.sometimes_fails(1))
                async with http.stream("GET", f"/api/jobs/{job.id}/events") as response:
                    if response.status_code != 200:
                        self.failures.append(f"the event stream answered {response.status_code}")
                    async for _ in response.aiter_bytes():
                        pass
                self.finished_streams += 1
                await asyncio.sleep(1)

    async def take_sample(self, seconds: float) -> None:
        latencies, self.latencies_s = sorted(self.latencies_s) or [0.0], []
        async with self.client.connection() as connection:
            tables = await connection.fetchrow(READ_TABLES)
            assert tables is not None  # a row of sums
            waiting = await connection.fetchval(COUNT_WAITING)
            database_bytes = await connection.fetchval("select pg_database_size(current_database())::float8")
        memory = {name: sum_memory_of_tree(process.pid) for name, process in self.processes.items()}
        sample = Sample(
            seconds=round(seconds, 1), worker_bytes=memory["worker"], api_bytes=memory["api"],
            systems_bytes=sum(memory[name] for name in SYSTEM_WORKERS),
            live_table_bytes=tables["bytes"], dead_rows=tables["dead"],
            latency_p50_s=statistics.median(latencies), latency_p99_s=latencies[int(len(latencies) * 0.99)],
            finished_jobs=self.finished_jobs, waiting_tasks=waiting,
            finished_streams=self.finished_streams, database_bytes=database_bytes,
            **await self.systems.count_ended(self.client),
        )  # fmt: skip
        self.samples.append(sample)
        self.failures += [
            f"{name} died" for name, each in self.processes.items() if each.returncode is not None
        ]


@contextlib.asynccontextmanager
async def run_processes(
    settings: Settings, url: str, port: int, site: LocalSite
) -> AsyncGenerator[dict[str, Any]]:
    environment = {
        **os.environ, "DATABASE_URL": url, "HOLDFAST_HOME": str(settings.home),
        "HOLDFAST_SERVICE_KEY": SERVICE_KEY, **build_system_environment(site),
    }  # fmt: skip
    systems = [word for name in SYSTEM_NAMES for word in ("--system", name)]
    commands = {
        "api": ["api", *systems, "--port", str(port)],
        "worker": ["worker", "bench.soak.app", "--processes", "2", "--concurrency", "10"],
        **{
            name: ["worker", module, "--processes", "1", "-c", "4"] for name, module in SYSTEM_WORKERS.items()
        },
    }
    processes: dict[str, asyncio.subprocess.Process] = {}
    for name, words in commands.items():
        with (settings.home / f"{name}.log").open("wb") as log:
            processes[name] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "holdfast", *words, env=environment, stdout=log, stderr=log
            )
    try:
        yield processes
    finally:
        for process in processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await process.wait()


async def run_soak(hours: float, interval_s: float, rate: float, report: Path) -> list[str]:
    with tempfile.TemporaryDirectory() as home:
        settings = load_settings({"home": home})
        server = embedded.start_server(settings)
        try:
            await install.migrate_database(server.url, settings)
            await install_systems(server.url.reveal())
            port = choose_port()
            base = f"http://127.0.0.1:{port}"
            async with (
                serve_local_site() as site,
                Client(server.url.reveal(), settings=settings) as client,
                run_processes(settings, server.url.reveal(), port, site) as processes,
                httpx.AsyncClient(base_url=base, timeout=120) as http,
            ):
                soak = Soak(client, processes, rate, SystemLoad(http, site))
                await client.limits.put("soak", queue="limited", per_key=True, max_running=2)
                await client.queues.create("soak_letters")
                await client.schedules.put(app.probe(2), name="soak-schedule", every=5)
                await create_soak_webhook(client, site, "has_children")
                await wait_until(lambda: is_ready(base), within=START_TIMEOUT, what="the API")
                await (await client.submit(app.probe(0))).result()  # the workers run
                await _measure(soak, hours * 3600, interval_s, base, report)
            return [*soak.failures, *find_growing_curves(soak.samples)]
        finally:
            embedded.stop_server(settings)


async def is_ready(base: str) -> bool:
    async with httpx.AsyncClient(base_url=base) as http:
        try:
            return (await http.get("/readyz")).status_code == 200
        except httpx.TransportError:
            return False


async def _measure(soak: Soak, seconds: float, interval_s: float, base: str, report: Path) -> None:
    loads = [
        asyncio.create_task(each)
        for each in (
            soak.submit_forever(), soak.probe_forever(), soak.browse_forever(base), soak.stream_forever(base),
            *(soak.systems.run_forever(name) for name in SYSTEM_NAMES),
        )
    ]  # fmt: skip
    started_at = time.monotonic()
    with report.open("w") as lines:
        while time.monotonic() - started_at < seconds and not soak.failures:
            await asyncio.sleep(interval_s)
            await soak.take_sample(time.monotonic() - started_at)
            row = soak.samples[-1].as_row()
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            print(
                "  ".join(
                    f"{name}={value:,.3f}" if isinstance(value, float) else f"{name}={value}"
                    for name, value in row.items()
                )
            )
            soak.failures += [f"a load ended: {load.exception()!r}" for load in loads if load.done()]
    for load in loads:
        load.cancel()
    await asyncio.gather(*loads, return_exceptions=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=1)
    parser.add_argument(
        "--interval", type=float, help="seconds between samples; default: a sixtieth of the run"
    )
    parser.add_argument("--rate", type=float, default=10, help="rounds of work a second")
    parser.add_argument("--report", type=Path, default=Path("soak-report.jsonl"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the processes and the server
    interval_s = options.interval or max(5, options.hours * 60)
    problems = asyncio.run(run_soak(options.hours, interval_s, options.rate, options.report))
    print("\n".join(problems) or f"All curves are flat: {options.report}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
