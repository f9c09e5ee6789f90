"""Adapter for DBOS: one workflow per job on its own queue, 100 at once; one client call per enqueued job."""

from __future__ import annotations

import asyncio
import os

from dbos import DBOS, DBOSClient
from protocol import PEER_DSN, PeerAdapter, main, stats

POLL_INTERVAL_S = float(
    os.environ.get("PEER_POLL", "0.01")
)  # with its default of 1 s, a drain would measure only the interval
ENQUEUE_OPTIONS = {"queue_name": "bench", "workflow_name": "noop", "app_version": "bench"}


@DBOS.workflow(name="noop")
def noop(sent: float) -> None:
    stats.record_job(sent)


def launch_dbos() -> None:
    DBOS(config={
        "name": "bench", "system_database_url": PEER_DSN, "application_version": "bench",
        "run_admin_server": False, "log_level": "ERROR",
    })  # fmt: skip
    DBOS.launch()


class DbosAdapter(PeerAdapter):
    async def install_schema(self) -> None:
        await asyncio.to_thread(launch_dbos)
        await asyncio.to_thread(DBOS.destroy)

    async def connect(self) -> None:
        self.client = await asyncio.to_thread(lambda: DBOSClient(system_database_url=PEER_DSN))

    async def enqueue_one(self, sent: float) -> None:
        await asyncio.to_thread(self.client.enqueue, ENQUEUE_OPTIONS, sent)

    async def enqueue_many(self, count: int) -> None:
        """Enqueue the jobs one by one: DBOS has no bulk call."""

        def enqueue_all() -> None:
            for _ in range(count):
                self.client.enqueue(ENQUEUE_OPTIONS, 0.0)

        await asyncio.to_thread(enqueue_all)

    async def run_worker(self, stop: asyncio.Event) -> None:
        def start_worker() -> None:
            launch_dbos()
            DBOS.register_queue("bench", worker_concurrency=100, polling_interval_sec=POLL_INTERVAL_S)

        await asyncio.to_thread(start_worker)
        await stop.wait()


if __name__ == "__main__":
    main(DbosAdapter())
