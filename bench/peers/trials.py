"""One peer under trial: its database or Redis, its adapter as a process, and what is measured of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import IO, Any

import asyncpg

from bench.peers.peers import ADAPTERS, ROOT, Entry
from campaign.servers import Server, free_port
from holdfast.engine import scratch

PATIENCE = 60.0  # seconds for each step
LOOK = 0.05
IDLE_SECONDS = 6.0
COUNTS = """select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint as wal,
  xact_commit + xact_rollback as transactions from pg_stat_database where datname = current_database()"""


@dataclass(frozen=True)
class Working:
    process: subprocess.Popen[bytes]
    output: IO[str]


class Trial:
    def __init__(self, entry: Entry, server: Server, environments: Path, programs: Path) -> None:
        self.entry = entry
        self.database = "bench_" + entry.name.replace("-", "_")
        self._server = server
        self._redis: subprocess.Popen[bytes] | None = None
        self._redis_port = free_port()
        self._looks = 0
        self._environments = environments
        self._command = entry.command(environments)
        self.dsn = scratch.on_database(server.url, self.database).reveal()
        self._environment = {
            **os.environ,
            "PEER_DSN": self.dsn,
            "PEER_REDIS": f"redis://127.0.0.1:{self._redis_port}",
            "PYTHONPATH": f"{ADAPTERS}:{ROOT}:{ROOT / 'src'}",
            "PATH": f"{programs}:{os.environ['PATH']}",
        }

    async def make(self) -> None:
        admin = await asyncpg.connect(self._server.url.reveal())
        await admin.execute(f"create database {self.database}")
        await admin.close()
        if self.entry.redis:
            program = self._environments / self.entry.name / "bin" / "redis-server"
            words = [
                "--port",
                str(self._redis_port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ]
            self._redis = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL)  # noqa: ASYNC220
            await asyncio.sleep(0.5)
        self.run("install")

    def close(self) -> None:
        if self._redis is not None:
            self._redis.terminate()
            self._redis.wait(10)

    def run(self, *words: str) -> dict[str, Any]:
        done = subprocess.run(
            [*self._command, *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{self.entry.name} {words}: {done.stderr[-2000:]}")
        said = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return json.loads(said[-1]) if said else {}

    def start(self) -> Working:
        output = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  (closed when it is stopped)
        process = subprocess.Popen(
            [*self._command, "work"],
            env=self._environment,
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return Working(process, output)

    @staticmethod
    def stop(worker: Working) -> dict[str, Any]:
        """With all that it started: some leave processes behind."""
        worker.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        with worker.output as output:
            output.seek(0)
            lines = [line for line in output if line.startswith('{"handled"')]
        return json.loads(lines[-1]) if lines else {"handled": 0, "waits_ms": []}

    async def left(self, connection: asyncpg.Connection) -> int:
        self._looks += 1
        if not self.entry.redis:
            return int(await connection.fetchval(self.entry.left))
        reader, writer = await asyncio.open_connection("127.0.0.1", self._redis_port)
        writer.write(f"HLEN {self.entry.left}\r\n".encode())
        answer = await reader.readline()
        writer.close()
        return int(answer[1:])

    # What is measured

    async def enqueue(self, how: str, jobs: int) -> float:
        return float(jobs / self.run(how, str(jobs))["seconds"])

    async def drain(self, jobs: int, workers: int) -> float:
        """Jobs a second from the first that is gone to the last; starting the process does not count."""
        self.run("bulk", str(jobs))
        connection = await asyncpg.connect(self.dsn)
        processes = [self.start() for _ in range(workers)]
        try:
            began, done_at_start, left = None, 0, jobs
            deadline = time.monotonic() + PATIENCE
            while left:
                left = await self.left(connection)
                if began is None and left < jobs:
                    began, done_at_start = time.perf_counter(), jobs - left
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.entry.name}: {left} of {jobs} left")
                await asyncio.sleep(LOOK)
            seconds = time.perf_counter() - (began or 0)
        finally:
            for process in processes:
                self.stop(process)
            await connection.close()
        done = jobs - done_at_start
        return done / seconds if done else float("nan")  # too few to be timed

    async def counted(self, jobs: int) -> dict[str, float]:
        """A drain by one process, with WAL and transactions a job, from enqueueing in bulk to the end."""
        before, looks = await self._counts(), self._looks
        rate = await self.drain(jobs, 1)
        after = await self._counts()
        ours = self._looks - looks + 1
        spent = max(after["transactions"] - before["transactions"] - ours, 0.0)
        nothing = float("nan")
        return {
            "drain, 1 process": rate,
            "WAL bytes/job": nothing if self.entry.redis else (after["wal"] - before["wal"]) / jobs,
            "transactions/job": nothing if self.entry.redis else spent / jobs,
        }

    async def _counts(self, connection: asyncpg.Connection | None = None) -> dict[str, float]:
        kept = connection or await asyncpg.connect(self.dsn)
        await asyncio.sleep(1.2)  # statistics come late
        found = dict(await kept.fetchrow(COUNTS) or {})
        if connection is None:
            await kept.close()
        return {name: float(value) for name, value in found.items()}

    async def idle_and_wake_up(self, jobs: int) -> dict[str, float]:
        """Transactions a minute of an idle worker; then from enqueue to handler, one each 25 ms."""
        connection = await asyncpg.connect(self.dsn)
        worker = self.start()
        await asyncio.sleep(6)  # until it has settled
        before = await self._counts(connection)
        await asyncio.sleep(IDLE_SECONDS)
        after = await self._counts(connection)
        await connection.close()
        self.run("paced", str(jobs))
        await asyncio.sleep(1.5)
        waits = sorted(self.stop(worker)["waits_ms"])
        cuts = quantiles(waits, n=100) if len(waits) > 1 else [float("nan")] * 99
        idle = (after["transactions"] - before["transactions"] - 1) * 60 / (IDLE_SECONDS + 1.2)
        nothing = float("nan")
        return {
            "idle transactions/min": nothing if self.entry.redis else max(idle, 0.0),
            "wake-up p50 ms": cuts[49],
            "wake-up p99 ms": cuts[98],
        }

    async def emptied(self) -> None:
        """Let a worker take what the enqueueing left, so that a drain begins with a known number."""
        connection = await asyncpg.connect(self.dsn)
        worker = self.start()
        try:
            async with asyncio.timeout(PATIENCE):
                while await self.left(connection):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK)
        finally:
            self.stop(worker)
            with contextlib.suppress(OSError):
                await connection.close()
