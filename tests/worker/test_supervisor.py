"""Several processes under one, commands from the database, and the ways to end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path

import misbehaving_app as app
import pytest
from worker_processes import WorkerProcesses

from holdfast import Client
from holdfast.engine import leases
from holdfast.engine.connection import Connection
from holdfast.testing import wait_until

SOON = timedelta(seconds=60)


@pytest.fixture
def hard(workers: WorkerProcesses) -> WorkerProcesses:
    workers.app = Path(app.__file__)
    return workers


def is_gone(pid: str) -> bool:
    return not Path(f"/proc/{pid}").exists()


def has_more_than(hard: WorkerProcesses, lines: int) -> bool:
    return len(hard.read_record_lines()) > lines


async def read_worker_names(conn: Connection) -> list[str]:
    rows = await conn.fetch("select name from holdfast.workers where stopped_at is null order by id")
    return [row["name"] for row in rows]


async def test_processes_that_die_are_started_again_and_stopped_together(
    hard: WorkerProcesses, client: Client, conn: Connection
) -> None:
    leader = await hard.start("--processes", "2", "--grace", "100ms")
    await client.submit_many(
        [app.wait_with_long_lease(f"gate{n}") for n in range(12)]
    )  # more than one process can hold
    await wait_until(lambda: len({line[0] for line in hard.read_record_lines()}) == 2, within=SOON)
    victim = int(hard.read_record_lines()[0][0])
    os.kill(victim, signal.SIGKILL)
    await wait_until(
        lambda: len({line[0] for line in hard.read_record_lines()} - {str(victim)}) >= 2, within=SOON
    )
    leader.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(leader.wait(), 60) == 0
    for pid in {line[0] for line in hard.read_record_lines()}:
        await wait_until(partial(is_gone, pid), within=SOON)
    assert await conn.fetchval("select count(*) from holdfast.tasks where status = 'running'") == 0
    assert await conn.fetchval("select sum(failures) from holdfast.tasks") == 0


async def test_permanent_error_ends_all_processes(hard: WorkerProcesses, tmp_path: Path) -> None:
    hard.app = tmp_path / "broken.py"
    hard.app.write_text("import nothing_like_this\n")
    leader = await hard.start("--processes", "3")
    assert await asyncio.wait_for(leader.wait(), 60) == 2
    assert "nothing_like_this" in (hard.folder / "worker0.log").read_text()


async def test_processes_end_with_their_supervisor(hard: WorkerProcesses, client: Client) -> None:
    leader = await hard.start("--processes", "2", "--grace", "100ms")
    await client.submit_many([app.wait_with_long_lease(f"gate{n}") for n in range(12)])
    await wait_until(lambda: len({line[0] for line in hard.read_record_lines()}) == 2, within=SOON)
    leader.send_signal(signal.SIGKILL)
    for pid in {line[0] for line in hard.read_record_lines()}:
        await wait_until(partial(is_gone, pid), within=SOON)


async def test_worker_with_drain_ends_when_no_task_is_ready(
    hard: WorkerProcesses, client: Client, conn: Connection
) -> None:
    await client.submit_many([app.record_number(n) for n in range(250)])
    later = await client.submit(app.record_number(1000), delay=timedelta(hours=1))
    process = await hard.start("--drain")
    assert await asyncio.wait_for(process.wait(), 60) == 0
    assert len(hard.read_record_lines()) == 250
    assert (await later.get()).status == "queued"
    assert await read_worker_names(conn) == []


async def test_once_and_max_tasks_limit_the_claimed_tasks(hard: WorkerProcesses, client: Client) -> None:
    await client.submit_many([app.record_number(n) for n in range(30)])
    process = await hard.start("--once", "--concurrency", "4")
    assert await asyncio.wait_for(process.wait(), 60) == 0
    assert len(hard.read_record_lines()) == 4
    process = await hard.start("--max-tasks", "17", "--concurrency", "4")
    assert await asyncio.wait_for(process.wait(), 60) == 0
    assert len(hard.read_record_lines()) == 21


async def test_worker_follows_commands_from_the_database(
    hard: WorkerProcesses, client: Client, conn: Connection
) -> None:
    draining = await hard.start("--grace", "1ms")
    running = await client.submit(app.wait_with_long_lease("gate"))
    await wait_until(lambda: hard.has_recorded("began", "gate", 1), within=SOON)
    (name,) = await read_worker_names(conn)
    assert await leases.set_worker_command(conn, name, "drain")
    await wait_until(lambda: conn.fetchval("select report is not null from holdfast.workers"), within=SOON)
    stopping = await hard.start()
    await wait_until(lambda: has_two_workers(conn), within=SOON)
    (other,) = [each for each in await read_worker_names(conn) if each != name]
    assert await leases.set_worker_command(conn, other, "stop")
    assert await asyncio.wait_for(stopping.wait(), 60) == 0
    assert draining.returncode is None  # it finishes what it has, whatever its grace
    hard.open_gate("gate")
    assert await running.result(within=SOON) == 1
    assert await asyncio.wait_for(draining.wait(), 60) == 0


async def has_two_workers(conn: Connection) -> bool:
    return len(await read_worker_names(conn)) == 2


async def test_queue_share_limits_running_tasks(hard: WorkerProcesses, client: Client) -> None:
    await client.submit_many([app.wait_for_gate(f"gate{n}") for n in range(6)])
    await client.submit_many([app.record_in_other_queue(n) for n in range(40)])
    await hard.start("--queues", "record:2,other", "--concurrency", "8")
    await wait_until(
        lambda: sum(line[1] == "record_in_other_queue" for line in hard.read_record_lines()) == 40,
        within=SOON,
    )
    assert Counter(line[1] for line in hard.read_record_lines())["began"] == 2
    for n in range(6):
        hard.open_gate(f"gate{n}")
    await wait_until(lambda: sum(line[1] == "ended" for line in hard.read_record_lines()) == 6, within=SOON)


async def test_rolling_restarts_under_load_lose_and_repeat_nothing(
    hard: WorkerProcesses, client: Client, conn: Connection
) -> None:
    """Six workers come and go, each given no time at all, while 1,500 short tasks are done."""
    count = 1500
    await client.submit_many([app.sleep_and_record(n) for n in range(count)])
    for _ in range(6):
        before = len(hard.read_record_lines())
        process = await hard.start("--grace", "0s", "--concurrency", "20")
        await wait_until(partial(has_more_than, hard, before + 20), within=SOON)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0
    await hard.start("--concurrency", "50")

    async def done() -> bool:
        return bool(await conn.fetchval("select count(*) = 0 from holdfast.tasks"))

    await wait_until(done, within=SOON)
    rows = await conn.fetch("select status, failures, crashes, attempt from holdfast.history")
    assert Counter((row["status"], row["failures"], row["crashes"]) for row in rows) == {
        ("succeeded", 0, 0): count
    }
    ended = Counter(line[2] for line in hard.read_record_lines() if line[1] == "sleep_and_record")
    assert set(ended) == {str(n) for n in range(count)}
    assert set(ended.values()) == {1}  # those released were interrupted before they ended
