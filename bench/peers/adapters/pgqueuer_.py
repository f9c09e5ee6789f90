"""Adapter for PgQueuer: one asyncpg connection, batches of 100."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
from pgqueuer import AsyncpgDriver, PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from protocol import HOLD_JOBS, MAX_JOBS_AT_ONCE, PEER_DSN, PeerAdapter, main, stats, wait_forever


class PgQueuerAdapter(PeerAdapter):
    async def install_schema(self) -> None:
        connection = await asyncpg.connect(PEER_DSN)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def connect(self) -> None:
        self.connection = await asyncpg.connect(PEER_DSN)
        self.queries = Queries(AsyncpgDriver(self.connection))

    async def disconnect(self) -> None:
        await self.connection.close()

    async def enqueue_one(self, sent: float) -> None:
        await self.queries.enqueue("noop", str(sent).encode())

    async def enqueue_many(self, count: int) -> None:
        await self.queries.enqueue(["noop"] * count, [b"0"] * count, [0] * count)

    async def run_worker(self, stop: asyncio.Event) -> None:
        connection = await asyncpg.connect(PEER_DSN)
        pgq = PgQueuer(AsyncpgDriver(connection))

        @pgq.entrypoint("noop")
        async def noop(job: Job) -> None:
            stats.record_job(float(job.payload or 0))
            if HOLD_JOBS:
                await wait_forever()

        await pgq.run(
            dequeue_timeout=timedelta(seconds=30),
            batch_size=min(100, MAX_JOBS_AT_ONCE // 2) or 100,  # at most half of what may run
            max_concurrent_tasks=MAX_JOBS_AT_ONCE or None,
        )


if __name__ == "__main__":
    main(PgQueuerAdapter())
