"""Who pays for a child process that died, and children that end with their lease."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import child_import_app
import misbehaving_app as app
import pytest
from process_tree import find_heartbeat_pid, find_lease_guard_pid, is_running, list_task_process_pids
from worker_processes import WorkerProcesses

from holdfast import Client, Worker
from holdfast.client.handles import JobHandle
from holdfast.engine.connection import Connection
from holdfast.testing import wait_until
from holdfast.worker import child_pool
from holdfast.worker.child_pool import ChildProcessPool

SOON = timedelta(seconds=60)


@pytest.fixture
def hard(workers: WorkerProcesses) -> WorkerProcesses:
    workers.app = Path(app.__file__)
    return workers


@pytest.fixture
def record_here(monkeypatch: pytest.MonkeyPatch, workers: WorkerProcesses) -> WorkerProcesses:
    """Workers in the test's own process write to the same record."""
    monkeypatch.setenv("RECORD", str(workers.record))
    return workers


@asynccontextmanager
async def run_worker(client: Client, **options: Any) -> AsyncGenerator[Worker]:
    async with Worker(client, tasks=[app.wait_in_child], concurrency=1, **options) as worker:
        run = asyncio.create_task(worker.run())
        yield worker
        worker.stop()
        await run


def get_child_pool(worker: Worker) -> ChildProcessPool:
    pool = worker._runtime._child_pool  # type: ignore[union-attr] # pyright: ignore
    assert pool is not None
    return pool


async def read_attempt(conn: Connection, job: JobHandle[Any], attempt: int) -> Any:
    async def find() -> Any:
        query = "select outcome, message from holdfast.attempts where task_id = $1 and attempt = $2"
        return await conn.fetchrow(query, job.id, attempt)

    return await wait_until(find, within=SOON)


async def count_crashes(conn: Connection, job: JobHandle[Any]) -> Any:
    return await conn.fetchval("select crashes from holdfast.all_tasks where id = $1", job.id)


# Deaths before the task's code began


async def test_child_killed_before_the_code_began_is_not_charged(
    hard: WorkerProcesses, client: Client, conn: Connection
) -> None:
    worker = await hard.start("--concurrency", "1")
    (spare,) = await wait_until(lambda: list_task_process_pids(worker.pid), within=SOON)
    os.kill(spare, signal.SIGSTOP)  # it receives the task and does not begin
    hard.open_gate("gate")
    job = await client.submit(app.wait_in_child("gate"))
    log = hard.folder / "worker0.log"
    await wait_until(lambda: "task.started" in log.read_text(), within=SOON)
    os.kill(spare, signal.SIGKILL)
    await job.result(within=SOON)
    row = await read_attempt(conn, job, 1)
    assert row["outcome"] == "lost"
    assert "The child process was killed by SIGKILL before the task's code began." in row["message"]
    assert await count_crashes(conn, job) == 0
    assert not hard.has_recorded("began", "gate", 1)


async def test_child_that_cannot_start_fails_the_task_with_its_last_lines(
    workers: WorkerProcesses, client: Client, conn: Connection
) -> None:
    workers.app = Path(child_import_app.__file__)
    worker = await workers.start()
    job = await client.submit(child_import_app.never_starts())
    row = await read_attempt(conn, job, 1)
    assert row["outcome"] == "failed"
    assert "the child process did not start: ended with exit code" in row["message"]
    assert "the licence server is away" in row["message"]
    assert await (await client.submit(app.record_number(1))).result(within=SOON) == 1
    assert worker.returncode is None


# Deaths after it


async def test_death_is_charged_only_if_the_worker_lives_on(
    monkeypatch: pytest.MonkeyPatch, record_here: WorkerProcesses, client: Client, conn: Connection
) -> None:
    """Whoever kills all processes reaches the child first. Here the worker leaves before it charges."""
    monkeypatch.setattr(child_pool, "CRASH_CHARGE_DELAY_S", 3600.0)
    async with run_worker(client, grace=timedelta(0)):
        job = await client.submit(app.wait_in_child("gate"))
        await wait_until(lambda: record_here.has_recorded("began", "gate", 1), within=SOON)
        os.kill(int(record_here.read_record_lines()[0][0]), signal.SIGKILL)
        await wait_until(lambda: not is_running(int(record_here.read_record_lines()[0][0])), within=SOON)
    assert (await read_attempt(conn, job, 1))["outcome"] == "released"
    assert await count_crashes(conn, job) == 0


async def test_stop_signal_to_all_processes_lets_the_task_finish(
    hard: WorkerProcesses, client: Client
) -> None:
    """Service managers send SIGTERM to every process of a service."""
    leaving = await hard.start("--grace", "60s")
    job = await client.submit(app.wait_in_child("gate"))
    await wait_until(lambda: hard.has_recorded("began", "gate", 1), within=SOON)
    guard, children = find_lease_guard_pid(leaving.pid), list_task_process_pids(leaving.pid)
    for pid in (guard, *children, leaving.pid):
        os.kill(pid, signal.SIGTERM)
    hard.open_gate("gate")
    child_pid, _ = await job.result(within=SOON)
    assert child_pid == int(hard.read_record_lines()[0][0])
    assert await asyncio.wait_for(leaving.wait(), 60) == 0
    await wait_until(lambda: not any(is_running(pid) for pid in (guard, *children)), within=SOON)


async def test_processes_of_a_task_end_at_sigterm(hard: WorkerProcesses, client: Client) -> None:
    await hard.start()
    job = await client.submit(app.terminate_programs())
    assert await job.result(within=SOON) == [-signal.SIGTERM] * 21


# Leases


async def test_child_of_a_frozen_worker_ends_before_another_worker_begins(
    hard: WorkerProcesses, client: Client, conn: Connection
) -> None:
    """It holds the GIL and has started a process; the next attempt looks for both."""
    frozen = await hard.start()
    job = await client.submit(app.hold_gil_beside_program())
    await wait_until(lambda: hard.has_recorded("began", "hold_gil_beside_program", 1), within=SOON)
    heartbeat_pid = find_heartbeat_pid(frozen.pid)
    for pid in (frozen.pid, heartbeat_pid):
        os.kill(pid, signal.SIGSTOP)
    try:
        await hard.start()
        assert await job.result(within=SOON) == []
    finally:
        os.kill(heartbeat_pid, signal.SIGCONT)  # or it outlives the test
    assert (await read_attempt(conn, job, 1))["outcome"] == "lost"
    assert await count_crashes(conn, job) == 0


async def test_child_that_holds_the_gil_keeps_its_lease_while_its_worker_lives(
    hard: WorkerProcesses, client: Client
) -> None:
    await hard.start()
    job = await client.submit(app.hold_gil_in_child(5))
    assert await job.result(within=SOON) == "attempt 1"


async def test_child_keeps_its_lease_while_a_task_holds_the_gil_of_its_worker(
    hard: WorkerProcesses, client: Client
) -> None:
    """The worker learns of no renewal for more than two leases. Its heartbeat process renews all the same."""
    await hard.start()
    job = await client.submit(app.wait_in_child("gate"))
    await wait_until(lambda: hard.has_recorded("began", "gate", 1), within=SOON)
    assert await (await client.submit(app.block_worker("gil", 5.0))).result(within=SOON) == "attempt 1"
    hard.open_gate("gate")
    child_pid, _ = await job.result(within=SOON)
    assert child_pid == int(hard.read_record_lines()[0][0])


async def test_child_ended_with_its_lease_is_not_charged(
    record_here: WorkerProcesses, client: Client, conn: Connection
) -> None:
    """As after a freeze that ends just before the lease does."""
    async with run_worker(client) as worker:
        job = await client.submit(app.wait_in_child("gate"))
        await wait_until(lambda: record_here.has_recorded("began", "gate", 1), within=SOON)
        guard = get_child_pool(worker)._guard  # pyright: ignore[reportPrivateUsage]
        (deadline,) = (d for d in guard._deadlines.values() if d._attempt)  # pyright: ignore[reportPrivateUsage]
        deadline._attempt = None  # pyright: ignore[reportPrivateUsage]  (no renewal moves it any more)
        guard.write_slot(deadline.slot, 0.0, b"")
        guard.write_deadline(deadline.slot, 0.0)
        guard.announce_deadline()
        # The gate stays closed until the guard has ended the child, which would finish its task otherwise.
        child_pid = int(record_here.read_record_lines()[0][0])
        await wait_until(lambda: not is_running(child_pid), within=SOON)
        record_here.open_gate("gate")
        await job.result(within=SOON)
    row = await read_attempt(conn, job, 1)
    assert row["outcome"] == "lost"
    assert "The lease was not renewed in time" in row["message"]
    assert await count_crashes(conn, job) == 0


# Spare children


async def test_worker_with_process_tasks_keeps_spare_children(hard: WorkerProcesses, client: Client) -> None:
    worker = await hard.start("--concurrency", "3")
    spares = await wait_until(
        lambda: len(pids := list_task_process_pids(worker.pid)) == 3 and pids, within=SOON
    )
    job = await client.submit(app.wait_in_child("gate"))
    await wait_until(lambda: hard.has_recorded("began", "gate", 1), within=SOON)
    (pid,) = {int(line[0]) for line in hard.read_record_lines()}
    assert pid in spares
    os.kill(next(spare for spare in spares if spare != pid), signal.SIGKILL)
    # One runs the task and two slots are free: the spare that died is replaced.
    await wait_until(
        lambda: len(pids := list_task_process_pids(worker.pid)) == 3 and set(pids) != set(spares), within=SOON
    )
    hard.open_gate("gate")
    assert (await job.result(within=SOON))[0] == pid


async def test_spare_children_outlive_the_idle_time(
    monkeypatch: pytest.MonkeyPatch, record_here: WorkerProcesses, client: Client
) -> None:
    monkeypatch.setattr(child_pool, "MAX_CHILD_IDLE_S", 0.0)
    record_here.open_gate("gate")
    async with run_worker(client):
        first = await (await client.submit(app.wait_in_child("gate"))).result(within=SOON)
        again = await (await client.submit(app.wait_in_child("gate"))).result(within=SOON)
    assert first == again
