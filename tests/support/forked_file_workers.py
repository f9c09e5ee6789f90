"""Minimal worker processes that save files, created by fork so that a test can kill hundreds in a minute.

    python forked_file_workers.py URL STORE

Each line on standard input creates one process, whose id is printed. The processes claim tasks and run them
with the worker's own files, context and runner, without the rest of a worker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from file_saving_app import save_files

from holdfast.engine import leases
from holdfast.engine.connection import Database
from holdfast.engine.leases import LeasedTask, Outcome
from holdfast.settings import Secret, Settings
from holdfast.worker.attempts import Attempt
from holdfast.worker.context import TaskContext
from holdfast.worker.files import TaskFiles
from holdfast.worker.runner import run_task
from holdfast.worker.thread_pool import TaskThreadPool

SLOTS = 3


async def run_worker(url: Secret, store: str) -> None:
    settings = Settings(storage_url=Secret(store), statement_cache="on", home=Path(store).parent)
    name, outcomes = f"forked-{os.getpid()}", list[Outcome]()
    running: set[asyncio.Task[Outcome]] = set()
    async with Database(url, settings) as database:
        files = TaskFiles(database)
        while True:
            async with database.connection() as connection:
                response = await leases.finish_and_claim(
                    connection, worker=name, outcomes=outcomes, slots=SLOTS - len(running), queues=["files"]
                )
            running |= {asyncio.create_task(run_leased_task(task, files)) for task in response.tasks}
            ended, running = await asyncio.wait(running, timeout=0.02) if running else (set(), running)
            outcomes = [task.result() for task in ended]
            if not running and not outcomes:
                await asyncio.sleep(0.02)


async def run_leased_task(claimed: LeasedTask, files: TaskFiles) -> Outcome:
    context = TaskContext(
        task_id=str(claimed.id),
        job_id=str(claimed.id),
        attempt=claimed.attempt,
        deadline=datetime.now(UTC) + timedelta(minutes=5),
        lease=claimed,
        files=files,
    )
    attempt = Attempt(claimed, save_files, context, started_at=0.0, renewed_at=0.0)
    outcome = await run_task(attempt, TaskThreadPool(1))
    assert outcome is not None
    return Outcome(
        id=claimed.id, attempt=claimed.attempt, nonce=claimed.nonce, kind=outcome.kind, body=outcome.body
    )


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    url, store = Secret(sys.argv[1]), sys.argv[2]
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            asyncio.run(run_worker(url, store))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
