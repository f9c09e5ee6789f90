"""Worker processes, and a client that submits to them."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from worker_processes import WorkerProcesses

from holdfast import Client
from holdfast.settings import Secret, Settings


@pytest.fixture
async def workers(url: Secret, tmp_path: Path) -> AsyncGenerator[WorkerProcesses]:
    workers = WorkerProcesses(url, tmp_path)
    yield workers
    for process in workers.started:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


@pytest.fixture
async def client(url: Secret, settings: Settings) -> AsyncGenerator[Client]:
    async with Client(url.reveal(), settings=settings) as client:
        yield client
