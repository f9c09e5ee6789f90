"""One peer under trial: its database or Redis, its adapter as processes, its jobs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import asyncpg

from bench.peers import rows
from bench.peers.peers import ADAPTERS, ROOT, Entry
from campaign.servers import FaultServer, free_port
from holdfast.engine import scratch

STEP_TIMEOUT_SECONDS = 60.0  # seconds for each step
POLL_INTERVAL_SECONDS = 0.05
REDIS_FILL_SECONDS = 40.0  # seconds; there is no other way there
REDIS_OPTIONS = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no")


class UnsupportedMeasurementError(RuntimeError):
    """Not a failure: this peer cannot be asked for it, and the page says why."""


@dataclass(frozen=True)
class PeerWorker:
    process: subprocess.Popen[bytes]
    output: IO[str]

    def read_output(self, key: str) -> list[dict[str, Any]]:
        """What it said so far. Its place in the file is shared with us, so nothing may move it."""
        size = os.fstat(self.output.fileno()).st_size
        text = os.pread(self.output.fileno(), size, 0).decode()
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [json.loads(line) for line in whole if line.startswith('{"' + key + '"')]


class Trial:
    def __init__(self, entry: Entry, server: FaultServer, environments: Path, programs: Path) -> None:
        self.entry = entry
        self.database = "bench_" + entry.name.replace("-", "_")
        self.looks = 0
        self.bulk_rate = 0.0  # of the last call, to know what a million would take
        self.clear = 0.0  # the rate of its usual drain in this run, what others are compared with
        self._server = server
        self._redis: subprocess.Popen[bytes] | None = None
        self._redis_port = free_port()
        self._environments = environments
        self._workers: list[PeerWorker] = []
        self.rounds: dict[str, list[float]] = {}
        self.dsn = scratch.url_of_database(server.url, self.database).reveal()
        self._environment = {
            **os.environ,
            "PEER_DSN": self.dsn,
            "PEER_REDIS": f"redis://127.0.0.1:{self._redis_port}",
            "PYTHONPATH": f"{ADAPTERS}:{ROOT}:{ROOT / 'src'}",
            "PATH": f"{programs}:{os.environ['PATH']}",
        }

    async def make(self) -> None:
        """A store with nothing in it, whatever was there before."""
        await self.close()
        admin = await asyncpg.connect(self._server.url.reveal())
        await admin.execute(f"create database {self.database}")
        await admin.close()
        if self.entry.redis:
            program = self._environments / self.entry.name / "bin" / "redis-server"
            words = [str(program), "--port", str(self._redis_port), *REDIS_OPTIONS]
            self._redis = subprocess.Popen(words, stdout=subprocess.DEVNULL)  # noqa: ASYNC220
            await asyncio.sleep(0.5)
        self.run("install")

    async def close(self) -> None:
        for worker in list(self._workers):
            self.stop(worker)
        if self._redis is not None:
            self._redis.terminate()
            self._redis.wait(10)
            self._redis = None
        admin = await asyncpg.connect(self._server.url.reveal())
        await admin.execute(f"drop database if exists {self.database} with (force)")
        await admin.close()

    def run(self, *words: str) -> dict[str, Any]:
        done = subprocess.run(
            [*self.entry.command(self._environments), *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{self.entry.name} {words}: {done.stderr[-2000:]}")
        output = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return json.loads(output[-1]) if output else {}

    def start(self, **more: str) -> PeerWorker:
        output = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  (closed when it is stopped)
        process = subprocess.Popen(
            [*self.entry.command(self._environments), "work"],
            env=self._environment | more,
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._workers.append(PeerWorker(process, output))
        return self._workers[-1]

    def stop(self, worker: PeerWorker) -> dict[str, Any]:
        """With all that it started: some leave processes behind."""
        self._workers.remove(worker)
        worker.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        with worker.output:
            output = worker.read_output("handled")
        return output[-1] if output else {"handled": 0, "waits_ms": []}

    async def reached(self, worker: PeerWorker, jobs: int, patience: float = STEP_TIMEOUT_SECONDS) -> float:
        """When its handlers had begun so many, by the clock on the wall."""
        deadline = time.monotonic() + patience
        while True:
            output = worker.read_output("reached")
            if measurements := [line["at"] for line in output if line["reached"] == jobs]:
                return float(measurements[0])
            if worker.process.poll() is not None:
                raise RuntimeError("the worker ended by itself")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{patience:.0f} s passed before a worker had begun {jobs:,}")
            await asyncio.sleep(
                POLL_INTERVAL_SECONDS / 10
            )  # a thousand jobs may be gone in a twentieth of a second

    async def left(self, connection: asyncpg.Connection) -> int:
        self.looks += 1
        if not self.entry.redis:
            return int(await connection.fetchval(self.entry.left))
        reader, writer = await asyncio.open_connection("127.0.0.1", self._redis_port)
        writer.write(f"HLEN {self.entry.left}\r\n".encode())
        answer = await reader.readline()
        writer.close()
        return int(answer[1:])

    def bulk(self, jobs: int) -> float:
        self.bulk_rate = float(jobs / self.run("bulk", str(jobs))["seconds"])
        return self.bulk_rate

    async def fill(self, jobs: int, by_api: float) -> str:
        """So many waiting, by its own call if that is quick enough; says how. The queue must be empty."""
        seconds = jobs / self.bulk_rate
        if seconds < (REDIS_FILL_SECONDS if self.entry.redis else by_api):
            self.run("bulk", str(jobs))
            how = "its bulk call"
        elif self.entry.redis:
            raise UnsupportedMeasurementError(
                f"to enqueue {jobs:,} would take it {seconds:,.0f} s, and there are no tables to copy in"
            )
        else:
            self.run("bulk", "1")
            await rows.multiply(self.dsn, rows.WAITING[self.entry.name], jobs - 1)
            how = "one row multiplied"
        if not self.entry.redis:
            await rows.settle(self.dsn)
        return how

    async def drain(self, jobs: int, workers: int = 1, others: int = 0) -> float:
        """Jobs a second from the first that is gone to the last; `others` stay. Starting does not count."""
        self.bulk(jobs)
        connection = await asyncpg.connect(self.dsn)
        processes = [self.start() for _ in range(workers)]
        try:
            started_at, done_at_start, left = None, 0, jobs
            deadline = time.monotonic() + STEP_TIMEOUT_SECONDS
            while left > 0:
                looked = time.perf_counter()
                left = await self.left(connection) - others
                if started_at is None and left < jobs:
                    started_at, done_at_start = looked, jobs - left
                if left > 0 and time.monotonic() > deadline:
                    raise TimeoutError(f"{left:,} of {jobs:,} left after {STEP_TIMEOUT_SECONDS:.0f} s")
                # Looking takes a tenth of one core at most, whatever it costs.
                await asyncio.sleep(
                    max(POLL_INTERVAL_SECONDS, 9 * (time.perf_counter() - looked)) if left > 0 else 0
                )
            seconds = looked - (started_at or 0)
        finally:
            for process in processes:
                self.stop(process)
            await connection.close()
        done = jobs - done_at_start
        return done / seconds if done > 0 and seconds > 0 else float("nan")  # too few to be timed

    async def usual(self, jobs: int) -> float:
        """What others are compared with: the drain of an otherwise empty store, measured once a run."""
        if not self.clear:
            await self.make()
            rate = await self.drain(jobs)
            if math.isnan(rate):
                raise RuntimeError(f"{jobs:,} jobs are too few to be timed")
            self.clear = rate
        return self.clear

    async def drain_for(self, jobs: int, seconds: float, look: float) -> float:
        """Jobs a second of one process from its first job on, until all are gone or the time is over.

        Looking costs the server as much as there are rows, so how often is up to the caller.
        """
        connection = await asyncpg.connect(self.dsn)
        worker = self.start()
        try:
            started_at = await self.reached(worker, 1)
            while True:
                await asyncio.sleep(min(look, max(started_at + seconds - time.time(), 0)))
                looked = time.time()
                left = await self.left(connection)
                if not left or looked >= started_at + seconds:
                    return (jobs - left) / (looked - started_at)
        finally:
            self.stop(worker)
            await connection.close()

    async def emptied(self) -> None:
        """Let a worker take what the enqueueing left, so that a drain begins with a known number."""
        worker = self.start()
        try:
            await self.until_empty()
        finally:
            self.stop(worker)

    async def until_empty(self) -> None:
        connection = await asyncpg.connect(self.dsn)
        try:
            async with asyncio.timeout(STEP_TIMEOUT_SECONDS):
                while await self.left(connection):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_INTERVAL_SECONDS)
        finally:
            await connection.close()
