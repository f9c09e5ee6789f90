"""Benchmark of exports and reports, from the HTTP request to the stored file, with one worker process.

    python bench/systems.py postgresql://postgres@127.0.0.1:5432/postgres [--exports 1000] [--rounds 40]

The role must be able to create databases; the benchmark creates one and drops it. The API runs in this
process, and one worker runs in a separate process. The time of an export ends when its event stream sends
`completed`. The memory of the worker is its resident set size while it renders.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import jwt
import uvicorn

from holdfast import load_settings
from holdfast.engine import install, scratch
from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import exports, mount, reports
from holdfast.systems.exports.resumes import load_sample_documents

JWT_SECRET, JWT_ISSUER = "a secret for the benchmark that is long enough for HS256", "bench"
EXPORT_ROOT = "/api/v1/export"
REPORT_PARAMS = {
    "person1": {"name": "Ada", "birthDate": "1815-12-10"},
    "person2": {"name": "Charles"},
    "systems": ["western"],
}


class BenchmarkUser:
    """A user with a token, and the requests that the user sends."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.id = str(uuid.uuid4())
        now = int(time.time())
        claims = {
            "sub": self.id,
            "iss": JWT_ISSUER,
            "aud": "authenticated",
            "role": "authenticated",
            "exp": now + 7200,
        }
        self.headers = {"authorization": f"Bearer {jwt.encode(claims, JWT_SECRET, 'HS256')}"}

    async def post(self, path: str, body: Any) -> Any:
        response = await self.http.post(path, json=body, headers=self.headers)
        response.raise_for_status()
        return response.json()

    async def add_documents(self) -> dict[str, str]:
        """Add the sample documents and return their ids by name."""
        ids: dict[str, str] = {}
        for name, sample in load_sample_documents():
            body = {"title": sample.title, "data": sample.data}
            ids[name] = (await self.post(f"{EXPORT_ROOT}/documents", body))["id"]
        return ids

    async def read_stream(self, path: str, *final_events: str, on_data: Any = None) -> None:
        """Read an event stream until one of the final events."""
        async with self.http.stream("GET", path, headers=self.headers, timeout=600) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("event: ") and line[7:] in final_events:
                    return
                if line.startswith("data: ") and on_data:
                    on_data(line)


async def measure_seconds(work: Any) -> float:
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


async def export_document(user: BenchmarkUser, document_id: str, number: int) -> None:
    # Each number has its own margin, so that no request is equal to an earlier one.
    options = {
        "pageSize": "A4",
        "margins": {"top": 0.8 + number / 10_000, "bottom": 0.8, "left": 0.8, "right": 0.8},
    }
    job = (await user.post(f"{EXPORT_ROOT}/pdf", {"documentId": document_id, "options": options}))["jobId"]
    await user.read_stream(f"{EXPORT_ROOT}/job/{job}/stream", "completed")


async def export_batch(user: BenchmarkUser, document_ids: list[str], number: int) -> None:
    options = {"margins": {"top": 0.9 + number / 10_000}}
    batch = await user.post(f"{EXPORT_ROOT}/batch", {"documentIds": document_ids, "options": options})
    await user.read_stream(f"{EXPORT_ROOT}/batch/{batch['batchId']}/stream", "completed")


def print_times(name: str, times: list[float], target: str) -> None:
    times.sort()
    p95 = times[int(len(times) * 0.95)]
    print(
        f"{name:<28} p50 {statistics.median(times):6.3f} s   p95 {p95:6.3f} s   n {len(times):<4} ({target})"
    )


async def measure_exports(http: httpx.AsyncClient, rounds: int) -> None:
    """Measure single exports of one and two pages, and batches of five."""
    user = BenchmarkUser(http)
    documents = await user.add_documents()
    one_page = [documents[name] for name in ("amara", "lucia")]
    await export_document(user, one_page[0], 999)  # warm-up
    times = [await measure_seconds(export_document(user, one_page[n % 2], n)) for n in range(rounds)]
    print_times("one page", times, "target 0.3")
    times = [await measure_seconds(export_document(user, documents["jonas"], n)) for n in range(rounds)]
    print_times("two pages", times, "target 0.5")
    five = [(await user.add_documents())[name] for name in ("amara", "jonas", "lucia", "amara", "lucia")]
    batches = max(3, rounds // 8)
    times = [await measure_seconds(export_batch(user, five, n)) for n in range(batches)]
    print_times("batch of five", times, "target 2")


async def measure_throughput(http: httpx.AsyncClient, worker: asyncio.subprocess.Process, count: int) -> None:
    """Measure exports per second of eight users at once, and the memory of the worker."""
    users = [BenchmarkUser(http) for _ in range(8)]
    documents = [(await user.add_documents())["amara"] for user in users]
    sizes: list[int] = []

    async def export_repeatedly(user: BenchmarkUser, document_id: str, numbers: range) -> None:
        for number in numbers:
            await export_document(user, document_id, number)
            if number % 10 == 0:
                sizes.append(read_resident_bytes(worker.pid))

    started = time.perf_counter()
    per_user = count // len(users)
    await asyncio.gather(
        *(
            export_repeatedly(user, document_id, range(n * per_user, (n + 1) * per_user))
            for n, (user, document_id) in enumerate(zip(users, documents, strict=True))
        )
    )
    duration = time.perf_counter() - started
    tenth = max(1, len(sizes) // 10)
    early, late = max(sizes[tenth : 2 * tenth]) / 2**20, max(sizes[-tenth:]) / 2**20
    print(
        f"{count} exports, one worker      {count / duration:.1f} per second;"
        f" worker {early:.0f} MB early, {late:.0f} MB late"
    )


def read_resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measure_report(http: httpx.AsyncClient) -> None:
    """Measure one report until its first document and until its end."""
    user = BenchmarkUser(http)
    started = time.perf_counter()
    first_document: list[float] = []

    def on_data(line: str) -> None:
        if not first_document and '"docsComplete":0' not in line and '"docsComplete"' in line:
            first_document.append(time.perf_counter() - started)

    job = (await user.post("/api/jobs/start", {"type": "nuclear_v2", "params": REPORT_PARAMS}))["id"]
    await user.read_stream(f"/api/jobs/{job}/stream", "complete", "failed", on_data=on_data)
    duration = time.perf_counter() - started
    print(
        f"report of 16 documents       {duration:.1f} s (target 60),"
        f" first document after {first_document[0] if first_document else duration:.1f} s (target 5)"
    )


@asynccontextmanager
async def serve_systems(settings: Settings, database: Database) -> AsyncIterator[str]:
    limits = exports.ExportLimits(exports_per_day=1_000_000, storage_bytes=2**40, max_waiting=1000)
    app = create_app(settings, database=database, **mount(exports.mount(limits), reports))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await running


async def run_benchmark(server_url: str, count: int, rounds: int) -> None:
    name = f"hf_bench_{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(
            load_settings(), home=Path(folder), jwt_secret=Secret(JWT_SECRET), jwt_issuer=JWT_ISSUER,
            api_rate=100_000, api_burst=100_000, user_jobs=100_000,
        )  # fmt: skip
        await scratch.create_test_database(Secret(server_url), name, settings)
        url = scratch.build_database_url(Secret(server_url), name)
        try:
            await install.migrate_database(url, settings)
            await measure_on_database(url, settings, count, rounds)
        finally:
            await scratch.drop_test_database(Secret(server_url), name, settings)


async def measure_on_database(url: Secret, settings: Settings, count: int, rounds: int) -> None:
    async with Database(url, settings) as database:
        async with database.connection() as connection:
            await exports.install(connection)
            await reports.install(connection)
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast", "worker", "holdfast.devtools.demo_systems",
            env={**os.environ, "HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_HOME": str(settings.home)},
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with (
                serve_systems(settings, database) as address,
                httpx.AsyncClient(base_url=address, timeout=600) as http,
            ):
                await measure_exports(http, rounds)
                await measure_report(http)
                await measure_throughput(http, worker, count)
        finally:
            worker.terminate()
            await worker.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="URL of a PostgreSQL server")
    parser.add_argument("--exports", type=int, default=1000, help="exports for the throughput (1000)")
    parser.add_argument("--rounds", type=int, default=40, help="exports for the times (40)")
    options = parser.parse_args()
    asyncio.run(run_benchmark(options.url, options.exports, options.rounds))


if __name__ == "__main__":
    main()
