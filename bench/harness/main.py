"""Holdfast adapter for a public benchmark harness: installs, produces, consumes and prints metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast import Client, __version__, settings, task
from holdfast.engine import install
from holdfast.engine.connection import Database
from holdfast.errors import HoldfastError
from holdfast.settings import Secret
from holdfast.worker.runtime import WorkerRuntime

HARNESS_DIR = Path(__file__).parent
ADAPTER_MANIFEST: dict[str, Any] = json.loads((HARNESS_DIR / "adapter.json").read_text(encoding="utf-8"))
LATENCY_WINDOW_S = 30.0


def read_number_setting(name: str, default: float) -> float:
    return float(os.environ.get(name) or default)


TASK_DURATION_S = read_number_setting("JOB_WORK_MS", 1) / 1000
SAMPLE_INTERVAL_S = read_number_setting("SAMPLE_EVERY_S", 5)
TASK_PAYLOAD = "x" * int(read_number_setting("JOB_PAYLOAD_BYTES", 256))


class HarnessMetrics:
    """A histogram of the latencies of the last 30 s, and the counts since the last sample."""

    BUCKET_COUNT = 400  # the first ends at 0.1 ms, each next one is 6 % wider

    def __init__(self) -> None:
        self.enqueued = 0
        self.completed = 0
        self._histograms: deque[tuple[float, list[int]]] = deque()
        self._add_histogram()

    def _add_histogram(self) -> None:
        self._histograms.append((time.monotonic(), [0] * self.BUCKET_COUNT))

    def record_start(self, waited_s: float) -> None:
        ms, bucket = max(waited_s, 0.0) * 1000, 0
        while bucket < self.BUCKET_COUNT - 1 and ms > self.get_bucket_limit_ms(bucket):
            bucket += 1
        self._histograms[-1][1][bucket] += 1

    @staticmethod
    def get_bucket_limit_ms(bucket: int) -> float:
        return 0.1 * 1.06**bucket

    def compute_percentiles(self) -> dict[str, float]:
        now = time.monotonic()
        while len(self._histograms) > 1 and self._histograms[0][0] < now - LATENCY_WINDOW_S:
            self._histograms.popleft()
        counts = [
            sum(histogram[1][bucket] for histogram in self._histograms) for bucket in range(self.BUCKET_COUNT)
        ]
        self._add_histogram()
        measurements: dict[str, float] = {}
        for name, share in (("claim_p50_ms", 0.5), ("claim_p95_ms", 0.95), ("claim_p99_ms", 0.99)):
            remaining, bucket = share * sum(counts), 0
            while bucket < self.BUCKET_COUNT - 1 and remaining > counts[bucket]:
                remaining -= counts[bucket]
                bucket += 1
            measurements[name] = round(self.get_bucket_limit_ms(bucket), 3) if sum(counts) else 0.0
        return measurements


metrics = HarnessMetrics()


@task(queue="bench")
async def benchmark_task(sent: float, payload: str) -> None:
    del payload
    metrics.record_start(time.time() - sent)
    if TASK_DURATION_S:
        await asyncio.sleep(TASK_DURATION_S)
    metrics.completed += 1


def print_json_line(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def print_descriptor() -> None:
    print_json_line({"kind": "descriptor", "system": ADAPTER_MANIFEST["system"],
         "event_tables": ADAPTER_MANIFEST["event_tables"],
         "extensions": ADAPTER_MANIFEST["extensions"], "version": __version__, "schema_version": __version__,
         "db_name": ADAPTER_MANIFEST["db_name"], "started_at": datetime.now(UTC).isoformat()})  # fmt: skip


class TaskProducer:
    """Submit tasks at the configured rate. Lines `ENQUEUE n` on standard input replace the rate."""

    def __init__(self, client: Client, database: Database) -> None:
        self._client = client
        self._database = database
        self._credit = 0.0
        self._paced_by_stdin = False
        self._max_batch = int(read_number_setting("PRODUCER_BATCH_MAX", 128))
        self._interval_s = read_number_setting("PRODUCER_BATCH_MS", 10) / 1000
        self._rate = read_number_setting("PRODUCER_RATE", 0)
        self._target_depth = (
            int(read_number_setting("TARGET_DEPTH", 0))
            if os.environ.get("PRODUCER_MODE") == "depth-target"
            else None
        )

    async def read_commands(self) -> None:
        reader = asyncio.StreamReader()
        with contextlib.suppress(OSError, ValueError):
            await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
            )
            while line := await reader.readline():
                words = line.split()
                if len(words) == 2 and words[0] == b"ENQUEUE":
                    self._paced_by_stdin = True
                    self._credit += int(words[1])

    def _read_rate_factor(self) -> float:
        path = os.environ.get("PRODUCER_RATE_CONTROL_FILE")
        try:
            return float(Path(path).read_text()) if path else 1.0
        except (OSError, ValueError):
            return 1.0

    async def run(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(self._interval_s)
            now = time.monotonic()
            if self._target_depth is not None:
                self._credit = max(0, self._target_depth - await self._count_waiting())
            elif not self._paced_by_stdin:
                self._credit += self._rate * self._read_rate_factor() * (now - before)
            before = now
            while self._credit >= 1:
                await self._submit_batch(min(int(self._credit), self._max_batch))

    async def _submit_batch(self, count: int) -> None:
        try:
            await self._client.submit_many([benchmark_task(time.time(), TASK_PAYLOAD) for _ in range(count)])
        except HoldfastError as error:
            sys.stderr.write(f"enqueue: {error}\n")
            await asyncio.sleep(0.2)
            return
        metrics.enqueued += count
        self._credit -= count

    async def _count_waiting(self) -> int:
        return await count_ready_tasks(self._database)


async def count_ready_tasks(database: Database) -> int:
    try:
        async with database.connection() as connection:
            return int(
                await connection.fetchval("select count(*) from holdfast.tasks where status = 'ready'")
            )
    except HoldfastError:
        return 0


async def print_samples(database: Database) -> None:
    """Print one line per metric at every sample interval of the wall clock."""
    while True:
        await asyncio.sleep(SAMPLE_INTERVAL_S - time.time() % SAMPLE_INTERVAL_S)
        enqueued, metrics.enqueued = metrics.enqueued, 0
        completed, metrics.completed = metrics.completed, 0
        values = {**metrics.compute_percentiles(), "enqueue_rate": enqueued / SAMPLE_INTERVAL_S,
                  "completion_rate": completed / SAMPLE_INTERVAL_S,
                  "queue_depth": await count_ready_tasks(database)}  # fmt: skip
        at = datetime.now(UTC).isoformat()
        for metric, value in values.items():
            print_json_line({"t": at, "system": ADAPTER_MANIFEST["system"], "kind": "adapter",
                 "subject_kind": "adapter", "subject": "",
                 "metric": metric, "value": value, "window_s": SAMPLE_INTERVAL_S})  # fmt: skip


async def install_schema(url: Secret, loaded_settings: settings.Settings) -> None:
    """Install the schema if it is missing. Retry until the server is reachable."""
    while True:
        try:
            await install.migrate_database(url, loaded_settings)
        except HoldfastError as error:
            sys.stderr.write(f"install: {error}\n")
            await asyncio.sleep(1)
        else:
            return


async def main() -> None:
    url = Secret(os.environ["DATABASE_URL"])
    loaded_settings = settings.load_settings()
    await install_schema(url, loaded_settings)
    print_descriptor()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with (
        Client(url.reveal(), settings=loaded_settings) as client,
        Database(url, loaded_settings) as database,
    ):
        worker = WorkerRuntime(
            database,
            {benchmark_task.name: benchmark_task},
            concurrency=int(read_number_setting("WORKER_COUNT", 64)),
        )
        worker.end_grace()  # release running tasks at once when the worker is stopped
        producer = TaskProducer(client, database)
        parts = [
            asyncio.create_task(part)
            for part in (producer.run(), producer.read_commands(), print_samples(database))
        ]
        try:
            await worker.run(stop)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
