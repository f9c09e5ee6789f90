"""A running clip system for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from system_harness import SystemHarness, SystemUser

from holdfast import Client
from holdfast.engine.connection import Database
from holdfast.systems.clips import create_clip_consumers
from holdfast.systems.clips.worker_state import ClipsWorkerState
from holdfast.testing import wait_until
from holdfast.worker.runtime import WorkerRuntime

CLIPS_PATH = "/api/v1/clips"
INGEST_SECRET = "a secret for the database webhook of the tests"


@dataclass
class ClipsHarness(SystemHarness):
    """The clip system, served on a port."""

    async def add(self, user: SystemUser, url: str) -> dict[str, Any]:
        response = await user.post(CLIPS_PATH, {"video_url": url})
        assert response.status_code in (200, 201), response.text
        return dict(response.json())

    async def get(self, user: SystemUser, clip_id: str) -> dict[str, Any]:
        return dict((await user.get(f"{CLIPS_PATH}/{clip_id}")).json())

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        async with self.db.connection() as connection:
            return list(await connection.fetch(query, *arguments))

    async def count_messages(self, queue: str = "scrape_jobs", place: str = "q") -> int:
        [row] = await self.fetch(f"select count(*) from pgmq.{place}_{queue}")
        return int(row[0])

    async def wait_for(self, user: SystemUser, clip_id: str, status: str) -> dict[str, Any]:
        async def find() -> dict[str, Any] | None:
            clip = await self.get(user, clip_id)
            return clip if clip["processing_status"] == status else None

        try:
            clip: dict[str, Any] = await wait_until(
                find, within=timedelta(seconds=60), what=f"clip {clip_id} is {status}"
            )
        except AssertionError as error:
            raise AssertionError(await self.get(user, clip_id)) from error
        return clip

    @asynccontextmanager
    async def run_clip_worker(
        self, db: Database | None = None, **changes: Any
    ) -> AsyncGenerator[ClipsWorkerState]:
        """Run a worker in this event loop, with its own client. `changes` are settings."""
        db = db or self.db
        settings = replace(db.settings, **changes)
        async with Client(db.url.reveal(), settings=settings) as client:
            state = ClipsWorkerState(client)
            worker = WorkerRuntime(
                db,
                {task.name: task for task in self.tasks},
                list(create_clip_consumers(lambda: state)),
                state=state,
                grace=timedelta(0),
            )
            stop = asyncio.Event()
            running = asyncio.create_task(worker.run(stop))
            try:
                yield state
            finally:
                stop.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
                await state.close()
