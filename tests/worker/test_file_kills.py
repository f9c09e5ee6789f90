"""kill -9 between upload and commit: no row without bytes, no file of a loser, no orphan after the sweep.

Two ways: real workers, which take seconds to start, and lean processes made by fork, of which hundreds can be
killed. `make campaign-files` does each five hundred times; the suite a few dozen.
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
from files_app import PHASES, saves
from worker_processes import Workers

from holdfast import Client
from holdfast.engine.connection import Connection
from holdfast.settings import Secret, Settings
from holdfast.testing import Clock, wait_until

NURSERY = Path(__file__).parent.parent / "support" / "files_nursery.py"
APP = Path(__file__).parent.parent / "support" / "files_app.py"
KILLS = int(os.environ.get("HOLDFAST_FILE_KILLS", "8"))
LEAN_KILLS = int(os.environ.get("HOLDFAST_FILE_KILLS", "40"))
AT_ONCE, PROCESSES = 3, 2


@pytest.mark.timeout(180 + 15 * KILLS)
async def test_kills_between_upload_and_commit(
    workers: Workers,
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
    chance = random.Random(seed)
    killed = dict.fromkeys(PHASES, 0)
    async with Client(url.reveal(), settings=replace(settings, storage_url=Secret(str(store)))) as client:
        for number in range(KILLS):
            await crew(workers, PROCESSES)
            await client.submit_many([saves(f"{number}.{each}") for each in range(AT_ONCE)])
            phase = chance.choice(PHASES)
            await kill_at(workers, phase, chance.uniform(0, 0.02))
            killed[phase] += 1
            await clock.advance(timedelta(seconds=21))  # the leases of the dead are over
        await crew(workers, PROCESSES)
        await wait_until(
            lambda: ended(conn, clock), within=timedelta(seconds=110 + 3 * KILLS), what="the end of all tasks"
        )
        await stop(workers)
        found = await check(conn, store)
        await clock.advance(timedelta(minutes=2))
        await client.files.sweep()
    assert {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()} == found
    assert await check(conn, store) == found
    print(f"seed {seed}: killed {killed}; {len(found)} files of {KILLS * AT_ONCE} tasks are visible")  # noqa: T201


@pytest.mark.timeout(300 + 6 * LEAN_KILLS)
async def test_kills_of_lean_processes(
    workers: Workers,
    url: Secret,
    settings: Settings,
    conn: Connection,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = workers.folder / "store"
    monkeypatch.setenv("RECORD", str(workers.record))
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    killed = dict.fromkeys(PHASES, 0)
    nursery = await asyncio.create_subprocess_exec(
        sys.executable, str(NURSERY), url.reveal(), str(store),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    living = {await born(nursery) for _ in range(PROCESSES)}
    try:
        async with Client(url.reveal(), settings=replace(settings, storage_url=Secret(str(store)))) as client:
            for number in range(LEAN_KILLS):
                await client.submit_many([saves(f"{number}.{each}") for each in range(AT_ONCE)])
                phase = chance.choice(PHASES)
                living.remove(await kill_at(workers, phase, chance.uniform(0, 0.02)))
                killed[phase] += 1
                living.add(await born(nursery))
                await clock.advance(timedelta(seconds=21))
            living |= {await born(nursery) for _ in range(2)}
            patience = timedelta(seconds=150 + LEAN_KILLS)
            await wait_until(lambda: ended(conn, clock), within=patience, what="the end of all tasks")
            found = await check(conn, store)
            await clock.advance(timedelta(minutes=2))
            await client.files.sweep()
    finally:
        for pid in living:
            os.kill(pid, signal.SIGKILL)
        nursery.kill()
        await nursery.wait()
    assert {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()} == found
    assert await check(conn, store) == found
    print(f"seed {seed}: killed {killed}; {len(found)} files of {LEAN_KILLS * AT_ONCE} tasks are visible")  # noqa: T201


async def born(nursery: asyncio.subprocess.Process) -> int:
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    nursery.stdin.write(b"one more\n")
    return int(await nursery.stdout.readline())


async def crew(workers: Workers, count: int) -> None:
    """So many living workers."""
    for _ in range(count - sum(process.returncode is None for process in workers.started)):
        await workers.start("--concurrency", str(AT_ONCE))


async def stop(workers: Workers) -> None:
    for process in workers.started:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.wait()


async def kill_at(workers: Workers, phase: str, later: float) -> int:
    """kill -9 of the first process whose task comes to that phase from now on, or a moment later."""
    seen = len(workers.lines())

    def comes() -> str | None:
        return next((line[0] for line in workers.lines()[seen:] if line[1] == phase), None)

    pid = int(await wait_until(comes, within=timedelta(seconds=90), what=f"a task that {phase}"))
    await asyncio.sleep(later)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for process in workers.started:
        if process.pid == pid:
            await process.wait()
    return pid


async def ended(conn: Connection, clock: Clock) -> bool:
    await clock.advance(timedelta(milliseconds=200))
    return not await conn.fetchval("select count(*) from holdfast.tasks")


async def check(conn: Connection, store: Path) -> set[str]:
    """Every visible file has its bytes and is of the attempt that succeeded; every success has its files."""
    rows = await conn.fetch(
        "select f.key, f.size, f.sha256, f.attempt, h.status, h.attempt as winner"
        " from holdfast.artifacts f join holdfast.history h on h.id = f.task_id where f.status = 'visible'"
    )
    for row in rows:
        content = (store / row["key"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (row["size"], row["sha256"])
        assert (row["status"], row["attempt"]) == ("succeeded", row["winner"])
    succeeded = await conn.fetchval("select count(*) from holdfast.history where status = 'succeeded'")
    assert len(rows) == 2 * succeeded
    return {row["key"] for row in rows}
