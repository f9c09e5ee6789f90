"""The command-line protocol of the adapters. Runs in the environment of each peer, so it needs only Python.

adapter install            create the schema
adapter one N              enqueue N no-op jobs one by one; prints {"seconds": s}
adapter bulk N             enqueue N no-op jobs in batches of 1,000; prints {"seconds": s}
adapter paced N            enqueue one job every 25 ms, N in all; each job carries the time of its enqueue
adapter work               run a worker until SIGTERM; prints {"handled": n, "waits_ms": [...]}

A worker prints {"reached": n, "at": time} when it starts its first job. With PEER_AT_ONCE=n it runs up to n
jobs at once, and prints the line again when it starts job n. With PEER_HOLD=1 its handlers never return. With
PEER_WORK=1 (only some adapters) jobs carry a text of 1 KB, which their handlers return after 5 ms.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from abc import ABC, abstractmethod

PEER_DSN = os.environ.get("PEER_DSN", "")
MAX_JOBS_AT_ONCE = int(os.environ.get("PEER_AT_ONCE", "0"))
HOLD_JOBS = "PEER_HOLD" in os.environ
DO_WORK = "PEER_WORK" in os.environ
WORK_SECONDS, WORK_TEXT = 0.005, "x" * 1000
ENQUEUE_BATCH_SIZE = 1000
PACED_INTERVAL_S = 0.025
REPORTED_JOB_COUNTS = {1, MAX_JOBS_AT_ONCE}


class HandlerStats:
    """The number of handled jobs, and the waiting times of jobs that carry the time of their enqueue."""

    def __init__(self) -> None:
        self.count = 0
        self.waits_ms: list[float] = []

    def record_job(self, sent: float | None) -> None:
        self.count += 1
        if self.count in REPORTED_JOB_COUNTS:
            print(json.dumps({"reached": self.count, "at": time.time()}), flush=True)
        if sent:
            self.waits_ms.append((time.time() - sent) * 1000)


stats = HandlerStats()


async def wait_forever() -> None:
    """Never return, so that the job runs until its worker ends."""
    await asyncio.Event().wait()


class PeerAdapter(ABC):
    """The operations that an adapter implements for its queue."""

    async def connect(self) -> None:  # noqa: B027  (optional)
        """Connect before jobs are enqueued."""

    async def disconnect(self) -> None:  # noqa: B027
        """Disconnect after jobs were enqueued."""

    @abstractmethod
    async def install_schema(self) -> None: ...

    @abstractmethod
    async def enqueue_one(self, sent: float) -> None:
        """Enqueue one job. `sent` is the current time, or 0 when waiting times are not measured."""

    @abstractmethod
    async def enqueue_many(self, count: int) -> None: ...

    @abstractmethod
    async def run_worker(self, stop: asyncio.Event) -> None:
        """Run a worker until `stop` is set."""


async def _enqueue_jobs(peer: PeerAdapter, command: str, count: int) -> None:
    await peer.connect()
    started_at = time.perf_counter()
    if command == "bulk":
        for start in range(0, count, ENQUEUE_BATCH_SIZE):
            await peer.enqueue_many(min(ENQUEUE_BATCH_SIZE, count - start))
    else:
        for _ in range(count):
            await peer.enqueue_one(time.time() if command == "paced" else 0)
            if command == "paced":
                await asyncio.sleep(PACED_INTERVAL_S)
    print(json.dumps({"seconds": time.perf_counter() - started_at}), flush=True)
    await peer.disconnect()


async def _run_worker_until_signal(peer: PeerAdapter) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    worker_task = asyncio.create_task(peer.run_worker(stop))
    stop_task = asyncio.create_task(stop.wait())
    await asyncio.wait([worker_task, stop_task], return_when=asyncio.FIRST_COMPLETED)
    if worker_task.done():
        worker_task.result()
    print(json.dumps({"handled": stats.count, "waits_ms": stats.waits_ms}), flush=True)
    os._exit(0)  # the time that a peer takes to exit is not measured


def main(peer: PeerAdapter) -> None:
    try:
        import uvloop  # noqa: PLC0415

        uvloop.install()
    except ImportError:
        pass
    command = sys.argv[1]
    if command == "install":
        asyncio.run(peer.install_schema())
    elif command == "work":
        asyncio.run(_run_worker_until_signal(peer))
    else:
        asyncio.run(_enqueue_jobs(peer, command, int(sys.argv[2])))
