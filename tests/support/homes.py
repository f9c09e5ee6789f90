"""A system at work for tests: its tables, the API on a port, users, and a worker in this event loop."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
from callers import bearer, token

from holdfast import Client, Task
from holdfast.engine.connection import Database
from holdfast.systems.exports.documents import samples
from holdfast.systems.workshop import Workshop
from holdfast.testing import eventually
from holdfast.worker import Worker

PDF = "/api/v1/export/pdf"
KEY = "a service key for the tests of the systems"


@dataclass
class User:
    """Somebody with a token, and the requests that they make."""

    web: httpx.AsyncClient
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def headers(self) -> dict[str, str]:
        return bearer(token(self.id))

    async def get(self, path: str, **more: Any) -> httpx.Response:
        return await self.web.get(path, headers=self.headers | more.pop("headers", {}), **more)

    async def post(self, path: str, body: Any = None) -> httpx.Response:
        return await self.web.post(path, json=body, headers=self.headers)

    async def delete(self, path: str) -> httpx.Response:
        return await self.web.delete(path, headers=self.headers)

    async def document(self, name: str = "amara", **change: Any) -> str:
        sample = dict(samples())[name]
        body = {"title": change.pop("title", sample.title), "data": {**sample.data, **change}}
        made = await self.post("/api/v1/export/documents", body)
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    async def export(self, document: str, **more: Any) -> str:
        asked = await self.post(PDF, {"documentId": document, **more})
        assert asked.status_code == 202, asked.text
        return str(asked.json()["jobId"])

    async def ended(self, job: str, within: timedelta = timedelta(seconds=60)) -> dict[str, Any]:
        async def over() -> dict[str, Any] | None:
            told: dict[str, Any] = (await self.get(f"/api/v1/export/job/{job}")).json()
            return told if told["status"] in ("completed", "failed", "cancelled") else None

        try:
            found: dict[str, Any] = await eventually(over, within=within, what=f"job {job} ends")
        except AssertionError as late:
            raise AssertionError(await self.get(f"/api/v1/export/job/{job}"), await self.why(job)) from late
        return found

    async def why(self, job: str) -> Any:
        """What a service is told of a job; for the message of a test that failed."""
        return (await self.web.get(f"/api/jobs/{job}", headers=bearer(KEY))).json()


@dataclass
class House:
    db: Database
    web: httpx.AsyncClient
    url: str
    tasks: Iterable[Task[..., Any]]

    def user(self) -> User:
        return User(self.web)

    @asynccontextmanager
    async def worker(self, concurrency: int = 10, **parts: Any) -> AsyncGenerator[Workshop]:
        """A worker with a workshop, whose parts may be replaced."""
        async with Client(self.db.url.reveal(), settings=self.db.settings) as client:
            workshop = Workshop(client, **parts)
            tasks = {task.name: task for task in self.tasks}
            worker = Worker(self.db, tasks, concurrency=concurrency, state=workshop, grace=timedelta(0))
            stop = asyncio.Event()
            running = asyncio.create_task(worker.run(stop))
            try:
                yield workshop
            finally:
                stop.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
                await workshop.close()
