"""Run one entry of the public harness: a new database, its process, its pace, its telemetry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import asyncpg

from bench.harness.entries import HarnessEntry
from bench.harness.results import EntrySample, RunResult
from bench.harness.server_samples import ServerMonitor
from bench.worker import get_postmaster_pid, read_server_cpu_seconds
from holdfast.engine import scratch
from holdfast.settings import Secret

WARM_UP_S = 10.0
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
PACE_INTERVAL_S = 0.025
MAX_BATCH = 128
COMMON_ENVIRONMENT = {
    "SCENARIO": "long_horizon",
    "PRODUCER_BATCH_MAX": str(MAX_BATCH),
    "PRODUCER_BATCH_MS": "10",
    "JOB_PAYLOAD_BYTES": "256",
    "JOB_WORK_MS": "1",
    "SAMPLE_EVERY_S": "5",
}


@dataclass(frozen=True)
class RunPlan:
    """The environment of a run, and how long to measure it. `paced_rate`: offer jobs on standard input."""

    environment: dict[str, str]
    measured_s: float
    paced_rate: float | None = None


@dataclass
class HarnessRun:
    """One entry that runs once in a database of its own."""

    server: Secret
    entry: HarnessEntry
    plan: RunPlan
    _samples: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    _window_s: float = 0.0
    _descriptor: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> RunResult:
        await self._create_database()
        url = scratch.build_database_url(self.server, self.entry.database).reveal()
        monitor = ServerMonitor(url)
        with tempfile.TemporaryFile("w+") as log:
            process = await self._start_process(url, log)
            parts = [asyncio.create_task(self._read_telemetry(process)), asyncio.create_task(monitor.run())]
            if self.plan.paced_rate is not None:
                parts.append(asyncio.create_task(self._offer_jobs(process, self.plan.paced_rate)))
            try:
                result = await self._measure(process, monitor)
                result.stop_s, result.exit_code = await self._stop_process(process)
            except Exception:
                log.seek(0)
                print(log.read()[-3000:], flush=True)
                raise
            finally:
                for part in parts:
                    part.cancel()
                await asyncio.gather(*parts, return_exceptions=True)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        await self._drop_database()
        return result

    async def _start_process(self, url: str, log: Any) -> asyncio.subprocess.Process:
        environment = {**COMMON_ENVIRONMENT, **self.plan.environment, "DATABASE_URL": url}
        if self.plan.paced_rate is not None:
            environment["PRODUCER_PACING"] = "harness"
        return await asyncio.create_subprocess_exec(
            *self.entry.build_command(),
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )

    async def _measure(self, process: asyncio.subprocess.Process, monitor: ServerMonitor) -> RunResult:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._samples:
            if process.returncode is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.entry.name} sent no sample")
            await asyncio.sleep(0.1)
        await asyncio.sleep(WARM_UP_S)
        admin = await asyncpg.connect(self.server.reveal())
        postmaster = await get_postmaster_pid(admin)
        await admin.close()
        started_at, entry_cpu, server_cpu = time.time(), *self._read_cpu(process.pid, postmaster)
        await asyncio.sleep(self.plan.measured_s)
        if process.returncode is not None:
            raise RuntimeError(f"{self.entry.name} exited by itself with {process.returncode}")
        ended_at, entry_cpu_after, server_cpu_after = time.time(), *self._read_cpu(process.pid, postmaster)
        samples = self._list_samples(started_at, ended_at)
        return RunResult(
            samples, self._window_s, entry_cpu_after - entry_cpu, server_cpu_after - server_cpu,
            ended_at - started_at, monitor,
        )  # fmt: skip

    def _read_cpu(self, process: int, postmaster: int) -> tuple[float, float]:
        return read_server_cpu_seconds(process), read_server_cpu_seconds(postmaster)

    def _list_samples(self, start: float, end: float) -> list[EntrySample]:
        """Return the samples whose windows lie between two times. A sample without a metric is incomplete."""
        samples = [
            EntrySample(datetime.fromisoformat(at).timestamp(), metrics)
            for at, metrics in sorted(self._samples.items())
            if "queue_depth" in metrics
        ]
        return [sample for sample in samples if start + self._window_s <= sample.at + 0.5 <= end + 0.5]

    async def _read_telemetry(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                self._descriptor.set()
                if record.get("kind") == "adapter":
                    self._samples.setdefault(record["t"], {})[record["metric"]] = float(record["value"])
                    if record["metric"] == "completion_rate":
                        self._window_s = float(record["window_s"])

    async def _offer_jobs(self, process: asyncio.subprocess.Process, rate: float) -> None:
        """Write `ENQUEUE n` lines for the time that has passed. Entries that pace themselves ignore them."""
        assert process.stdin is not None
        await self._descriptor.wait()  # the schema is installed by then
        credit, before = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(PACE_INTERVAL_S)
            now = time.monotonic()
            credit, before = credit + rate * (now - before), now
            while credit >= 1:
                count = min(int(credit), MAX_BATCH)
                process.stdin.write(f"ENQUEUE {count}\n".encode())
                credit -= count

    async def _stop_process(self, process: asyncio.subprocess.Process) -> tuple[float, int | None]:
        """Send SIGTERM. Return how long the entry took to exit and its exit code."""
        started_at = time.monotonic()
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        return time.monotonic() - started_at, process.returncode

    async def _create_database(self) -> None:
        await self._drop_database()
        admin = await asyncpg.connect(self.server.reveal())
        await admin.execute(f"create database {self.entry.database}")
        await admin.execute("checkpoint")
        await admin.close()
        script = self.entry.read_package_sql()
        if script:
            url = scratch.build_database_url(self.server, self.entry.database)
            connection = await asyncpg.connect(url.reveal())
            await connection.execute(script)
            await connection.close()

    async def _drop_database(self) -> None:
        admin = await asyncpg.connect(self.server.reveal())
        await admin.execute(f"drop database if exists {self.entry.database} with (force)")
        await admin.close()
