"""Heartbeats that user code cannot starve, time limits that it cannot ignore, crashes that stay its own."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import misbehaving_app as app
import pytest
from process_tree import find_heartbeat_pid
from worker_processes import WorkerProcesses

from holdfast import Client
from holdfast.client.handles import JobHandle
from holdfast.engine import workers as engine_workers
from holdfast.engine.connection import Connection
from holdfast.testing import wait_until

SOON = timedelta(seconds=60)
APP = Path(app.__file__)


@pytest.fixture
def hard(workers: WorkerProcesses) -> WorkerProcesses:
    workers.app = APP
    return workers


async def read_task_row_anywhere(conn: Connection, task: UUID) -> Any:
    """Wherever it is by now."""
    return await conn.fetchrow(
        "select status, attempt, failures, crashes, error from holdfast.tasks where id = $1 union all"
        " select status, attempt, failures, crashes, error from holdfast.history where id = $1",
        task,
    )


async def wait_for_task_end(conn: Connection, job: JobHandle[Any]) -> Any:
    async def is_over() -> Any:
        rows = await read_task_row_anywhere(conn, UUID(str(job.id)))
        return rows if rows["status"] in {"succeeded", "failed", "cancelled"} else None

    return await wait_until(is_over, within=SOON)


async def list_outcomes(conn: Connection, job: JobHandle[Any]) -> list[str]:
    """The recorded outcomes of the attempts that did not succeed, in their order."""
    query = "select outcome from holdfast.attempts where task_id = $1 order by attempt"
    return [row["outcome"] for row in await conn.fetch(query, job.id)]


# Heartbeats


@pytest.mark.parametrize("how", ["gil", "loop"])
async def test_lease_is_renewed_while_a_task_blocks_the_process(
    hard: WorkerProcesses, client: Client, how: str
) -> None:
    """More than two leases long, while another worker stands by to take it."""
    await hard.start()
    job = await client.submit(app.block_worker(how, 5.0))
    await wait_until(lambda: hard.has_recorded("began", how, 1), within=SOON)
    await hard.start()
    assert await job.result(within=SOON) == "attempt 1"
    assert [line[1:] for line in hard.read_record_lines()] == [["began", how, "1"], ["ended", how, "1"]]


async def test_worker_with_five_percent_of_a_cpu_keeps_its_leases(
    hard: WorkerProcesses, client: Client
) -> None:
    """It and its heartbeat run for 5 ms out of every 100."""
    starved = await hard.start()
    job = await client.submit(app.wait_for_gate("gate"))
    await wait_until(lambda: hard.has_recorded("began", "gate", 1), within=SOON)
    await hard.start()
    family = [starved.pid, find_heartbeat_pid(starved.pid)]
    for _ in range(60):
        for pid in reversed(family):
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(0.095)
        for pid in family:
            os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(0.005)
    hard.open_gate("gate")
    assert await job.result(within=SOON) == "attempt 1"


async def test_suspended_worker_loses_its_leases_and_its_outcomes_are_refused(
    hard: WorkerProcesses, client: Client
) -> None:
    zombie = await hard.start()
    job = await client.submit(app.wait_for_gate("gate"))
    await wait_until(lambda: hard.has_recorded("began", "gate", 1), within=SOON)
    zombie.send_signal(signal.SIGSTOP)
    await hard.start()
    await wait_until(lambda: hard.has_recorded("began", "gate", 2), within=SOON)
    hard.open_gate("gate")  # both would end now; the zombie's outcome must not count
    zombie.send_signal(signal.SIGCONT)
    assert await job.result(within=SOON) == "attempt 2"


async def test_tasks_of_a_killed_worker_are_released_before_their_leases_end(
    hard: WorkerProcesses, client: Client, conn: Connection
) -> None:
    victim = await hard.start()
    job = await client.submit(app.wait_with_long_lease("gate"))
    await wait_until(lambda: hard.has_recorded("began", "gate", 1), within=SOON)
    heartbeat = find_heartbeat_pid(victim.pid)
    victim.send_signal(signal.SIGKILL)
    await wait_until(lambda: not Path(f"/proc/{heartbeat}").exists(), within=SOON)
    [seen] = await engine_workers.list_workers(conn)
    assert seen["state"] == "lost"
    assert seen["queues"] != []
    query = "select (crashes, suspect, losses) from holdfast.tasks where id = $1"
    # Nobody is charged. The task may have been the cause, so it runs alone the next time.
    assert await conn.fetchval(query, job.id) == (0, True, 1)
    await hard.start()
    await wait_until(lambda: hard.has_recorded("began", "gate", 2), within=SOON)
    hard.open_gate("gate")
    assert await job.result(within=SOON) == 2
    rows = await read_task_row_anywhere(conn, UUID(str(job.id)))
    assert (rows["failures"], rows["crashes"]) == (0, 0)
    assert len({line[0] for line in hard.read_record_lines()}) == 2


# Time limits


@pytest.mark.parametrize("how", ["sleep", "gil"])
async def test_blocked_worker_is_killed_and_only_the_blocking_task_fails(
    hard: WorkerProcesses, client: Client, conn: Connection, how: str
) -> None:
    worker = await hard.start()
    neighbour = await client.submit(app.wait_with_long_lease("gate"))
    await wait_until(lambda: hard.has_recorded("began", "gate", 1), within=SOON)
    hanging = await client.submit(app.hang_in_event_loop(how))
    assert await asyncio.wait_for(worker.wait(), 60) == -signal.SIGKILL
    rows = await wait_for_task_end(conn, hanging)
    assert (rows["status"], rows["crashes"]) == ("failed", 0)
    assert "blocked the event loop" in rows["error"]
    hard.open_gate("gate")
    await hard.start()
    assert await neighbour.result(within=SOON) == 2
    rows = await read_task_row_anywhere(conn, UUID(str(neighbour.id)))
    assert (rows["failures"], rows["crashes"]) == (0, 0)


async def test_stuck_thread_is_given_up_and_its_slot_is_freed(
    hard: WorkerProcesses, client: Client, conn: Connection
) -> None:
    leaving = await hard.start("--concurrency", "1", "--grace", "100ms")
    stuck = await client.submit(app.hang_in_thread())
    await wait_until(lambda: hard.has_recorded("began", "hang_in_thread", 1), within=SOON)
    assert (await wait_for_task_end(conn, stuck))["status"] == "failed"
    after = await client.submit(app.record_number(5))
    assert await after.result(within=SOON) == 5
    leaving.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(leaving.wait(), 30) == 0


async def test_blocked_event_loop_is_reported_with_the_task(hard: WorkerProcesses, client: Client) -> None:
    await hard.start()
    job = await client.submit(app.block_worker("sleep", 2.5))
    await job.result(within=SOON)
    log = (hard.folder / "worker0.log").read_text()
    (line,) = [line for line in log.splitlines() if "worker.event_loop_blocked" in line]
    assert "name=block_worker" in line
    assert "misbehaving_app.py" in line


# Crashes


@pytest.mark.parametrize(
    ("how", "expected_text"),
    [("kill", "SIGKILL"), ("segv", "SIGSEGV"), ("exit", "exit code 7"), ("deep", "SIGSEGV")],
)
async def test_child_process_crash_is_recorded_with_its_last_output(
    hard: WorkerProcesses, client: Client, conn: Connection, how: str, expected_text: str
) -> None:
    await hard.start()
    neighbour = await client.submit(app.wait_for_gate("gate"))
    job = await client.submit(app.crash_child(how))
    rows = await wait_for_task_end(conn, job)
    assert (rows["status"], rows["failures"], rows["attempt"]) == ("failed", 1, 3)
    assert await list_outcomes(conn, job) == ["crashed"] * 3
    assert expected_text in rows["error"]
    assert "MiB" in rows["error"]
    last_outputs = await conn.fetch("select traceback from holdfast.attempts where task_id = $1", job.id)
    assert len(last_outputs) == 3
    assert all(
        "last words" in row["traceback"] and "about to die" in row["traceback"] for row in last_outputs
    )
    assert len([line for line in hard.read_record_lines() if line[2] == how]) == 3
    hard.open_gate("gate")
    assert await neighbour.result(within=SOON) == "attempt 1"


def have_begun(hard: WorkerProcesses, *, attempt: int) -> bool:
    return all(hard.has_recorded("began", f"gate{number}", attempt) for number in range(3))


@pytest.mark.parametrize("how", ["kill", "segv", "exit", "deep"])
async def test_task_that_killed_its_worker_is_charged_in_child_processes_only(
    hard: WorkerProcesses, client: Client, conn: Connection, how: str
) -> None:
    """The death of the shared process is charged to nobody. Alone in children, the culprit shows itself."""
    victim = await hard.start()
    neighbours = [await client.submit(app.wait_with_long_lease(f"gate{number}")) for number in range(3)]
    await wait_until(lambda: have_begun(hard, attempt=1), within=SOON)
    killer = await client.submit(app.crash_worker(how))
    assert await asyncio.wait_for(victim.wait(), 60) != 0
    survivor = await hard.start()
    rows = await wait_for_task_end(conn, killer)
    assert (rows["status"], rows["attempt"]) == ("failed", 4)
    assert "The child process that ran the task" in rows["error"]
    assert await list_outcomes(conn, killer) == ["lost", "crashed", "crashed", "crashed"]
    assert survivor.returncode is None
    # All at the same time, each in a child of its own.
    await wait_until(lambda: have_begun(hard, attempt=2), within=SOON)
    assert len({line[0] for line in hard.read_record_lines() if line[3] == "2"} - {str(survivor.pid)}) >= 3
    for number in range(3):
        hard.open_gate(f"gate{number}")
    for neighbour in neighbours:
        assert await neighbour.result(within=SOON) == 2
        rows = await read_task_row_anywhere(conn, UUID(str(neighbour.id)))
        assert (rows["failures"], rows["crashes"]) == (0, 0)
        assert await list_outcomes(conn, neighbour) == ["lost"]
    assert len({line[0] for line in hard.read_record_lines() if line[2] == how}) == 4
    assert str(survivor.pid) not in {line[0] for line in hard.read_record_lines()}


async def test_child_process_is_killed_above_its_memory_limit(
    hard: WorkerProcesses, client: Client, conn: Connection
) -> None:
    await hard.start()
    modest = await client.submit(app.allocate_memory(50))
    assert await modest.result(within=SOON) == 50
    greedy = await client.submit(app.allocate_memory(3000))
    rows = await wait_for_task_end(conn, greedy)
    assert rows["status"] == "failed"
    assert "Its limit is 200 MiB" in rows["error"]


async def test_child_process_is_killed_after_its_time_limit(
    hard: WorkerProcesses, client: Client, conn: Connection
) -> None:
    worker = await hard.start()
    rows = await wait_for_task_end(conn, await client.submit(app.hang_in_child()))
    assert rows["status"] == "failed"
    assert "was killed" in rows["error"]
    assert worker.returncode is None


# Children


async def test_context_works_in_a_child_process(
    hard: WorkerProcesses, client: Client, conn: Connection
) -> None:
    worker = await hard.start("--concurrency", "4")
    job = await client.submit(app.use_context_in_child(21))

    async def half() -> bool:
        return bool(
            await conn.fetchval("select phase = 'half' from holdfast.all_tasks where id = $1", job.id)
        )

    await wait_until(half, within=SOON)
    hard.open_gate("gate")
    result: dict[str, Any] = await job.result(within=SOON)
    assert (result["doubled"], result["attempt"]) == (42, 1)
    assert result["pid"] != worker.pid
    assert hard.has_recorded("record_number", 21, 1)
    lines = await conn.fetch("select message from holdfast.logs where task_id = $1 order by seq", job.id)
    assert [line["message"] for line in lines] == ["in the child"]


async def test_child_processes_are_reused_and_exit_with_their_worker(
    hard: WorkerProcesses, client: Client
) -> None:
    worker = await hard.start()
    hard.open_gate("gate")
    first = await (await client.submit(app.wait_in_child("gate"))).result(within=SOON)
    again = await (await client.submit(app.wait_in_child("gate"))).result(within=SOON)
    assert first == again
    assert first[1] == worker.pid
    await client.submit(app.wait_in_child("closed"))
    await wait_until(lambda: hard.has_recorded("began", "closed", 1), within=SOON)
    worker.send_signal(signal.SIGKILL)
    await wait_until(lambda: not Path(f"/proc/{first[0]}").exists(), within=SOON)


async def test_cancelled_job_stops_before_the_next_heartbeat(hard: WorkerProcesses, client: Client) -> None:
    """The lease is two minutes long, and half a minute passes between beats."""
    await hard.start()
    job = await client.submit(app.wait_with_long_lease("closed"))
    await wait_until(lambda: hard.has_recorded("began", "closed", 1), within=SOON)
    await job.cancel()
    log = hard.folder / "worker0.log"
    await wait_until(lambda: "outcome=stopped" in log.read_text(), within=timedelta(seconds=20))


async def test_cancelled_job_kills_its_child_process(hard: WorkerProcesses, client: Client) -> None:
    worker = await hard.start()
    job = await client.submit(app.wait_in_child("closed"))
    await wait_until(lambda: hard.has_recorded("began", "closed", 1), within=SOON)
    (pid,) = {int(line[0]) for line in hard.read_record_lines()}
    await job.cancel()
    await wait_until(lambda: not Path(f"/proc/{pid}").exists(), within=SOON)
    assert worker.returncode is None
