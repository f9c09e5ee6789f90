"""Adapter for procrastinate: 30 jobs at once, pool of 10, finished jobs deleted, LISTEN on."""

from __future__ import annotations

import asyncio

from procrastinate import App, PsycopgConnector
from protocol import HOLD_JOBS, MAX_JOBS_AT_ONCE, PEER_DSN, PeerAdapter, main, stats, wait_forever

app = App(connector=PsycopgConnector(conninfo=PEER_DSN, min_size=1, max_size=10))


@app.task(name="noop", queue="bench")
async def noop(sent: float = 0.0) -> None:
    stats.record_job(sent)
    if HOLD_JOBS:
        await wait_forever()


class ProcrastinateAdapter(PeerAdapter):
    async def install_schema(self) -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def connect(self) -> None:
        await app.open_async().__aenter__()

    async def enqueue_one(self, sent: float) -> None:
        await noop.defer_async(sent=sent)

    async def enqueue_many(self, count: int) -> None:
        await noop.batch_defer_async(*[{"sent": 0} for _ in range(count)])

    async def run_worker(self, stop: asyncio.Event) -> None:
        async with app.open_async():
            await app.run_worker_async(
                concurrency=MAX_JOBS_AT_ONCE or 30,
                delete_jobs="always",
                install_signal_handlers=False,
                wait=True,
            )


if __name__ == "__main__":
    main(ProcrastinateAdapter())
