"""Workers as processes: killed, stopped, blocked, cut off. Waits are for events, not for time."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta

import pytest
import recorder_app as app
from worker_processes import WorkerProcesses

from holdfast import Client
from holdfast.client.handles import JobHandle
from holdfast.engine.connection import Connection
from holdfast.testing import wait_until

SOON = timedelta(seconds=40)


async def test_a_killed_worker_s_task_runs_again_elsewhere(workers: WorkerProcesses, client: Client) -> None:
    victim = await workers.start()
    job = await client.submit(app.wait_for_gate("gate"))
    await wait_until(lambda: workers.has_recorded("began", "gate", 1))
    victim.send_signal(signal.SIGKILL)
    await workers.start()
    await wait_until(lambda: workers.has_recorded("began", "gate", 2), within=SOON)
    workers.open_gate("gate")
    assert await job.result(within=SOON) == "attempt 2"


async def test_a_stopped_worker_releases_without_charging_an_attempt(
    workers: WorkerProcesses, client: Client, conn: Connection
) -> None:
    leaving = await workers.start("--grace", "100ms")
    job = await client.submit(app.wait_for_gate("gate"))
    await wait_until(lambda: workers.has_recorded("began", "gate", 1))
    leaving.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(leaving.wait(), 30) == 0
    assert await conn.fetchval("select failures from holdfast.tasks where id = $1", job.id) == 0
    await workers.start()
    await wait_until(lambda: workers.has_recorded("began", "gate", 2), within=SOON)
    workers.open_gate("gate")
    assert await job.result(within=SOON) == "attempt 2"


async def test_a_stopped_worker_lets_running_work_finish(workers: WorkerProcesses, client: Client) -> None:
    leaving = await workers.start("--grace", "30s")
    job = await client.submit(app.wait_for_gate("gate"))
    await wait_until(lambda: workers.has_recorded("began", "gate", 1))
    leaving.send_signal(signal.SIGTERM)

    async def left_alone() -> JobHandle[object] | None:
        """A signal takes a moment to arrive; a job that the worker takes until then was in time."""
        later = await client.submit(app.record_number(1))
        await asyncio.sleep(0.5)
        return later if (await later.get()).status == "queued" else None

    later = await wait_until(left_alone, within=SOON)
    workers.open_gate("gate")
    assert await asyncio.wait_for(leaving.wait(), 30) == 0
    assert await job.result(within=SOON) == "attempt 1"
    assert (await later.get()).status == "queued"


async def test_the_second_signal_releases_at_once(workers: WorkerProcesses, client: Client) -> None:
    leaving = await workers.start("--grace", "10m")
    await client.submit(app.wait_for_gate("gate"))
    await wait_until(lambda: workers.has_recorded("began", "gate", 1))
    leaving.send_signal(signal.SIGTERM)
    leaving.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(leaving.wait(), 30) == 0


async def test_a_blocked_loop_keeps_its_lease(workers: WorkerProcesses, client: Client) -> None:
    """The task blocks for more than two leases while another worker stands by to take it."""
    await workers.start()
    job = await client.submit(app.block_event_loop(5.0))
    await wait_until(lambda: workers.has_recorded("began", "block_event_loop", 1))
    await workers.start()
    assert await job.result(within=SOON) == "attempt 1"
    assert [line[1:] for line in workers.read_record_lines()] == [
        ["began", "block_event_loop", "1"],
        ["ended", "block_event_loop", "1"],
    ]


@pytest.mark.parametrize("call", ["wait_for_gate", "wait_in_thread"])
async def test_a_cancelled_job_stops_its_running_task(
    workers: WorkerProcesses, client: Client, call: str
) -> None:
    worker = await workers.start()
    submitted = await client.submit(getattr(app, call)("gate"))
    await wait_until(lambda: workers.has_recorded("began", "gate", 1))
    assert (await submitted.cancel()).status == "cancelled"
    log = workers.folder / "worker0.log"
    await wait_until(lambda: "outcome=stopped" in log.read_text(), within=SOON)
    worker.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(worker.wait(), 40) == 0


async def test_work_goes_on_after_every_connection_was_cut(
    workers: WorkerProcesses, client: Client, conn: Connection
) -> None:
    await workers.start()
    first = await client.submit(app.wait_for_gate("gate"))
    await wait_until(lambda: workers.has_recorded("began", "gate", 1))
    await conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
        " and datname = current_database()"
    )
    workers.open_gate("gate")
    await client.close()
    assert await first.result(within=SOON) == "attempt 1"
    second = await client.submit(app.record_number(2))
    assert await second.result(within=SOON) == 2


async def test_two_workers_share_many_tasks_and_run_each_once(
    workers: WorkerProcesses, client: Client
) -> None:
    handles = await client.submit_many([app.record_number(n) for n in range(300)])
    await workers.start()
    await workers.start()
    results = await asyncio.gather(*(handle.result(within=SOON) for handle in handles[::30]))
    assert results == list(range(0, 300, 30))
    await wait_until(lambda: len(workers.read_record_lines()) == 300, within=SOON)
    assert sorted(int(line[2]) for line in workers.read_record_lines()) == list(range(300))


async def test_worker_reports_a_missing_schema(workers: WorkerProcesses, empty_url: object) -> None:
    workers.url = empty_url  # type: ignore[assignment]
    process = await workers.start()
    assert await asyncio.wait_for(process.wait(), 30) == 4
    assert "holdfast migrate" in (workers.folder / "worker0.log").read_text()
