"""Processes that claim, save and finish, made by fork so that hundreds can be killed in a minute.

    python files_nursery.py URL STORE

Each line on standard input makes one process; its number is answered. They do what a worker does with one
task after another, with the worker's own files, contexts and executor, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from files_app import saves

from holdfast.engine import leases
from holdfast.engine.connection import Database
from holdfast.engine.leases import Claimed, Outcome
from holdfast.settings import Secret, Settings
from holdfast.worker.context import Context
from holdfast.worker.executor import execute
from holdfast.worker.files import Files
from holdfast.worker.threads import Threads

SLOTS = 3


async def live(url: Secret, store: str) -> None:
    settings = Settings(storage_url=Secret(store), statement_cache="on", home=Path(store).parent)
    name, done = f"lean-{os.getpid()}", list[Outcome]()
    running: set[asyncio.Task[Outcome]] = set()
    async with Database(url, settings) as database:
        files = Files(database)
        while True:
            async with database.connection() as connection:
                answer = await leases.exchange(
                    connection, worker=name, outcomes=done, slots=SLOTS - len(running), queues=["files"]
                )
            running |= {asyncio.create_task(perform(task, files)) for task in answer.tasks}
            ended, running = await asyncio.wait(running, timeout=0.02) if running else (set(), running)
            done = [each.result() for each in ended]
            if not running and not done:
                await asyncio.sleep(0.02)


async def perform(claimed: Claimed, files: Files) -> Outcome:
    context = Context(
        task_id=str(claimed.id),
        job_id=str(claimed.id),
        attempt=claimed.attempt,
        deadline=datetime.now(UTC) + timedelta(minutes=5),
        lease=claimed,
        files=files,
    )
    verdict = await execute(saves, claimed.args, {}, context, Threads(1))
    return Outcome(
        id=claimed.id, attempt=claimed.attempt, nonce=claimed.nonce, kind=verdict.kind, body=verdict.body
    )


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    url, store = Secret(sys.argv[1]), sys.argv[2]
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            asyncio.run(live(url, store))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
