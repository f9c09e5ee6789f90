"""From the previous schema to this one under load: workers, submitters and limits go on, and nothing is lost.

`schema_0002/` holds the functions as they were with migrations 0001 and 0002. The workers here are written
against the SQL contract of that time and are not told that anything happens.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from hands import tick

from holdfast.engine import install, schema
from holdfast.engine.connection import Connection
from holdfast.engine.schema import FunctionFile, SchemaFiles
from holdfast.settings import Secret, Settings

FROZEN = Path(__file__).parent / "schema_0002"
# What may hit a call while tables and functions are replaced; a caller tries again, as after a deadlock.
PASSING = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InvalidCachedStatementError,
)


def previous() -> SchemaFiles:
    files = [
        FunctionFile(path.name, path.read_text(encoding="utf-8")) for path in sorted(FROZEN.glob("*.sql"))
    ]
    files.sort(key=lambda file: (file.file != "access.sql", file.file))
    return SchemaFiles(schema.packaged().migrations[:2], tuple(files))


class OldWorker:
    """Claims and finishes through `exchange`, and remembers whatever it has handed in."""

    def __init__(self, url: Secret, name: str) -> None:
        self._url = url
        self._name = name
        self.finished: Counter[UUID] = Counter()
        self.troubles = 0

    async def run(self, stop: asyncio.Event) -> None:
        connection = await asyncpg.connect(self._url.reveal())
        held: list[tuple[UUID, int, int]] = []
        cursors = "{}"
        while held or not stop.is_set():
            try:
                rows = await self._exchange(connection, held, 0 if stop.is_set() else 20, cursors)
            except PASSING:
                self.troubles += 1
                continue
            self.finished.update(task for task, _, _ in held)
            (header,) = (json.loads(row["header"]) for row in rows if row["id"] is None)
            assert header.get("answers") is None, "an outcome came too late"
            cursors = json.dumps(header["cursors"])
            held = [(row["id"], row["attempt"], header["nonce"]) for row in rows if row["id"] is not None]
        await connection.close()

    async def _exchange(self, connection: Any, held: list[Any], slots: int, cursors: str) -> list[Any]:
        rows: list[Any] = await connection.fetch(
            "select * from holdfast.exchange(p_worker => $1, p_ids => $2, p_attempts => $3, p_nonces => $4, "
            "p_kinds => $5, p_bodies => $6, p_slots => $7, p_queues => '{q}', p_cursors => $8)",
            self._name,
            [task for task, _, _ in held],
            [attempt for _, attempt, _ in held],
            [nonce for _, _, nonce in held],
            ["succeed"] * len(held),
            ["1"] * len(held),
            slots,
            cursors,
        )
        return rows


async def submit_until(url: Secret, stop: asyncio.Event) -> list[UUID]:
    """Jobs of every kind; their ids."""
    connection = await asyncpg.connect(url.reveal())
    made: list[UUID] = []
    number = 0
    while not stop.is_set():
        number += 1
        key = {"limit_key": f"k{number % 5}"} if number % 3 else {}
        body: Any = {"type": "t", "queue": "q", "owner": f"o{number % 2}", "key": f"job {number}", **key}
        if number % 7 == 0:
            parts = [{"type": "t", "name": "a"}, {"type": "t", "name": "b", "after": ["a"]}]
            body = {**body, "type": "g", "tasks": parts}
        try:
            answer = await connection.fetchval("select holdfast.submit($1)", json.dumps(body))
        except PASSING:
            number -= 1  # the same body under the same key again
            continue
        made.append(UUID(json.loads(answer)["id"]))
    await connection.close()
    return made


@pytest.mark.timeout(300)
async def test_the_previous_schema_is_upgraded_under_load(empty_url: Secret, settings: Settings) -> None:
    await install.migrate(empty_url, settings, files=previous())
    conn: Connection = await asyncpg.connect(empty_url.reveal())
    await conn.execute(
        "select holdfast.put_limit('each', p_queue => 'q', p_per_key => true, p_max_running => 3)"
    )
    stop_submitting, stop_working = asyncio.Event(), asyncio.Event()
    workers = [OldWorker(empty_url, f"old-{n}") for n in range(3)]
    working = [asyncio.create_task(worker.run(stop_working)) for worker in workers]
    submitting = asyncio.create_task(submit_until(empty_url, stop_submitting))
    await _more(conn, 300)
    applied = await install.migrate(empty_url, settings)
    assert applied.versions == tuple(m.version for m in schema.packaged().migrations[2:])
    await _more(conn, 300)
    stop_submitting.set()
    made = await submitting
    while await conn.fetchval(
        "select count(*) from holdfast.tasks where status in ('waiting', 'ready', 'running')"
    ):
        await asyncio.sleep(0.05)
    stop_working.set()
    await asyncio.gather(*working)
    await _nothing_lost(conn, made, workers)
    await conn.close()


async def _more(conn: Connection, count: int) -> None:
    """Until so many more jobs have ended."""
    ended = "select count(*) from holdfast.history"
    goal = await conn.fetchval(ended) + count
    while await conn.fetchval(ended) < goal:
        await asyncio.sleep(0.05)


async def _nothing_lost(conn: Connection, made: list[UUID], workers: list[OldWorker]) -> None:
    assert len(set(made)) == len(made)
    states = Counter(await _states(conn, made))
    assert states == {"succeeded": len(made)}
    finished = sum((worker.finished for worker in workers), Counter[UUID]())
    assert set(finished.values()) == {1}, "a task was done twice"
    tasks = await conn.fetchval("select count(*) from holdfast.all_tasks where status = 'succeeded'")
    assert sum(finished.values()) == tasks
    assert not await conn.fetch("select * from holdfast.check_limits() where running <> leases")
    await tick(conn)
    await install.verify(conn)


async def _states(conn: Connection, made: list[UUID]) -> list[str]:
    rows = await conn.fetch("select holdfast.job_status(j) as status from unnest($1::uuid[]) as j", made)
    return [row["status"] for row in rows]
