"""Run one peer: create its database or Redis, start its adapter processes, and time its drains."""

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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import asyncpg

from bench.peers import rows
from bench.peers.peers import ADAPTERS_DIR, ROOT, PeerDefinition
from campaign.servers import FaultServer, choose_free_port
from holdfast.engine import scratch

STEP_TIMEOUT_SECONDS = 60.0
POLL_INTERVAL_SECONDS = 0.05
REDIS_FILL_SECONDS = 40.0  # longer than for others, because rows cannot be copied
REDIS_OPTIONS = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no")


class UnsupportedMeasurementError(RuntimeError):
    """The peer does not support a measurement. The page prints the reason."""


@dataclass(frozen=True)
class PeerWorker:
    """A worker process of a peer, and the file that receives its output."""

    process: subprocess.Popen[bytes]
    output: IO[str]

    def read_output_lines(self, key: str) -> list[dict[str, Any]]:
        """Return the JSON lines with this key. Uses pread, because the worker shares the file position."""
        size = os.fstat(self.output.fileno()).st_size
        text = os.pread(self.output.fileno(), size, 0).decode()
        complete_lines = text[: text.rfind("\n") + 1].splitlines()
        return [json.loads(line) for line in complete_lines if line.startswith('{"' + key + '"')]


class PeerTrial:
    """A peer with its store (database or Redis), its workers and its measured rates."""

    def __init__(self, peer: PeerDefinition, server: FaultServer, environments: Path, programs: Path) -> None:
        self.peer = peer
        self.database = "bench_" + peer.name.replace("-", "_")
        self.poll_count = 0
        self.bulk_rate = 0.0  # jobs per second of the last bulk call
        self.usual_rate = 0.0  # jobs per second of a drain of an otherwise empty store
        self._server = server
        self._redis: subprocess.Popen[bytes] | None = None
        self._redis_port = choose_free_port()
        self._environments = environments
        self._workers: list[PeerWorker] = []
        self.rates_by_column: dict[str, list[float]] = {}
        self.dsn = scratch.build_database_url(server.url, self.database).reveal()
        self._environment = {
            **os.environ,
            "PEER_DSN": self.dsn,
            "PEER_REDIS": f"redis://127.0.0.1:{self._redis_port}",
            "PYTHONPATH": f"{ADAPTERS_DIR}:{ROOT}:{ROOT / 'src'}",
            "PATH": f"{programs}:{os.environ['PATH']}",
        }

    @contextlib.contextmanager
    def set_environment(self, **environment: str) -> Iterator[None]:
        """Set environment variables of the adapter while the block runs."""
        before, self._environment = self._environment, self._environment | environment
        try:
            yield
        finally:
            self._environment = before

    async def create_store(self) -> None:
        """Remove the store of the peer and create an empty one."""
        await self.remove_store()
        admin = await asyncpg.connect(self._server.url.reveal())
        await admin.execute(f"create database {self.database}")
        await admin.close()
        if self.peer.redis:
            program = self._environments / self.peer.name / "bin" / "redis-server"
            command = [str(program), "--port", str(self._redis_port), *REDIS_OPTIONS]
            self._redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: ASYNC220
            await asyncio.sleep(0.5)
        self.run_adapter("install")

    async def remove_store(self) -> None:
        """Stop the workers and Redis, and drop the database."""
        for worker in list(self._workers):
            self.stop_worker(worker)
        if self._redis is not None:
            self._redis.terminate()
            self._redis.wait(10)
            self._redis = None
        admin = await asyncpg.connect(self._server.url.reveal())
        await admin.execute(f"drop database if exists {self.database} with (force)")
        await admin.close()

    def run_adapter(self, *arguments: str) -> dict[str, Any]:
        """Run a command of the adapter and return the last JSON object that it prints."""
        process = subprocess.run(
            [*self.peer.build_command(self._environments), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_SECONDS,
            check=False,
        )
        if process.returncode:
            raise RuntimeError(f"{self.peer.name} {arguments}: {process.stderr[-2000:]}")
        output = [line for line in process.stdout.splitlines() if line.startswith("{")]
        return json.loads(output[-1]) if output else {}

    def start_worker(self, **environment: str) -> PeerWorker:
        output = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  (closed by stop_worker)
        process = subprocess.Popen(
            [*self.peer.build_command(self._environments), "work"],
            env=self._environment | environment,
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._workers.append(PeerWorker(process, output))
        return self._workers[-1]

    def stop_worker(self, worker: PeerWorker) -> dict[str, Any]:
        """Stop a worker and all its child processes. Return the statistics that it printed."""
        self._workers.remove(worker)
        worker.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        with worker.output:
            output = worker.read_output_lines("handled")
        return output[-1] if output else {"handled": 0, "waits_ms": []}

    async def wait_for_started_jobs(
        self, worker: PeerWorker, jobs: int, timeout_s: float = STEP_TIMEOUT_SECONDS
    ) -> float:
        """Wait until a worker has started `jobs` jobs. Return the time, in seconds since the epoch."""
        deadline = time.monotonic() + timeout_s
        while True:
            output = worker.read_output_lines("reached")
            if times := [line["at"] for line in output if line["reached"] == jobs]:
                return float(times[0])
            if worker.process.poll() is not None:
                raise RuntimeError("the worker exited")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the worker started fewer than {jobs:,} jobs in {timeout_s:.0f} s")
            await asyncio.sleep(POLL_INTERVAL_SECONDS / 10)  # a worker may finish a thousand jobs in 50 ms

    async def count_unfinished(self, connection: asyncpg.Connection) -> int:
        self.poll_count += 1
        if not self.peer.redis:
            return int(await connection.fetchval(self.peer.unfinished_query))
        reader, writer = await asyncio.open_connection("127.0.0.1", self._redis_port)
        writer.write(f"HLEN {self.peer.unfinished_query}\r\n".encode())
        response = await reader.readline()
        writer.close()
        return int(response[1:])

    def enqueue_bulk(self, jobs: int) -> float:
        """Enqueue jobs with the bulk call of the peer. Return jobs per second."""
        self.bulk_rate = float(jobs / self.run_adapter("bulk", str(jobs))["seconds"])
        return self.bulk_rate

    async def fill_queue(self, jobs: int, max_enqueue_seconds: float) -> str:
        """Fill the empty queue by a bulk call, or by copying a row if that is slow. Return the method."""
        seconds = jobs / self.bulk_rate
        if seconds < (REDIS_FILL_SECONDS if self.peer.redis else max_enqueue_seconds):
            self.run_adapter("bulk", str(jobs))
            method = "its bulk call"
        elif self.peer.redis:
            raise UnsupportedMeasurementError(
                f"enqueueing {jobs:,} jobs would take {seconds:,.0f} s, and Redis has no rows to copy"
            )
        else:
            self.run_adapter("bulk", "1")
            await rows.multiply_rows(self.dsn, rows.WAITING_ROWS[self.peer.name], jobs - 1)
            method = "copies of one row"
        if not self.peer.redis:
            await rows.vacuum_and_checkpoint(self.dsn)
        return method

    async def measure_drain(
        self, jobs: int, workers: int = 1, held_jobs: int = 0, at_once: int | None = None
    ) -> float:
        """Return jobs per second from the first finished job to the last. `held_jobs` never finish.

        A process runs `at_once` jobs at once. None: as many as in our configuration of the peer.
        """
        self.enqueue_bulk(jobs)
        connection = await asyncpg.connect(self.dsn)
        environment = {} if at_once is None else {"PEER_AT_ONCE": str(at_once)}
        processes = [self.start_worker(**environment) for _ in range(workers)]
        try:
            started_at, done_at_start, left = None, 0, jobs
            deadline = time.monotonic() + STEP_TIMEOUT_SECONDS
            while left > 0:
                polled_at = time.perf_counter()
                left = await self.count_unfinished(connection) - held_jobs
                if started_at is None and left < jobs:
                    started_at, done_at_start = polled_at, jobs - left
                if left > 0 and time.monotonic() > deadline:
                    raise TimeoutError(f"{left:,} of {jobs:,} left after {STEP_TIMEOUT_SECONDS:.0f} s")
                # Counting takes at most a tenth of one core.
                await asyncio.sleep(
                    max(POLL_INTERVAL_SECONDS, 9 * (time.perf_counter() - polled_at)) if left > 0 else 0
                )
            seconds = polled_at - (started_at or 0)
        finally:
            for process in processes:
                self.stop_worker(process)
            await connection.close()
        done = jobs - done_at_start
        return done / seconds if done > 0 and seconds > 0 else float("nan")  # too few jobs to measure

    async def get_usual_rate(self, jobs: int) -> float:
        """Return jobs per second of a drain of an otherwise empty store, measured once per run."""
        if not self.usual_rate:
            await self.create_store()
            rate = await self.measure_drain(jobs)
            if math.isnan(rate):
                raise RuntimeError(f"{jobs:,} jobs are too few to measure")
            self.usual_rate = rate
        return self.usual_rate

    async def measure_drain_for(self, jobs: int, seconds: float, poll_seconds: float) -> float:
        """Return jobs per second of one process, until the queue is empty or `seconds` have passed.

        Counting costs more with more rows, so the caller chooses how often to count.
        """
        connection = await asyncpg.connect(self.dsn)
        worker = self.start_worker()
        try:
            started_at = await self.wait_for_started_jobs(worker, 1)
            while True:
                await asyncio.sleep(min(poll_seconds, max(started_at + seconds - time.time(), 0)))
                polled_at = time.time()
                left = await self.count_unfinished(connection)
                if not left or polled_at >= started_at + seconds:
                    return (jobs - left) / (polled_at - started_at)
        finally:
            self.stop_worker(worker)
            await connection.close()

    async def drain_leftovers(self) -> None:
        """Run a worker until the queue is empty, so that a drain begins with a known number of jobs."""
        worker = self.start_worker()
        try:
            await self.wait_until_empty()
        finally:
            self.stop_worker(worker)

    async def wait_until_empty(self) -> None:
        connection = await asyncpg.connect(self.dsn)
        try:
            async with asyncio.timeout(STEP_TIMEOUT_SECONDS):
                while await self.count_unfinished(connection):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_INTERVAL_SECONDS)
        finally:
            await connection.close()
