"""`holdfast.Worker` inside one's own process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import worker_app as app

from holdfast import Client, QueueShare, Worker, task
from holdfast.engine.connection import Connection
from holdfast.errors import InvalidError, RefusedError
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

SOON = timedelta(seconds=60)


@pytest.fixture
async def client(url: Secret, settings: Settings) -> AsyncGenerator[Client]:
    async with Client(url.reveal(), settings=settings) as client:
        yield client


@asynccontextmanager
async def running(client: Client, **options: Any) -> AsyncGenerator[Worker]:
    async with Worker(client, **options) as worker:
        run = asyncio.create_task(worker.run())
        yield worker
        worker.stop()
        await asyncio.wait_for(run, 60)


async def has_started(client: Client, job: Any) -> bool:
    return (await client.get(job.id)).progress.phase == "started"


async def test_a_task_runs_to_its_result_in_the_loop_of_the_test(client: Client) -> None:
    async with running(client, tasks=[app.double]):
        job = await client.submit(app.double(21))
        assert await job.result(within=SOON) == 42


async def test_tasks_use_the_state_of_the_lifespan(client: Client) -> None:
    async with running(client, tasks=[app.add], lifespan=app.counting):
        assert await (await client.submit(app.add(2))).result(within=SOON) == 42


async def test_consumers_run_beside_tasks(client: Client) -> None:
    app.received.clear()
    await client.queues.create("numbers")
    async with running(client, tasks=[app.double], consumers=[app.receive_number]):
        await client.queues.send("numbers", 7)
        await wait_until(lambda: app.received == [7], within=SOON)


async def test_a_task_with_process_runs_in_a_child_with_its_own_lifespan(client: Client) -> None:
    async with running(client, tasks=[app.get_pid], lifespan=app.counting):
        pid, value = await (await client.submit(app.get_pid())).result(within=SOON)
    assert pid != os.getpid()
    assert value == 40


async def test_a_stop_lets_running_tasks_finish(client: Client) -> None:
    started = asyncio.Event()

    @task
    async def finishes() -> str:
        started.set()
        await asyncio.sleep(0.3)
        return "done"

    async with Worker(client, tasks=[finishes]) as worker:
        run = asyncio.create_task(worker.run())
        job = await client.submit(finishes())
        await started.wait()
        worker.stop()
        await asyncio.wait_for(run, 60)
    assert (await client.get(job.id)).output == "done"


@pytest.mark.parametrize("how", ["grace", "second stop", "exit"])
async def test_a_stopped_worker_releases_running_tasks(client: Client, conn: Connection, how: str) -> None:
    grace = timedelta(milliseconds=50) if how == "grace" else timedelta(hours=1)
    async with Worker(client, tasks=[app.wait_forever], grace=grace) as worker:
        run = asyncio.create_task(worker.run())
        job = await client.submit(app.wait_forever())
        await wait_until(lambda: has_started(client, job), within=SOON)
        if how == "exit":
            worker.stop(graceful=False)
        else:
            worker.stop()
            if how == "second stop":
                worker.stop(graceful=False)
            await asyncio.wait_for(run, 60)
    row = await conn.fetchrow("select status, failures from holdfast.tasks where id = $1", job.id)
    assert row is not None
    assert tuple(row) == ("ready", 0)


async def test_stop_from_a_thread(client: Client) -> None:
    async with Worker(client, tasks=[app.double]) as worker:
        run = asyncio.create_task(worker.run())
        threading.Timer(0.2, worker.stop).start()
        await asyncio.wait_for(run, 60)


async def test_stop_from_a_signal_handler(client: Client) -> None:
    async with Worker(client, tasks=[app.double]) as worker:
        before = signal.signal(signal.SIGUSR1, lambda *_: worker.stop())
        try:
            run = asyncio.create_task(worker.run())
            await asyncio.sleep(0.2)
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.wait_for(run, 60)
        finally:
            signal.signal(signal.SIGUSR1, before)


async def test_a_stop_before_run_makes_run_return(client: Client) -> None:
    worker = Worker(client, tasks=[app.double])
    worker.stop()
    async with worker:
        await asyncio.wait_for(worker.run(), 60)


async def test_two_workers_in_one_process_share_the_work(client: Client) -> None:
    async with running(client, tasks=[app.double]) as first, running(client, tasks=[app.double]) as second:
        assert first.name != second.name
        jobs = await client.submit_many([app.double(n) for n in range(50)])
        results = [await job.result(within=SOON) for job in jobs]
    assert results == [2 * n for n in range(50)]


async def test_until_drained_runs_what_is_ready_and_returns(client: Client) -> None:
    job = await client.submit(app.double(1))
    async with Worker(
        client, tasks=[app.double], until="drained", queues=[QueueShare("default", 2)]
    ) as worker:
        await asyncio.wait_for(worker.run(), 60)
    assert (await client.get(job.id)).status == "succeeded"


async def test_the_task_types_are_registered(client: Client, conn: Connection) -> None:
    async with Worker(client, tasks=[app.double], source="shop"):
        names = await conn.fetch("select name from holdfast.task_types")
    assert [row["name"] for row in names] == ["double"]


async def test_wrong_use_is_refused_with_a_fix(client: Client) -> None:
    @task(name="double")
    async def other() -> None: ...

    @task(process=True)
    async def local() -> None: ...

    with pytest.raises(RefusedError, match="async with Worker"):
        await Worker(client, tasks=[app.double]).run()
    with pytest.raises(InvalidError, match="no tasks and no consumers"):
        Worker(client)
    with pytest.raises(InvalidError, match="Decorate the function with @task"):
        Worker(client, tasks=[print])  # type: ignore[list-item]
    with pytest.raises(InvalidError, match="Two tasks have the name 'double'"):
        Worker(client, tasks=[app.double, other])
    with pytest.raises(InvalidError, match="Define it at the top level of a module"):
        Worker(client, tasks=[local])


SCRIPT = """
import asyncio, os
from holdfast import Client, Worker, task

client = Client()

@task(process=True)
async def get_pid() -> int:
    return os.getpid()

async def main() -> None:
    async with Worker(client, tasks=[get_pid]) as worker:
        run = asyncio.create_task(worker.run())
        pid = await (await client.submit(get_pid())).result()
        print("child" if pid != os.getpid() else "same")
        worker.stop()
        await run

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_script_can_run_its_own_tasks_in_child_processes(url: Secret, tmp_path: Path) -> None:
    script = tmp_path / "shop.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "HOLDFAST_DATABASE_URL": url.reveal()}
    result = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert result.stdout == "child\n", result.stderr


def test_importing_holdfast_does_not_import_the_worker() -> None:
    code = "import sys, holdfast; print('holdfast.worker.runtime' in sys.modules); holdfast.Worker"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
