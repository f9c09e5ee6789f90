"""SIGKILL between upload and commit: every row has its bytes, files belong to the attempt that succeeded, and
the sweep leaves no orphaned object.

One test kills real workers, which take seconds to start. The other kills minimal forked workers, of which
hundreds can be killed. `make campaign-files` kills five hundred of each; the test suite kills a few dozen.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import signal
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from file_saving_app import PHASES, save_files
from worker_processes import WorkerProcesses

from holdfast import Client
from holdfast.engine.connection import Connection
from holdfast.settings import Secret, Settings
from holdfast.testing import Clock, wait_until

FORKED_WORKERS = Path(__file__).parent.parent / "support" / "forked_file_workers.py"
APP = Path(__file__).parent.parent / "support" / "file_saving_app.py"
KILLS = int(os.environ.get("HOLDFAST_FILE_KILLS", "8"))
FORKED_KILLS = int(os.environ.get("HOLDFAST_FILE_KILLS", "40"))
TASKS_PER_KILL, PROCESSES = 3, 2


@pytest.mark.timeout(180 + 15 * KILLS)
async def test_kills_between_upload_and_commit(
    workers: WorkerProcesses,
    url: Secret,
    settings: Settings,
    conn: Connection,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = workers.folder / "store"
    monkeypatch.setenv("HOLDFAST_STORAGE_URL", str(store))
    workers.app = APP
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    killed = dict.fromkeys(PHASES, 0)
    async with Client(url.reveal(), settings=replace(settings, storage_url=Secret(str(store)))) as client:
        for number in range(KILLS):
            await keep_running(workers, PROCESSES)
            await client.submit_many([save_files(f"{number}.{index}") for index in range(TASKS_PER_KILL)])
            phase = rng.choice(PHASES)
            await kill_worker_at(workers, phase, rng.uniform(0, 0.02))
            killed[phase] += 1
            await clock.advance(timedelta(seconds=21))  # the leases of the killed worker expire
        await keep_running(workers, PROCESSES)
        await wait_until(
            lambda: all_tasks_ended(conn, clock),
            within=timedelta(seconds=110 + 3 * KILLS),
            what="the end of all tasks",
        )
        await stop_workers(workers)
        visible_keys = await check_visible_files(conn, store)
        await clock.advance(timedelta(minutes=2))
        await client.files.sweep()
    assert {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()} == visible_keys
    assert await check_visible_files(conn, store) == visible_keys
    tasks = KILLS * TASKS_PER_KILL
    print(f"seed {seed}: killed {killed}; {len(visible_keys)} files of {tasks} tasks are visible")  # noqa: T201


@pytest.mark.timeout(300 + 6 * FORKED_KILLS)
async def test_kills_of_forked_workers(
    workers: WorkerProcesses,
    url: Secret,
    settings: Settings,
    conn: Connection,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = workers.folder / "store"
    monkeypatch.setenv("RECORD", str(workers.record))
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    killed = dict.fromkeys(PHASES, 0)
    launcher = await asyncio.create_subprocess_exec(
        sys.executable, str(FORKED_WORKERS), url.reveal(), str(store),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    worker_pids = {await fork_worker(launcher) for _ in range(PROCESSES)}
    try:
        async with Client(url.reveal(), settings=replace(settings, storage_url=Secret(str(store)))) as client:
            for number in range(FORKED_KILLS):
                await client.submit_many([save_files(f"{number}.{index}") for index in range(TASKS_PER_KILL)])
                phase = rng.choice(PHASES)
                worker_pids.remove(await kill_worker_at(workers, phase, rng.uniform(0, 0.02)))
                killed[phase] += 1
                worker_pids.add(await fork_worker(launcher))
                await clock.advance(timedelta(seconds=21))
            worker_pids |= {await fork_worker(launcher) for _ in range(2)}
            timeout = timedelta(seconds=150 + FORKED_KILLS)
            await wait_until(
                lambda: all_tasks_ended(conn, clock), within=timeout, what="the end of all tasks"
            )
            visible_keys = await check_visible_files(conn, store)
            await clock.advance(timedelta(minutes=2))
            await client.files.sweep()
    finally:
        for pid in worker_pids:
            os.kill(pid, signal.SIGKILL)
        launcher.kill()
        await launcher.wait()
    assert {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()} == visible_keys
    assert await check_visible_files(conn, store) == visible_keys
    tasks = FORKED_KILLS * TASKS_PER_KILL
    print(f"seed {seed}: killed {killed}; {len(visible_keys)} files of {tasks} tasks are visible")  # noqa: T201


async def fork_worker(launcher: asyncio.subprocess.Process) -> int:
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    launcher.stdin.write(b"fork\n")
    return int(await launcher.stdout.readline())


async def keep_running(workers: WorkerProcesses, count: int) -> None:
    """Start workers until `count` of them run."""
    for _ in range(count - sum(process.returncode is None for process in workers.started)):
        await workers.start("--concurrency", str(TASKS_PER_KILL))


async def stop_workers(workers: WorkerProcesses) -> None:
    for process in workers.started:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.wait()


async def kill_worker_at(workers: WorkerProcesses, phase: str, delay_s: float) -> int:
    """Kill the first process whose task reaches the phase from now on, after a short delay."""
    line_count = len(workers.read_record_lines())

    def find_process() -> str | None:
        return next((line[0] for line in workers.read_record_lines()[line_count:] if line[1] == phase), None)

    pid = int(await wait_until(find_process, within=timedelta(seconds=90), what=f"a task in phase {phase}"))
    await asyncio.sleep(delay_s)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for process in workers.started:
        if process.pid == pid:
            await process.wait()
    return pid


async def all_tasks_ended(conn: Connection, clock: Clock) -> bool:
    await clock.advance(timedelta(milliseconds=200))
    return not await conn.fetchval("select count(*) from holdfast.tasks")


async def check_visible_files(conn: Connection, store: Path) -> set[str]:
    """Check that visible files are complete and belong to the attempt that succeeded; return their keys."""
    rows = await conn.fetch(
        "select f.key, f.size, f.sha256, f.attempt, h.status, h.attempt as succeeded_attempt"
        " from holdfast.artifacts f join holdfast.history h on h.id = f.task_id where f.status = 'visible'"
    )
    for row in rows:
        content = (store / row["key"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (row["size"], row["sha256"])
        assert (row["status"], row["attempt"]) == ("succeeded", row["succeeded_attempt"])
    succeeded = await conn.fetchval("select count(*) from holdfast.history where status = 'succeeded'")
    assert len(rows) == 2 * succeeded
    return {row["key"] for row in rows}
