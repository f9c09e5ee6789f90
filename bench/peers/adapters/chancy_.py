"""Chancy: async executor, concurrency 500, eager polling, notifications on."""

from __future__ import annotations

import asyncio

from chancy import Chancy, Queue, Worker, job
from protocol import AT_ONCE, DSN, HOLD, Peer, handled, hold, main


@job(queue="bench")
async def noop(*, sent: float = 0.0) -> None:
    handled.note(sent)
    if HOLD:
        await hold()


def queue() -> Queue:
    return Queue(
        "bench",
        executor=Chancy.Executor.Async,
        concurrency=AT_ONCE or 500,
        eager_polling=True,
        polling_interval=1,
    )


class ChancyPeer(Peer):
    async def install(self) -> None:
        async with Chancy(DSN) as chancy:
            await chancy.migrate()
            await chancy.declare(queue())

    async def open(self) -> None:
        self.chancy = Chancy(DSN)
        await self.chancy.__aenter__()

    async def close(self) -> None:
        await self.chancy.__aexit__(None, None, None)

    async def one(self, sent: float) -> None:
        await self.chancy.push(noop.job.with_kwargs(sent=sent))

    async def many(self, count: int) -> None:
        async for _ in self.chancy.push_many([noop.job.with_kwargs(sent=0) for _ in range(count)]):
            pass

    async def work(self, stop: asyncio.Event) -> None:
        async with Chancy(DSN) as chancy:
            if AT_ONCE:
                await chancy.declare(queue(), upsert=True)
            async with Worker(chancy, register_signal_handlers=False) as worker:
                await worker.wait_for_shutdown()


if __name__ == "__main__":
    main(ChancyPeer())
