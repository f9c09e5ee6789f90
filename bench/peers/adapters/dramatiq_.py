"""dramatiq with Redis, which keeps nothing on disk here: 8 threads a process; sent one each."""

from __future__ import annotations

import asyncio
import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from protocol import Peer, handled, main

broker = RedisBroker(url=os.environ.get("PEER_REDIS", "redis://127.0.0.1:1"))
broker.middleware = [each for each in broker.middleware if type(each).__name__ != "Prometheus"]
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="bench")
def noop(sent: float) -> None:
    handled.note(sent)


class Dramatiq(Peer):
    async def install(self) -> None:
        """There is nothing to install."""

    async def one(self, sent: float) -> None:
        noop.send(sent)

    async def many(self, count: int) -> None:
        for _ in range(count):
            noop.send(0.0)

    async def work(self, stop: asyncio.Event) -> None:
        worker = dramatiq.Worker(broker, worker_threads=8)
        worker.start()
        await stop.wait()


if __name__ == "__main__":
    main(Dramatiq())
