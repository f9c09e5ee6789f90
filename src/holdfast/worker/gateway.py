"""The engine as running tasks use it: report progress, load and save steps, submit work.

In the worker's process the gateway uses the pool of connections. In a child process it sends requests to the
worker through a pipe. Every request and response is plain data, so that it can be sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.engine import jobs, leases
from holdfast.engine.connection import Database
from holdfast.engine.leases import Lease
from holdfast.model import Json, Progress
from holdfast.worker.progress_batches import ProgressBatcher


class EngineGateway(Protocol):
    """The calls to the engine that a running task can make. Await them on `loop`."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    async def report_progress(
        self, lease: Lease, percent: float | None, phase: str | None, message: str | None, /
    ) -> None: ...
    async def get_step_results(self, lease: Lease, /) -> dict[str, Json]: ...
    async def save_step_result(
        self, lease: Lease, name: str, value: bytes, files: Sequence[str], /
    ) -> Json: ...
    async def add_child_tasks(self, lease: Lease, tasks: bytes, /) -> dict[str, UUID]: ...
    async def submit_detached_job(self, lease: Lease, job: bytes, /) -> UUID: ...


class DatabaseGateway:
    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop) -> None:
        self._database = database
        self.loop = loop
        self._progress = ProgressBatcher(database)

    async def report_progress(
        self, lease: Lease, percent: float | None, phase: str | None, message: str | None
    ) -> None:
        progress = Progress(percent=percent, phase=phase, message=message)
        await self._progress.store(lease, progress)

    async def get_step_results(self, lease: Lease) -> dict[str, Json]:
        async with self._database.connection() as connection:
            return await leases.get_step_results(connection, lease)

    async def save_step_result(self, lease: Lease, name: str, value: bytes, files: Sequence[str]) -> Json:
        async with self._database.connection() as connection:
            return await leases.save_step_result(
                connection, lease, name, value, [UUID(file_id) for file_id in files]
            )

    async def add_child_tasks(self, lease: Lease, tasks: bytes) -> dict[str, UUID]:
        async with self._database.connection() as connection:
            return await leases.add_tasks(connection, lease, tasks)

    async def submit_detached_job(self, lease: Lease, job: bytes) -> UUID:
        """Submit a separate job, if the task's lease is still held."""
        async with self._database.transaction() as connection:
            await leases.assert_lease(connection, lease)
            return (await jobs.submit(connection, job)).id
