"""Adapter for Holdfast: default settings except for the concurrency."""

from __future__ import annotations

import asyncio

from protocol import (
    DO_WORK,
    HOLD_JOBS,
    MAX_JOBS_AT_ONCE,
    PEER_DSN,
    WORK_SECONDS,
    WORK_TEXT,
    PeerAdapter,
    main,
    stats,
    wait_forever,
)

from holdfast import Client, settings, task
from holdfast.engine import install
from holdfast.engine.connection import Database
from holdfast.settings import Secret
from holdfast.worker.runtime import WorkerRuntime


@task(queue="bench")
async def noop(sent: float = 0.0) -> None:
    stats.record_job(sent)
    if HOLD_JOBS:
        await wait_forever()


@task(queue="bench")
async def work(text: str) -> str:
    stats.record_job(None)
    await asyncio.sleep(WORK_SECONDS)
    return text


class HoldfastAdapter(PeerAdapter):
    async def install_schema(self) -> None:
        await install.migrate_database(Secret(PEER_DSN), settings.load_settings())

    async def connect(self) -> None:
        self.client = Client(PEER_DSN)
        async with self.client.connection():  # connect before the measurement, as the other adapters do
            pass

    async def disconnect(self) -> None:
        await self.client.close()

    async def enqueue_one(self, sent: float) -> None:
        await self.client.submit(noop(sent) if sent else noop())

    async def enqueue_many(self, count: int) -> None:
        await self.client.submit_many([work(WORK_TEXT) if DO_WORK else noop() for _ in range(count)])

    async def run_worker(self, stop: asyncio.Event) -> None:
        async with Database(Secret(PEER_DSN), settings.load_settings()) as database:
            tasks = {each.name: each for each in (noop, work)}
            await WorkerRuntime(database, tasks, concurrency=MAX_JOBS_AT_ONCE or 400).run(stop)


if __name__ == "__main__":
    main(HoldfastAdapter())
