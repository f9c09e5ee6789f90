"""A running system for tests: its tables, the API on a port, users, and a worker in this event loop."""

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
from api_clients import bearer_headers, make_token

from holdfast import Client, Task
from holdfast.engine.connection import Database
from holdfast.systems.exports.resumes import load_sample_documents
from holdfast.systems.worker_state import SystemsWorkerState
from holdfast.testing import wait_until
from holdfast.worker.runtime import WorkerRuntime

EXPORT_PATH = "/api/v1/export/pdf"
SERVICE_KEY = "a service key for the tests of the systems"
FINAL_EXPORT_STATUSES = ("completed", "failed", "cancelled")


@dataclass
class SystemUser:
    """A user with a token, and the requests that the user sends."""

    http: httpx.AsyncClient
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def headers(self) -> dict[str, str]:
        return bearer_headers(make_token(self.id))

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.http.get(path, headers=self.headers | options.pop("headers", {}), **options)

    async def post(self, path: str, body: Any = None) -> httpx.Response:
        return await self.http.post(path, json=body, headers=self.headers)

    async def delete(self, path: str) -> httpx.Response:
        return await self.http.delete(path, headers=self.headers)

    async def add_document(self, sample_name: str = "amara", **changes: Any) -> str:
        """Add a copy of a sample document and return its id."""
        sample = dict(load_sample_documents())[sample_name]
        body = {"title": changes.pop("title", sample.title), "data": {**sample.data, **changes}}
        response = await self.post("/api/v1/export/documents", body)
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    async def start_export(self, document_id: str, **options: Any) -> str:
        """Start an export and return the id of its job."""
        response = await self.post(EXPORT_PATH, {"documentId": document_id, **options})
        assert response.status_code == 202, response.text
        return str(response.json()["jobId"])

    async def wait_for_export(self, job_id: str, within: timedelta = timedelta(seconds=60)) -> dict[str, Any]:
        """Wait until an export has ended and return its status."""

        async def find_ended_export() -> dict[str, Any] | None:
            export: dict[str, Any] = (await self.get(f"/api/v1/export/job/{job_id}")).json()
            return export if export["status"] in FINAL_EXPORT_STATUSES else None

        try:
            export: dict[str, Any] = await wait_until(
                find_ended_export, within=within, what=f"job {job_id} ends"
            )
        except AssertionError as error:
            export = (await self.get(f"/api/v1/export/job/{job_id}")).json()
            raise AssertionError(export, await self._get_job_as_service(job_id)) from error
        return export

    async def _get_job_as_service(self, job_id: str) -> Any:
        """Return all details of a job, for the message of a failed test."""
        return (await self.http.get(f"/api/jobs/{job_id}", headers=bearer_headers(SERVICE_KEY))).json()


@dataclass
class SystemHarness:
    """A system that is installed and served."""

    db: Database
    http: httpx.AsyncClient
    url: str
    tasks: Iterable[Task[..., Any]]

    def create_user(self) -> SystemUser:
        return SystemUser(self.http)

    @asynccontextmanager
    async def run_worker(
        self, concurrency: int = 10, **state_parts: Any
    ) -> AsyncGenerator[SystemsWorkerState]:
        """Run a worker. Arguments such as `renderer` replace parts of its state."""
        async with Client(self.db.url.reveal(), settings=self.db.settings) as client:
            state = SystemsWorkerState(client, **state_parts)
            tasks = {task.name: task for task in self.tasks}
            worker = WorkerRuntime(self.db, tasks, concurrency=concurrency, state=state, grace=timedelta(0))
            stop = asyncio.Event()
            running = asyncio.create_task(worker.run(stop))
            try:
                yield state
            finally:
                stop.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
                await state.close()
