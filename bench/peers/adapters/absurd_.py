"""Adapter for Absurd: async worker, 50 jobs at once, default poll interval; one call per enqueued job."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from absurd_sdk import AsyncAbsurd
from protocol import HOLD_JOBS, MAX_JOBS_AT_ONCE, PEER_DSN, PeerAdapter, main, stats, wait_forever


class AbsurdAdapter(PeerAdapter):
    async def install_schema(self) -> None:
        program = Path(sys.executable).with_name("absurdctl")
        for words in (["init"], ["create-queue", "bench"]):
            subprocess.run([program, *words, "-d", PEER_DSN], check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221

    async def connect(self) -> None:
        self.client = AsyncAbsurd(PEER_DSN, queue_name="bench")

    async def disconnect(self) -> None:
        await self.client.close()

    async def enqueue_one(self, sent: float) -> None:
        await self.client.spawn("noop", {"sent": sent}, queue="bench")

    async def enqueue_many(self, count: int) -> None:
        for _ in range(count):
            await self.enqueue_one(0)

    async def run_worker(self, stop: asyncio.Event) -> None:
        client = AsyncAbsurd(PEER_DSN, queue_name="bench")

        @client.register_task("noop", queue="bench")
        async def noop(params: dict[str, float], _: object) -> None:
            stats.record_job(params["sent"])
            if HOLD_JOBS:
                await wait_forever()

        await client.start_worker(concurrency=MAX_JOBS_AT_ONCE or 50)


if __name__ == "__main__":
    main(AbsurdAdapter())
