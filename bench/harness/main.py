"""Entry of Holdfast for a public benchmark harness: installs, produces, consumes and prints metrics.

It uses public names only, and uvloop if it is installed, as `holdfast worker` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import stat
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast import Client, Worker, __version__, task
from holdfast.errors import HoldfastError

HARNESS_DIR = Path(__file__).parent
ADAPTER_MANIFEST: dict[str, Any] = json.loads((HARNESS_DIR / "adapter.json").read_text(encoding="utf-8"))
LATENCY_WINDOW_S = 30.0
DEPTH_COUNT_INTERVAL_S = 0.25
COUNT_WAITING = "select count(*) from holdfast.tasks where status = 'ready'"


def read_number_setting(name: str, default: float) -> float:
    return float(os.environ.get(name) or default)


TASK_DURATION_S = read_number_setting("JOB_WORK_MS", 1) / 1000
SAMPLE_INTERVAL_S = read_number_setting("SAMPLE_EVERY_S", 5)
TASK_PAYLOAD = "x" * int(read_number_setting("JOB_PAYLOAD_BYTES", 256))


class HarnessMetrics:
    """A histogram of the latencies of the last 30 s, and the counts of jobs since the start."""

    BUCKET_COUNT = 400  # the first ends at 0.1 ms, each next one is 6 % wider
    _LOG_OF_WIDTH = math.log(1.06)

    def __init__(self) -> None:
        self.enqueued = 0
        self.started = 0
        self.completed = 0
        self._histograms: deque[tuple[float, list[int]]] = deque()
        self._add_histogram()

    def _add_histogram(self) -> None:
        self._histograms.append((time.monotonic(), [0] * self.BUCKET_COUNT))

    def record_start(self, waited_s: float) -> None:
        self.started += 1
        ms = waited_s * 1000
        bucket = 0 if ms <= 0.1 else math.ceil(math.log(ms / 0.1) / self._LOG_OF_WIDTH)
        self._histograms[-1][1][min(bucket, self.BUCKET_COUNT - 1)] += 1

    @staticmethod
    def get_bucket_limit_ms(bucket: int) -> float:
        return 0.1 * 1.06**bucket

    def compute_percentiles(self) -> dict[str, float]:
        now = time.monotonic()
        while len(self._histograms) > 1 and self._histograms[0][0] < now - LATENCY_WINDOW_S:
            self._histograms.popleft()
        histograms = [counts for _, counts in self._histograms]
        counts = [sum(bucket) for bucket in zip(*histograms, strict=True)]
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


class QueueDepth:
    """The number of waiting jobs, counted in the database four times a second.

    In between, what this process has enqueued and started since then is added and subtracted: to count
    thousands of rows for every batch would take longer than the batch.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._counted = 0

    @property
    def estimate(self) -> int:
        return self._counted + metrics.enqueued - metrics.started

    async def count_repeatedly(self) -> None:
        while True:
            with contextlib.suppress(HoldfastError):
                moved = metrics.enqueued - metrics.started
                async with self._client.transaction() as connection:
                    self._counted = int(await connection.fetchval(COUNT_WAITING)) - moved
            await asyncio.sleep(DEPTH_COUNT_INTERVAL_S)


class TaskProducer:
    """Submit tasks at the configured rate. Lines `ENQUEUE n` on standard input replace the rate."""

    def __init__(self, client: Client, depth: QueueDepth) -> None:
        self._client = client
        self._depth = depth
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
        mode = os.fstat(sys.stdin.fileno()).st_mode
        if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):  # uvloop aborts the process for other files
            return
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
                missing = self._target_depth - self._depth.estimate
                self._credit = missing if missing >= self._max_batch else 0  # whole batches cost less
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


def print_json_line(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def print_descriptor() -> None:
    print_json_line({"kind": "descriptor", "system": ADAPTER_MANIFEST["system"],
         "event_tables": ADAPTER_MANIFEST["event_tables"],
         "extensions": ADAPTER_MANIFEST["extensions"], "version": __version__, "schema_version": __version__,
         "db_name": ADAPTER_MANIFEST["db_name"], "started_at": datetime.now(UTC).isoformat()})  # fmt: skip


async def print_samples(depth: QueueDepth) -> None:
    """Print one line per metric at every sample interval of the wall clock.

    A timer may end a moment too early, so the next time is counted from the last one, and rates are of the
    time that has really passed. Otherwise a second sample of the same moment would look like a stall.
    """
    next_at = time.time() // SAMPLE_INTERVAL_S * SAMPLE_INTERVAL_S
    before = (time.monotonic(), metrics.enqueued, metrics.completed)
    while True:
        next_at = max(next_at + SAMPLE_INTERVAL_S, time.time() // SAMPLE_INTERVAL_S * SAMPLE_INTERVAL_S)
        await asyncio.sleep(max(next_at - time.time(), 0))
        now = (time.monotonic(), metrics.enqueued, metrics.completed)
        seconds, enqueued, completed = (new - old for new, old in zip(now, before, strict=True))
        before = now
        values = {**metrics.compute_percentiles(),
                  "enqueue_rate": enqueued / seconds, "completion_rate": completed / seconds,
                  "queue_depth": max(depth.estimate, 0)}  # fmt: skip
        at = datetime.now(UTC).isoformat()
        for metric, value in values.items():
            print_json_line({"t": at, "system": ADAPTER_MANIFEST["system"], "kind": "adapter",
                 "subject_kind": "adapter", "subject": "",
                 "metric": metric, "value": value, "window_s": SAMPLE_INTERVAL_S})  # fmt: skip


def install_schema() -> None:
    """Install the schema if it is missing. Repeat until the server can be reached."""
    command = [sys.executable, "-m", "holdfast", "migrate"]
    while subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        time.sleep(1)


async def main() -> None:
    print_descriptor()
    async with (
        Client(os.environ["DATABASE_URL"]) as client,
        Worker(
            client,
            tasks=[benchmark_task],
            queues=["bench"],
            concurrency=int(read_number_setting("WORKER_COUNT", 64)),
        ) as worker,
    ):
        for name in (signal.SIGTERM, signal.SIGINT):  # running tasks are released at once
            asyncio.get_running_loop().add_signal_handler(name, lambda: worker.stop(graceful=False))
        depth = QueueDepth(client)
        producer = TaskProducer(client, depth)
        parts = (producer.run(), producer.read_commands(), depth.count_repeatedly(), print_samples(depth))
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await worker.run()
        finally:
            for part in tasks:
                part.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def run_on_fast_loop(function: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        asyncio.run(function())
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(function())


if __name__ == "__main__":
    install_schema()
    run_on_fast_loop(main)
