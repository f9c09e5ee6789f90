"""Absurd: asynchronous worker, 50 at once in batches of 50, its default interval; spawned one each."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from absurd_sdk import AsyncAbsurd
from protocol import AT_ONCE, DSN, HOLD, Peer, handled, hold, main


class AbsurdPeer(Peer):
    async def install(self) -> None:
        program = Path(sys.executable).with_name("absurdctl")
        for words in (["init"], ["create-queue", "bench"]):
            subprocess.run([program, *words, "-d", DSN], check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221

    async def open(self) -> None:
        self.client = AsyncAbsurd(DSN, queue_name="bench")

    async def close(self) -> None:
        await self.client.close()

    async def one(self, sent: float) -> None:
        await self.client.spawn("noop", {"sent": sent}, queue="bench")

    async def many(self, count: int) -> None:
        for _ in range(count):
            await self.one(0)

    async def work(self, stop: asyncio.Event) -> None:
        client = AsyncAbsurd(DSN, queue_name="bench")

        @client.register_task("noop", queue="bench")
        async def noop(params: dict[str, float], _: object) -> None:
            handled.note(params["sent"])
            if HOLD:
                await hold()

        await client.start_worker(concurrency=AT_ONCE or 50)


if __name__ == "__main__":
    main(AbsurdPeer())
