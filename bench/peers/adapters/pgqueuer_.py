"""PgQueuer: one asyncpg connection, batches of 100."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
from pgqueuer import AsyncpgDriver, PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from protocol import AT_ONCE, DSN, HOLD, Peer, handled, hold, main


class PgQueuerPeer(Peer):
    async def install(self) -> None:
        connection = await asyncpg.connect(DSN)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def open(self) -> None:
        self.connection = await asyncpg.connect(DSN)
        self.queries = Queries(AsyncpgDriver(self.connection))

    async def close(self) -> None:
        await self.connection.close()

    async def one(self, sent: float) -> None:
        await self.queries.enqueue("noop", str(sent).encode())

    async def many(self, count: int) -> None:
        await self.queries.enqueue(["noop"] * count, [b"0"] * count, [0] * count)

    async def work(self, stop: asyncio.Event) -> None:
        connection = await asyncpg.connect(DSN)
        pgq = PgQueuer(AsyncpgDriver(connection))

        @pgq.entrypoint("noop")
        async def noop(job: Job) -> None:
            handled.note(float(job.payload or 0))
            if HOLD:
                await hold()

        await pgq.run(
            dequeue_timeout=timedelta(seconds=30), batch_size=100, max_concurrent_tasks=AT_ONCE or None
        )


if __name__ == "__main__":
    main(PgQueuerPeer())
