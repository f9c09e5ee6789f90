"""A worker by hand: claims, beats and finishes exactly when a test says so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from holdfast.engine import jobs, leases
from holdfast.engine.connection import Connection
from holdfast.engine.leases import Claimed, Outcome, OutcomeKind
from holdfast.testing import eventually

QUEUE = "q"


class Hand:
    """Remembers its cursors between claims, as a worker does."""

    def __init__(self, conn: Connection, name: str = "hand", queues: Sequence[str] = (QUEUE,)) -> None:
        self.conn = conn
        self.name = name
        self.queues = queues
        self.cursors: str | None = None
        self.next_s: float | None = None

    async def take(self, slots: int = 1, types: Sequence[str] | None = None) -> list[Claimed]:
        return list((await self.exchange([], slots=slots, types=types)).tasks)

    async def one(self) -> Claimed:
        (task,) = await self.take(1)
        return task

    async def exchange(
        self, outcomes: Sequence[Outcome], *, slots: int = 0, types: Sequence[str] | None = None
    ) -> leases.Exchange:
        answer = await leases.exchange(
            self.conn,
            worker=self.name,
            outcomes=outcomes,
            slots=slots,
            queues=self.queues,
            types=types,
            cursors=self.cursors,
        )
        self.cursors = answer.cursors
        self.next_s = answer.next_s
        return answer

    async def finish(self, task: Claimed, kind: OutcomeKind = "succeed", body: object = None) -> str:
        answers = (await self.exchange([outcome(task, kind, body)])).answers
        return str(answers[0])


def outcome(task: Claimed, kind: OutcomeKind = "succeed", body: object = None) -> Outcome:
    text = None if body is None else msgspec.json.encode(body)
    return Outcome(id=task.id, attempt=task.attempt, nonce=task.nonce, kind=kind, body=text)


async def submit(conn: Connection, **job: Any) -> UUID:
    """A job of one task on the test's queue, unless the keywords say otherwise."""
    return (await jobs.submit(conn, {"type": "t", "queue": QUEUE, **job})).id


async def graph(conn: Connection, *tasks: dict[str, Any], **job: Any) -> jobs.Submitted:
    return await jobs.submit(
        conn, {"type": "g", "queue": QUEUE, **job, "tasks": [{"type": "t", **task} for task in tasks]}
    )


async def task_row(conn: Connection, task_id: UUID) -> dict[str, Any]:
    row = await conn.fetchrow("select * from holdfast.all_tasks where id = $1", task_id)
    assert row is not None, f"no task {task_id}"
    return dict(row)


async def status(conn: Connection, task_id: UUID) -> str:
    return str((await task_row(conn, task_id))["status"])


async def job(conn: Connection, job_id: UUID) -> dict[str, Any]:
    found = await jobs.get_job(conn, job_id)
    assert found is not None, f"no job {job_id}"
    return found


async def tasks_by_name(conn: Connection, job_id: UUID) -> dict[str, str]:
    return {task["name"]: task["status"] for task in (await job(conn, job_id))["tasks"]}


@contextmanager
def refused(code: str, field: str | None = None) -> Generator[None]:
    """The statement inside is refused with this SQLSTATE, naming this argument."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        yield
    assert caught.value.sqlstate == code, f"{caught.value.sqlstate}: {caught.value}"
    assert field is None or getattr(caught.value, "column_name", None) == field


async def blocked_or_done(watch: Connection, pid: int, running: asyncio.Task[Any]) -> bool:
    """Waits until a statement of another connection has ended or waits for a lock; True when it waits."""

    async def settled() -> object:
        if running.done():
            return "done"
        return await watch.fetchval(
            "select 'blocked' from pg_stat_activity where pid = $1 and wait_event_type = 'Lock'", pid
        )

    return bool(await eventually(settled, what="a blocked or finished statement") == "blocked")


async def one_tick(conn: Connection, limit: int = 1000) -> dict[str, Any]:
    return dict(msgspec.json.decode(await conn.fetchval("select holdfast.tick($1)", limit)))


async def tick(conn: Connection, limit: int = 1000) -> dict[str, int]:
    """Ticks until there is nothing left to do now; what all of them did."""
    total: Counter[str] = Counter()
    while True:
        did = await one_tick(conn, limit)
        total.update({name: value for name, value in did.items() if type(value) is int})
        if not did["more"]:
            return total
