"""Exports and reports, end to end: over HTTP, through the queue, by a worker process, into a folder of files.

    python bench/systems.py postgresql://postgres@127.0.0.1:5432/postgres [--exports 1000] [--rounds 40]

Needs a role that may create databases; one is made and dropped. The API runs in this process on a port, one
worker as a process of its own. The time of an export is from sending the request to reading `completed` in
its event stream. The memory of the worker is its resident size, read while it prints.
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

from holdfast import settings as settings_module
from holdfast.engine import install, scratch
from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import exports, mount, reports
from holdfast.systems.exports.resumes import load_sample_documents

SECRET, ISSUER = "a secret for the benchmark that is long enough for HS256", "bench"
EXPORT = "/api/v1/export"
PEOPLE = {
    "person1": {"name": "Ada", "birthDate": "1815-12-10"},
    "person2": {"name": "Charles"},
    "systems": ["western"],
}


class User:
    def __init__(self, web: httpx.AsyncClient) -> None:
        self.web = web
        self.id = str(uuid.uuid4())
        now = int(time.time())
        claims = {
            "sub": self.id,
            "iss": ISSUER,
            "aud": "authenticated",
            "role": "authenticated",
            "exp": now + 7200,
        }
        self.headers = {"authorization": f"Bearer {jwt.encode(claims, SECRET, 'HS256')}"}

    async def post(self, path: str, body: Any) -> Any:
        answer = await self.web.post(path, json=body, headers=self.headers)
        answer.raise_for_status()
        return answer.json()

    async def documents(self) -> dict[str, str]:
        created = {}
        for name, sample in load_sample_documents():
            created[name] = (
                await self.post(f"{EXPORT}/documents", {"title": sample.title, "data": sample.data})
            )["id"]
        return created

    async def until(self, path: str, *events: str, seen: Any = None) -> None:
        async with self.web.stream("GET", path, headers=self.headers, timeout=600) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("event: ") and line[7:] in events:
                    return
                if line.startswith("data: ") and seen:
                    seen(line)


async def timed(work: Any) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def one(user: User, document: str, number: int) -> None:
    # A margin that differs makes it another export, so that nothing is answered from an earlier one.
    options = {
        "pageSize": "A4",
        "margins": {"top": 0.8 + number / 10_000, "bottom": 0.8, "left": 0.8, "right": 0.8},
    }
    job = (await user.post(f"{EXPORT}/pdf", {"documentId": document, "options": options}))["jobId"]
    await user.until(f"{EXPORT}/job/{job}/stream", "completed")


async def batch(user: User, documents: list[str], number: int) -> None:
    options = {"margins": {"top": 0.9 + number / 10_000}}
    created = await user.post(f"{EXPORT}/batch", {"documentIds": documents, "options": options})
    await user.until(f"{EXPORT}/batch/{created['batchId']}/stream", "completed")


def print_times(name: str, times: list[float], target: str) -> None:
    times.sort()
    p95 = times[int(len(times) * 0.95)]
    print(
        f"{name:<28} p50 {statistics.median(times):6.3f} s   p95 {p95:6.3f} s   n {len(times):<4} ({target})"
    )


async def exports_part(web: httpx.AsyncClient, rounds: int) -> None:
    user = User(web)
    documents = await user.documents()
    pages = [documents[name] for name in ("amara", "lucia")]
    await one(user, pages[0], 999)
    print_times("one page", [await timed(one(user, pages[n % 2], n)) for n in range(rounds)], "target 0.3")
    print_times(
        "two pages", [await timed(one(user, documents["jonas"], n)) for n in range(rounds)], "target 0.5"
    )
    five = [(await user.documents())[name] for name in ("amara", "jonas", "lucia", "amara", "lucia")]
    print_times(
        "batch of five", [await timed(batch(user, five, n)) for n in range(max(3, rounds // 8))], "target 2"
    )


async def many_part(web: httpx.AsyncClient, process: asyncio.subprocess.Process, count: int) -> None:
    users = [User(web) for _ in range(8)]
    documents = [(await user.documents())["amara"] for user in users]
    sizes: list[int] = []

    async def share(user: User, document: str, numbers: range) -> None:
        for number in numbers:
            await one(user, document, number)
            if number % 10 == 0:
                sizes.append(resident(process.pid))

    began = time.perf_counter()
    each = count // len(users)
    await asyncio.gather(
        *(
            share(user, document, range(n * each, (n + 1) * each))
            for n, (user, document) in enumerate(zip(users, documents, strict=True))
        )
    )
    took = time.perf_counter() - began
    tenth = max(1, len(sizes) // 10)
    early, late = max(sizes[tenth : 2 * tenth]) / 2**20, max(sizes[-tenth:]) / 2**20
    print(
        f"{count} exports, one worker      {count / took:.1f} a second;"
        f" worker {early:.0f} MB early, {late:.0f} MB late"
    )


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def report_part(web: httpx.AsyncClient) -> None:
    user = User(web)
    began = time.perf_counter()
    first: list[float] = []

    def seen(line: str) -> None:
        if not first and '"docsComplete":0' not in line and '"docsComplete"' in line:
            first.append(time.perf_counter() - began)

    job = (await user.post("/api/jobs/start", {"type": "nuclear_v2", "params": PEOPLE}))["id"]
    await user.until(f"/api/jobs/{job}/stream", "complete", "failed", seen=seen)
    took = time.perf_counter() - began
    print(
        f"report of 16 documents       {took:.1f} s (target 60),"
        f" first document after {first[0] if first else took:.1f} s (target 5)"
    )


@asynccontextmanager
async def served(settings: Settings, database: Database) -> AsyncIterator[str]:
    limits = exports.ExportLimits(exports_per_day=1_000_000, bytes=2**40, waiting=1000)
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


async def run(base: str, count: int, rounds: int) -> None:
    name = f"hf_bench_{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(
            settings_module.load_settings(), home=Path(folder), jwt_secret=Secret(SECRET), jwt_issuer=ISSUER,
            api_rate=100_000, api_burst=100_000, user_jobs=100_000,
        )  # fmt: skip
        await scratch.create_database(Secret(base), name, settings)
        url = scratch.url_of_database(Secret(base), name)
        try:
            await install.migrate_database(url, settings)
            await on_database(url, settings, count, rounds)
        finally:
            await scratch.drop_database(Secret(base), name, settings)


async def on_database(url: Secret, settings: Settings, count: int, rounds: int) -> None:
    async with Database(url, settings) as database:
        async with database.connection() as connection:
            await exports.install(connection)
            await reports.install(connection)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast", "worker", "holdfast.devtools.demo_systems",
            env={**os.environ, "HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_HOME": str(settings.home)},
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with (
                served(settings, database) as place,
                httpx.AsyncClient(base_url=place, timeout=600) as web,
            ):
                await exports_part(web, rounds)
                await report_part(web)
                await many_part(web, process, count)
        finally:
            process.terminate()
            await process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--exports", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    asyncio.run(run(options.url, options.exports, options.rounds))


if __name__ == "__main__":
    main()
