"""Adapter for dramatiq with a Redis without persistence: 8 threads per process; one call per enqueued job."""

from __future__ import annotations

import asyncio
import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from protocol import PeerAdapter, main, stats

broker = RedisBroker(url=os.environ.get("PEER_REDIS", "redis://127.0.0.1:1"))
broker.middleware = [item for item in broker.middleware if type(item).__name__ != "Prometheus"]
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="bench")
def noop(sent: float) -> None:
    stats.record_job(sent)


class DramatiqAdapter(PeerAdapter):
    async def install_schema(self) -> None:
        """Do nothing: Redis needs no schema."""

    async def enqueue_one(self, sent: float) -> None:
        noop.send(sent)

    async def enqueue_many(self, count: int) -> None:
        for _ in range(count):
            noop.send(0.0)

    async def run_worker(self, stop: asyncio.Event) -> None:
        worker = dramatiq.Worker(broker, worker_threads=8)
        worker.start()
        await stop.wait()


if __name__ == "__main__":
    main(DramatiqAdapter())
