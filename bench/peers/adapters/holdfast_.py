"""Holdfast through its public names, defaults but for the concurrency."""

from __future__ import annotations

import asyncio

from protocol import AT_ONCE, DSN, HOLD, Peer, handled, hold, main

from holdfast import Client, settings, task
from holdfast.engine import install
from holdfast.engine.connection import Database
from holdfast.settings import Secret
from holdfast.worker.runtime import WorkerRuntime


@task(queue="bench")
async def noop(sent: float = 0.0) -> None:
    handled.note(sent)
    if HOLD:
        await hold()


class Holdfast(Peer):
    async def install(self) -> None:
        await install.migrate_database(Secret(DSN), settings.load_settings())

    async def open(self) -> None:
        self.client = Client(DSN)
        async with self.client.connection():  # as the others do
            pass

    async def close(self) -> None:
        await self.client.close()

    async def one(self, sent: float) -> None:
        await self.client.submit(noop(sent) if sent else noop())

    async def many(self, count: int) -> None:
        await self.client.submit_many([noop() for _ in range(count)])

    async def work(self, stop: asyncio.Event) -> None:
        async with Database(Secret(DSN), settings.load_settings()) as database:
            await WorkerRuntime(database, {noop.name: noop}, concurrency=AT_ONCE or 400).run(stop)


if __name__ == "__main__":
    main(Holdfast())
