"""One replica for the public harness: installs, produces at the asked rate, consumes, prints its figures."""

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

HERE = Path(__file__).parent
MANIFEST: dict[str, Any] = json.loads((HERE / "adapter.json").read_text(encoding="utf-8"))
WINDOW_S = 30.0


def number(name: str, default: float) -> float:
    return float(os.environ.get(name) or default)


WORK_S = number("JOB_WORK_MS", 1) / 1000
SAMPLE_S = number("SAMPLE_EVERY_S", 5)
PAYLOAD = "x" * int(number("JOB_PAYLOAD_BYTES", 256))


class Figures:
    """Latencies of the last half minute in a bounded histogram, and counts since the last sample."""

    BUCKETS = 400  # each six per cent wider than the one before, from a tenth of a millisecond on

    def __init__(self) -> None:
        self.enqueued = 0
        self.completed = 0
        self._spans: deque[tuple[float, list[int]]] = deque()
        self._new_span()

    def _new_span(self) -> None:
        self._spans.append((time.monotonic(), [0] * self.BUCKETS))

    def started(self, waited_s: float) -> None:
        ms, bucket = max(waited_s, 0.0) * 1000, 0
        while bucket < self.BUCKETS - 1 and ms > self.edge(bucket):
            bucket += 1
        self._spans[-1][1][bucket] += 1

    @staticmethod
    def edge(bucket: int) -> float:
        return 0.1 * 1.06**bucket

    def percentiles(self) -> dict[str, float]:
        now = time.monotonic()
        while len(self._spans) > 1 and self._spans[0][0] < now - WINDOW_S:
            self._spans.popleft()
        counts = [sum(span[1][bucket] for span in self._spans) for bucket in range(self.BUCKETS)]
        self._new_span()
        measurements: dict[str, float] = {}
        for name, share in (("claim_p50_ms", 0.5), ("claim_p95_ms", 0.95), ("claim_p99_ms", 0.99)):
            left, bucket = share * sum(counts), 0
            while bucket < self.BUCKETS - 1 and left > counts[bucket]:
                left -= counts[bucket]
                bucket += 1
            measurements[name] = round(self.edge(bucket), 3) if sum(counts) else 0.0
        return measurements


metrics = Figures()


@task(queue="bench")
async def work(sent: float, payload: str) -> None:
    del payload
    metrics.started(time.time() - sent)
    if WORK_S:
        await asyncio.sleep(WORK_S)
    metrics.completed += 1


def emit_line(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def describe() -> None:
    emit_line({"kind": "descriptor", "system": MANIFEST["system"], "event_tables": MANIFEST["event_tables"],
         "extensions": MANIFEST["extensions"], "version": __version__, "schema_version": __version__,
         "db_name": MANIFEST["db_name"], "started_at": datetime.now(UTC).isoformat()})  # fmt: skip


class Producer:
    """Credits work by the time that has passed; lines `ENQUEUE n` on standard input take over the pacing."""

    def __init__(self, client: Client, database: Database) -> None:
        self._client = client
        self._database = database
        self._credit = 0.0
        self._told = False
        self._batch = int(number("PRODUCER_BATCH_MAX", 128))
        self._pause = number("PRODUCER_BATCH_MS", 10) / 1000
        self._rate = number("PRODUCER_RATE", 0)
        self._depth = (
            int(number("TARGET_DEPTH", 0)) if os.environ.get("PRODUCER_MODE") == "depth-target" else None
        )

    async def listen(self) -> None:
        reader = asyncio.StreamReader()
        with contextlib.suppress(OSError, ValueError):
            await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
            )
            while line := await reader.readline():
                words = line.split()
                if len(words) == 2 and words[0] == b"ENQUEUE":
                    self._told = True
                    self._credit += int(words[1])

    def _factor(self) -> float:
        place = os.environ.get("PRODUCER_RATE_CONTROL_FILE")
        try:
            return float(Path(place).read_text()) if place else 1.0
        except (OSError, ValueError):
            return 1.0

    async def run(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(self._pause)
            now = time.monotonic()
            if self._depth is not None:
                self._credit = max(0, self._depth - await self._waiting())
            elif not self._told:
                self._credit += self._rate * self._factor() * (now - before)
            before = now
            while self._credit >= 1:
                await self._send(min(int(self._credit), self._batch))

    async def _send(self, count: int) -> None:
        try:
            await self._client.submit_many([work(time.time(), PAYLOAD) for _ in range(count)])
        except HoldfastError as error:
            sys.stderr.write(f"enqueue: {error}\n")
            await asyncio.sleep(0.2)
            return
        metrics.enqueued += count
        self._credit -= count

    async def _waiting(self) -> int:
        return await depth(self._database)


async def depth(database: Database) -> int:
    try:
        async with database.connection() as connection:
            return int(
                await connection.fetchval("select count(*) from holdfast.tasks where status = 'ready'")
            )
    except HoldfastError:
        return 0


async def sample(database: Database) -> None:
    """On every tick of the wall clock, one line a metric."""
    while True:
        await asyncio.sleep(SAMPLE_S - time.time() % SAMPLE_S)
        enqueued, metrics.enqueued = metrics.enqueued, 0
        completed, metrics.completed = metrics.completed, 0
        values = {**metrics.percentiles(), "enqueue_rate": enqueued / SAMPLE_S,
                  "completion_rate": completed / SAMPLE_S, "queue_depth": await depth(database)}  # fmt: skip
        at = datetime.now(UTC).isoformat()
        for metric, value in values.items():
            emit_line({"t": at, "system": MANIFEST["system"], "kind": "adapter", "subject_kind": "adapter",
                 "subject": "", "metric": metric, "value": value, "window_s": SAMPLE_S})  # fmt: skip


async def installed(url: Secret, chosen: settings.Settings) -> None:
    """A no-op when it is there already; patient when the server is not."""
    while True:
        try:
            await install.migrate_database(url, chosen)
        except HoldfastError as error:
            sys.stderr.write(f"install: {error}\n")
            await asyncio.sleep(1)
        else:
            return


async def main() -> None:
    url = Secret(os.environ["DATABASE_URL"])
    chosen = settings.load_settings()
    await installed(url, chosen)
    describe()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with Client(url.reveal(), settings=chosen) as client, Database(url, chosen) as database:
        worker = WorkerRuntime(database, {work.name: work}, concurrency=int(number("WORKER_COUNT", 64)))
        worker.hurry()  # told to stop, it releases at once
        producer = Producer(client, database)
        parts = [asyncio.create_task(part) for part in (producer.run(), producer.listen(), sample(database))]
        try:
            await worker.run(stop)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
