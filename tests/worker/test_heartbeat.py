"""The heartbeat when the database does not answer: attempts stop before their leases end."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from holdfast.engine.leases import Claimed
from holdfast.settings import Secret, Settings
from holdfast.testing import eventually
from holdfast.worker.context import Context
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.running import Attempt


@pytest.fixture
def silent() -> Generator[Secret]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield Secret(f"postgresql://me@127.0.0.1:{listener.getsockname()[1]}/x")


async def nothing_else(_: threading.Event) -> None: ...


def attempt(lease_s: float) -> Attempt:
    claimed = Claimed(
        id=uuid4(), attempt=1, nonce=1, job_id=None, name=None, type="t", queue="q", args={}, parents={},
        crashes=0, lease_s=lease_s, timeout_s=60, max_attempts=5,
    )  # fmt: skip
    context = Context(task_id=str(claimed.id), job_id="j", attempt=1, deadline=datetime.now(UTC))
    return Attempt(claimed, context, asyncio.create_task(asyncio.Event().wait()))  # type: ignore[arg-type]


@pytest.fixture
async def beating(silent: Secret) -> AsyncGenerator[Callable[[list[Attempt]], Heartbeat]]:
    started: list[Heartbeat] = []

    def start(attempts: list[Attempt]) -> Heartbeat:
        patient = Settings(connect_timeout=timedelta(minutes=5))
        heartbeat = Heartbeat(silent, patient, "w", lambda: attempts, nothing_else)
        heartbeat.start()
        started.append(heartbeat)
        return heartbeat

    yield start
    for heartbeat in started:
        await heartbeat.stop()


async def test_a_silent_database_stops_attempts_before_their_leases_end(
    beating: Callable[[list[Attempt]], Heartbeat],
) -> None:
    """The login hangs for longer than the lease; nobody may wait for it."""
    short, long = attempt(1.0), attempt(600.0)
    beating([short, long])
    await eventually(lambda: short.context.cancelled)
    await eventually(short.runner.cancelled)
    assert not long.context.cancelled
    long.runner.cancel()
