"""What the benchmarks of systems share: a database, API and workers as processes, and what they use."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import re
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import jwt

from holdfast import load_settings
from holdfast.engine import install, scratch
from holdfast.settings import Secret

JWT_SECRET, JWT_ISSUER = "a secret for the benchmark that is long enough for HS256", "bench"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def list_process_tree(root: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += parents.get(pid, [])


def read_cpu_seconds(root: int) -> float:
    """Return the CPU time of a process tree, with that of processes that have ended."""
    ticks = 0
    for pid in list_process_tree(root):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / CLOCK_TICKS


def read_pss_megabytes(root: int) -> float:
    kilobytes = 0
    for pid in list_process_tree(root):
        with contextlib.suppress(OSError):
            match = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
            kilobytes += int(match[1]) if match else 0
    return kilobytes / 1024


class TimeBudget:
    """The time that a benchmark may take. A phase measures what it reaches until its share has passed."""

    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60 * minutes

    def take_share(self, part: float) -> float:
        """Return the monotonic time at which a phase with this part of the remaining time ends."""
        now = time.monotonic()
        return now + max(5.0, (self._end - now) * part)


def print_rows_at_once() -> None:
    """Write each line when it is printed, also into a pipe or a file."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def add_budget_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="time for all phases; slow ones measure less (5)"
    )


class SystemBenchmark:
    """A system on one database: the API, users, and workers when they run."""

    def __init__(self, url: Secret, site: str, home: Path) -> None:
        self.url, self.site = url, site
        self.environment = {
            **os.environ,
            "HOLDFAST_DATABASE_URL": url.reveal(),
            "HOLDFAST_HOME": str(home),
            "HOLDFAST_JWT_SECRET": JWT_SECRET,
            "HOLDFAST_JWT_ISSUER": JWT_ISSUER,
            "HOLDFAST_EGRESS_ALLOW": site,
            "HOLDFAST_API_RATE": "100000",
            "HOLDFAST_API_BURST": "100000",
        }
        self.log = home / "processes.log"
        self.http = httpx.AsyncClient(timeout=120)

    @asynccontextmanager
    async def run(self, *arguments: str) -> AsyncIterator[int]:
        """Run a command of Holdfast, and yield its process id.

        It has a session of its own, as a service has: the kernel divides the processors among sessions.
        """
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "holdfast", *arguments),
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process.pid
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()

    async def wait_for_api(self, address: str) -> None:
        self.http.base_url = httpx.URL(address)
        for _ in range(600):
            with contextlib.suppress(httpx.TransportError):
                if (await self.http.get("/healthz")).status_code == 200:
                    return
            await asyncio.sleep(0.2)
        raise SystemExit(f"The API did not start:\n{self.log.read_text()[-2000:]}")

    async def fetch_value(self, query: str) -> Any:
        connection = await asyncpg.connect(self.url.reveal())
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()


def create_user_headers() -> dict[str, str]:
    claims = {
        "sub": str(uuid.uuid4()),
        "iss": JWT_ISSUER,
        "aud": "authenticated",
        "role": "authenticated",
        "exp": int(time.time()) + 36_000,
    }
    return {"authorization": f"Bearer {jwt.encode(claims, JWT_SECRET, 'HS256')}"}


def choose_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@asynccontextmanager
async def create_bench_database(server_url: str) -> AsyncIterator[tuple[Secret, Path]]:
    """Create a migrated database and a folder, and delete both at the end of the block."""
    name, settings = f"hf_bench_{uuid.uuid4().hex[:8]}", load_settings()
    with tempfile.TemporaryDirectory() as folder:
        await scratch.create_test_database(Secret(server_url), name, settings)
        url = scratch.build_database_url(Secret(server_url), name)
        try:
            await install.migrate_database(url, settings)
            yield url, Path(folder)
        finally:
            await scratch.drop_test_database(Secret(server_url), name, settings)
