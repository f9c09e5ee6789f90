"""The heartbeat when the database does not answer: attempts stop before their leases end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from holdfast import telemetry
from holdfast.definitions.tasks import task
from holdfast.engine.leases import LeasedTask
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until
from holdfast.worker.attempts import Attempt, RunningAttempts
from holdfast.worker.context import TaskContext
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.messages.visibility import VisibilityRenewalClient


@pytest.fixture
def silent_server() -> Generator[Secret]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield Secret(f"postgresql://me@127.0.0.1:{listener.getsockname()[1]}/x")


@task
async def forever() -> None:
    await asyncio.Event().wait()


def attempt(lease_s: float) -> Attempt:
    claimed = LeasedTask(
        id=uuid4(), attempt=1, nonce=1, job_id=None, name=None, type="t", queue="q", args={}, parents={},
        suspect=False, lease_s=lease_s, timeout_s=60, max_attempts=5,
    )  # fmt: skip
    context = TaskContext(task_id=str(claimed.id), job_id="j", attempt=1, deadline=datetime.now(UTC))
    now = asyncio.get_running_loop().time()
    created = Attempt(claimed, forever, context, started_at=now, renewed_at=now)
    created.runner = asyncio.create_task(forever.function())
    created.began = True
    return created


Start = Callable[..., Heartbeat]


@pytest.fixture
async def start_heartbeat(silent_server: Secret) -> AsyncGenerator[Start]:
    started: list[Heartbeat] = []

    def start(*attempts: Attempt) -> Heartbeat:
        patient = Settings(connect_timeout=timedelta(minutes=5))
        running = RunningAttempts(lambda: None)
        for each in attempts:
            running.add_attempt(each)
        heartbeat = Heartbeat(silent_server, patient, "w", running, VisibilityRenewalClient(list))
        heartbeat.start()
        started.append(heartbeat)
        return heartbeat

    yield start
    for heartbeat in started:
        await heartbeat.stop()


async def test_attempts_stop_before_their_leases_end_when_the_database_is_silent(
    start_heartbeat: Start,
) -> None:
    """The login hangs for longer than the lease; nobody may wait for it."""
    short, long = attempt(1.0), attempt(600.0)
    start_heartbeat(short, long)
    assert short.context
    assert long.context
    assert short.runner
    assert long.runner
    await wait_until(lambda: short.stop_reason == "lease not renewed in time")
    assert short.context.cancelled
    await wait_until(short.runner.cancelled)
    assert not long.context.cancelled
    long.runner.cancel()


async def test_a_heartbeat_process_that_dies_is_replaced(start_heartbeat: Start) -> None:
    replaced = threading.Event()
    with telemetry.subscription(
        lambda name, _: replaced.set() if name == "worker.heartbeat_replaced" else None
    ):
        heartbeat = start_heartbeat()
        assert heartbeat.process_pid is not None
        before = heartbeat.process_pid
        os.kill(before, signal.SIGKILL)
        await wait_until(replaced.is_set)
        await wait_until(lambda: heartbeat.process_pid not in {before, None})
