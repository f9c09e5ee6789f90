"""Awa: Rust core, Python handlers, queue storage, 256 workers; bulk by COPY."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import awa
from protocol import AT_ONCE, DSN, HOLD, Peer, handled, hold, main


@dataclass
class Noop:
    sent: float


class Awa(Peer):
    async def install(self) -> None:
        async with awa.AsyncClient(DSN) as client:
            await client.migrate()

    async def open(self) -> None:
        self.client = awa.AsyncClient(DSN)

    async def close(self) -> None:
        await self.client.close()

    async def one(self, sent: float) -> None:
        await self.client.insert(Noop(sent), queue="bench")

    async def many(self, count: int) -> None:
        await self.client.insert_many_copy([Noop(0.0)] * count, queue="bench")

    async def work(self, stop: asyncio.Event) -> None:
        client = awa.AsyncClient(DSN)

        @client.task(Noop, queue="bench")
        async def noop(job: awa.Job[Noop]) -> None:
            handled.note(job.args.sent)
            if HOLD:
                await hold()

        await client.start([("bench", AT_ONCE or 256)])
        await stop.wait()


if __name__ == "__main__":
    main(Awa())
