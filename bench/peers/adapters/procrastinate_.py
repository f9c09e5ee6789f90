"""procrastinate: concurrency 30, pool of 10, finished jobs deleted, LISTEN on; bulk by batch_defer."""

from __future__ import annotations

import asyncio

from procrastinate import App, PsycopgConnector
from protocol import AT_ONCE, DSN, HOLD, Peer, handled, hold, main

app = App(connector=PsycopgConnector(conninfo=DSN, min_size=1, max_size=10))


@app.task(name="noop", queue="bench")
async def noop(sent: float = 0.0) -> None:
    handled.note(sent)
    if HOLD:
        await hold()


class Procrastinate(Peer):
    async def install(self) -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await app.open_async().__aenter__()

    async def one(self, sent: float) -> None:
        await noop.defer_async(sent=sent)

    async def many(self, count: int) -> None:
        await noop.batch_defer_async(*[{"sent": 0} for _ in range(count)])

    async def work(self, stop: asyncio.Event) -> None:
        async with app.open_async():
            await app.run_worker_async(
                concurrency=AT_ONCE or 30, delete_jobs="always", install_signal_handlers=False, wait=True
            )


if __name__ == "__main__":
    main(Procrastinate())
