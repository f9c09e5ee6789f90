"""DBOS: one workflow a job on a queue of its own, 100 at once; enqueued by its client, one call each."""

from __future__ import annotations

import asyncio
import os

from dbos import DBOS, DBOSClient
from protocol import DSN, Peer, handled, main

POLL = float(os.environ.get("PEER_POLL", "0.01"))  # its default of a second would be all that a drain shows
OPTIONS = {"queue_name": "bench", "workflow_name": "noop", "app_version": "bench"}


@DBOS.workflow(name="noop")
def noop(sent: float) -> None:
    handled.note(sent)


def launched() -> None:
    DBOS(config={
        "name": "bench", "system_database_url": DSN, "application_version": "bench",
        "run_admin_server": False, "log_level": "ERROR",
    })  # fmt: skip
    DBOS.launch()


class Dbos(Peer):
    async def install(self) -> None:
        await asyncio.to_thread(launched)
        await asyncio.to_thread(DBOS.destroy)

    async def open(self) -> None:
        self.client = await asyncio.to_thread(lambda: DBOSClient(system_database_url=DSN))

    async def one(self, sent: float) -> None:
        await asyncio.to_thread(self.client.enqueue, OPTIONS, sent)

    async def many(self, count: int) -> None:
        """It has no call for many."""

        def all_of_them() -> None:
            for _ in range(count):
                self.client.enqueue(OPTIONS, 0.0)

        await asyncio.to_thread(all_of_them)

    async def work(self, stop: asyncio.Event) -> None:
        def begin() -> None:
            launched()
            DBOS.register_queue("bench", worker_concurrency=100, polling_interval_sec=POLL)

        await asyncio.to_thread(begin)
        await stop.wait()


if __name__ == "__main__":
    main(Dbos())
