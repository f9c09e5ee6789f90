"""Adapter for Awa: Rust core, Python handlers, queue storage, 256 jobs at once; bulk enqueue with COPY."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import awa
from protocol import HOLD_JOBS, MAX_JOBS_AT_ONCE, PEER_DSN, PeerAdapter, main, stats, wait_forever


@dataclass
class NoopArgs:
    sent: float


class AwaAdapter(PeerAdapter):
    async def install_schema(self) -> None:
        async with awa.AsyncClient(PEER_DSN) as client:
            await client.migrate()

    async def connect(self) -> None:
        self.client = awa.AsyncClient(PEER_DSN)

    async def disconnect(self) -> None:
        await self.client.close()

    async def enqueue_one(self, sent: float) -> None:
        await self.client.insert(NoopArgs(sent), queue="bench")

    async def enqueue_many(self, count: int) -> None:
        await self.client.insert_many_copy([NoopArgs(0.0)] * count, queue="bench")

    async def run_worker(self, stop: asyncio.Event) -> None:
        client = awa.AsyncClient(PEER_DSN)

        @client.task(NoopArgs, queue="bench")
        async def noop(job: awa.Job[NoopArgs]) -> None:
            stats.record_job(job.args.sent)
            if HOLD_JOBS:
                await wait_forever()

        await client.start([("bench", MAX_JOBS_AT_ONCE or 256)])
        await stop.wait()


if __name__ == "__main__":
    main(AwaAdapter())
