"""The heartbeat process as the operating system sees it: frozen, or the survivor of its worker."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import heartbeat_app as app
import pytest
from worker_processes import WorkerProcesses

from holdfast import Client
from holdfast.client.handles import JobHandle
from holdfast.engine.connection import Connection
from holdfast.testing import wait_until
from holdfast.worker.heartbeat_link import MAX_ANSWER_AGE_S

SOON = timedelta(seconds=60)
HEARTBEAT = "holdfast.worker.heartbeat_process"
LEASE_GUARD = "lease_guard_process.py"


@pytest.fixture
def workers(workers: WorkerProcesses) -> WorkerProcesses:
    workers.app = Path(app.__file__)
    return workers


def find_child_pids(pid: int, command: str) -> list[int]:
    """Return the pids of the direct children of a process whose command line contains the text."""
    pids: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        pids += [int(child) for child in (thread / "children").read_text().split()]
    return [pid for pid in pids if command in Path(f"/proc/{pid}/cmdline").read_text()]


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


@asynccontextmanager
async def frozen(*pids: int) -> AsyncGenerator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            if is_running(pid):
                os.kill(pid, signal.SIGCONT)


async def read_task(conn: Connection, job: JobHandle[Any]) -> dict[str, Any]:
    row = await conn.fetchrow(
        "select status, attempt, failures, crashes, losses, suspect from holdfast.all_tasks where id = $1",
        job.id,
    )
    assert row is not None
    return dict(row)


def read_log(workers: WorkerProcesses) -> str:
    return (workers.folder / "worker0.log").read_text()


async def wait_until_begun(workers: WorkerProcesses, *words: object) -> list[str]:
    """Wait for a line of a task that began. Return its words."""

    def find_line() -> list[str] | None:
        expected = ["began", *(str(word) for word in words)]
        lines = workers.read_record_lines()
        return next((line for line in lines if line[1 : len(expected) + 1] == expected), None)

    return await wait_until(find_line, within=SOON) or []


# A heartbeat process that does not answer


async def test_frozen_heartbeat_process_is_replaced_and_keeps_the_running_tasks(
    workers: WorkerProcesses, client: Client, conn: Connection
) -> None:
    worker = await workers.start()
    job = await client.submit(app.wait_with_long_lease("gate"))
    await wait_until_begun(workers, "gate", 1)
    [heartbeat] = find_child_pids(worker.pid, HEARTBEAT)
    async with frozen(heartbeat):
        await wait_until(lambda: "worker.heartbeat_replaced" in read_log(workers), within=SOON)
        await wait_until(lambda: not is_running(heartbeat), within=SOON)
        later = await client.submit(app.wait_with_long_lease("open"))
        workers.open_gate("open")
        assert await later.result(within=SOON) == 1
    assert find_child_pids(worker.pid, HEARTBEAT) != [heartbeat]
    workers.open_gate("gate")
    assert await job.result(within=SOON) == 1


async def test_nothing_is_claimed_while_the_heartbeat_process_is_frozen(
    workers: WorkerProcesses, client: Client, conn: Connection
) -> None:
    """Its tasks stop before their leases end, and do not start again before the process is replaced."""
    worker = await workers.start()
    jobs = [await client.submit(app.wait_with_short_lease(f"gate{number}")) for number in range(3)]
    for number in range(3):
        await wait_until_begun(workers, f"gate{number}", 1)
    [heartbeat] = find_child_pids(worker.pid, HEARTBEAT)
    async with frozen(heartbeat):
        await wait_until(lambda: "worker.heartbeat_replaced" in read_log(workers), within=SOON)
    for number in range(3):
        workers.open_gate(f"gate{number}")
    attempts = [await job.result(within=SOON) for job in jobs]
    assert max(attempts) <= 4  # not again and again
    for job in jobs:
        row = await read_task(conn, job)
        assert (row["status"], row["failures"], row["crashes"]) == ("succeeded", 0, 0)


async def test_claim_after_an_idle_time_starts_nothing_without_a_heartbeat(
    workers: WorkerProcesses, client: Client, conn: Connection
) -> None:
    worker = await workers.start()
    first = await client.submit(app.wait_with_long_lease("open"))
    workers.open_gate("open")
    assert await first.result(within=SOON) == 1
    [heartbeat] = find_child_pids(worker.pid, HEARTBEAT)
    async with frozen(heartbeat):
        await asyncio.sleep(MAX_ANSWER_AGE_S + 0.1)  # now the last answer of the process is old
        job = await client.submit(app.wait_with_short_lease("gate"))
        await wait_until_begun(workers, "gate")
        assert "worker.heartbeat_replaced" in read_log(workers)
    workers.open_gate("gate")
    await job.result(within=SOON)
    assert len([line for line in workers.read_record_lines() if line[2] == "gate"]) == 1
    row = await read_task(conn, job)
    assert (row["failures"], row["crashes"]) == (0, 0)


# After the death of the worker


async def test_tasks_of_a_killed_worker_are_lost_and_charged_nothing(
    workers: WorkerProcesses, client: Client, conn: Connection
) -> None:
    worker = await workers.start()
    in_worker = await client.submit(app.wait_with_long_lease("gate"))
    in_child = await client.submit(app.start_program_in_child("child"))
    await wait_until_begun(workers, "gate", 1)
    await wait_until_begun(workers, "child", 1)
    worker.send_signal(signal.SIGKILL)

    async def are_ready() -> bool:
        rows = [await read_task(conn, job) for job in (in_worker, in_child)]
        return all(row["status"] == "ready" for row in rows)

    await wait_until(are_ready, within=SOON)
    rows = [await read_task(conn, job) for job in (in_worker, in_child)]
    assert [(row["failures"], row["crashes"], row["losses"]) for row in rows] == [(0, 0, 1)] * 2
    assert [bool(row["suspect"]) for row in rows] == [True, False]


async def test_process_groups_of_children_end_before_the_leases_return(
    workers: WorkerProcesses, client: Client, conn: Connection
) -> None:
    """Also if the lease guard, which ends them too, does nothing."""
    worker = await workers.start()
    job = await client.submit(app.start_program_in_child("gate"))
    child, _, _, _, program = await wait_until_begun(workers, "gate", 1)

    async def is_returned() -> bool:
        return bool((await read_task(conn, job))["status"] == "ready")

    async with frozen(*find_child_pids(worker.pid, LEASE_GUARD)):
        worker.send_signal(signal.SIGKILL)
        await wait_until(is_returned, within=SOON)
        assert not is_running(int(child))
        assert not is_running(int(program))
    await workers.start()
    await wait_until_begun(workers, "gate", 2)
    workers.open_gate("gate")
    assert await job.result(within=SOON) == 2


async def test_children_of_a_stopped_worker_end_before_their_leases(
    workers: WorkerProcesses, client: Client, conn: Connection
) -> None:
    """Also if the lease guard, which watches them first, does nothing."""
    worker = await workers.start()
    job = await client.submit(app.wait_in_child("gate"))
    child = int((await wait_until_begun(workers, "gate", 1))[0])
    guards = find_child_pids(worker.pid, LEASE_GUARD)
    async with frozen(worker.pid, *guards):
        await wait_until(lambda: not is_running(child), within=SOON)
    workers.open_gate("gate")
    assert await job.result(within=SOON) >= 2
    row = await read_task(conn, job)
    assert (row["failures"], row["crashes"]) == (0, 0)
