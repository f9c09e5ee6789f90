"""Adapter for Chancy: async executor, concurrency 500, eager polling, notifications on."""

from __future__ import annotations

import asyncio

from chancy import Chancy, Queue, Worker, job
from protocol import HOLD_JOBS, MAX_JOBS_AT_ONCE, PEER_DSN, PeerAdapter, main, stats, wait_forever


@job(queue="bench")
async def noop(*, sent: float = 0.0) -> None:
    stats.record_job(sent)
    if HOLD_JOBS:
        await wait_forever()


def build_queue() -> Queue:
    return Queue(
        "bench",
        executor=Chancy.Executor.Async,
        concurrency=MAX_JOBS_AT_ONCE or 500,
        eager_polling=True,
        polling_interval=1,
    )


class ChancyAdapter(PeerAdapter):
    async def install_schema(self) -> None:
        async with Chancy(PEER_DSN) as chancy:
            await chancy.migrate()
            await chancy.declare(build_queue())

    async def connect(self) -> None:
        self.chancy = Chancy(PEER_DSN)
        await self.chancy.__aenter__()

    async def disconnect(self) -> None:
        await self.chancy.__aexit__(None, None, None)

    async def enqueue_one(self, sent: float) -> None:
        await self.chancy.push(noop.job.with_kwargs(sent=sent))

    async def enqueue_many(self, count: int) -> None:
        async for _ in self.chancy.push_many([noop.job.with_kwargs(sent=0) for _ in range(count)]):
            pass

    async def run_worker(self, stop: asyncio.Event) -> None:
        async with Chancy(PEER_DSN) as chancy:
            if MAX_JOBS_AT_ONCE:
                await chancy.declare(build_queue(), upsert=True)
            async with Worker(chancy, register_signal_handlers=False) as worker:
                await worker.wait_for_shutdown()


if __name__ == "__main__":
    main(ChancyAdapter())
