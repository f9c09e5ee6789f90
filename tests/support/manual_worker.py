"""A worker for engine tests that claims, renews and finishes tasks exactly when the test calls it."""

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
from holdfast.engine.leases import LeasedTask, Outcome, OutcomeKind
from holdfast.testing import wait_until

QUEUE = "q"


class ManualWorker:
    """A worker whose claims and outcomes the test triggers. It keeps its cursors between claims."""

    def __init__(self, conn: Connection, name: str = "hand", queues: Sequence[str] = (QUEUE,)) -> None:
        self.conn = conn
        self.name = name
        self.queues = queues
        self.cursors: str | None = None
        self.next_s: float | None = None

    async def claim_tasks(self, slots: int = 1, types: Sequence[str] | None = None) -> list[LeasedTask]:
        return list((await self.finish_and_claim([], slots=slots, types=types)).tasks)

    async def claim_one_task(self) -> LeasedTask:
        (task,) = await self.claim_tasks(1)
        return task

    async def finish_and_claim(
        self, outcomes: Sequence[Outcome], *, slots: int = 0, types: Sequence[str] | None = None
    ) -> leases.ClaimResponse:
        answer = await leases.finish_and_claim(
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

    async def finish_task(self, task: LeasedTask, kind: OutcomeKind = "succeed", body: object = None) -> str:
        answers = (await self.finish_and_claim([build_outcome(task, kind, body)])).answers
        return str(answers[0])


def build_outcome(task: LeasedTask, kind: OutcomeKind = "succeed", body: object = None) -> Outcome:
    text = None if body is None else msgspec.json.encode(body)
    return Outcome(id=task.id, attempt=task.attempt, nonce=task.nonce, kind=kind, body=text)


async def submit_job(conn: Connection, **job: Any) -> UUID:
    """Submit a job of one task to the queue of the test, unless the keywords say otherwise."""
    return (await jobs.submit(conn, {"type": "t", "queue": QUEUE, **job})).id


async def submit_graph(conn: Connection, *tasks: dict[str, Any], **job: Any) -> jobs.SubmitResult:
    return await jobs.submit(
        conn, {"type": "g", "queue": QUEUE, **job, "tasks": [{"type": "t", **task} for task in tasks]}
    )


async def read_task_row(conn: Connection, task_id: UUID) -> dict[str, Any]:
    row = await conn.fetchrow("select * from holdfast.all_tasks where id = $1", task_id)
    assert row is not None, f"no task {task_id}"
    return dict(row)


async def read_task_status(conn: Connection, task_id: UUID) -> str:
    return str((await read_task_row(conn, task_id))["status"])


async def read_job(conn: Connection, job_id: UUID) -> dict[str, Any]:
    job = await jobs.get_job(conn, job_id)
    assert job is not None, f"no job {job_id}"
    return job


async def read_task_statuses(conn: Connection, job_id: UUID) -> dict[str, str]:
    return {task["name"]: task["status"] for task in (await read_job(conn, job_id))["tasks"]}


@contextmanager
def expect_error(code: str, field: str | None = None) -> Generator[None]:
    """Expect that the statement inside raises this SQLSTATE and names this argument."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        yield
    assert caught.value.sqlstate == code, f"{caught.value.sqlstate}: {caught.value}"
    assert field is None or getattr(caught.value, "column_name", None) == field


async def wait_until_blocked_or_done(watch: Connection, pid: int, running: asyncio.Task[Any]) -> bool:
    """Wait until a statement of another connection has ended or waits for a lock. Return True if it waits."""

    async def read_state() -> object:
        if running.done():
            return "done"
        return await watch.fetchval(
            "select 'blocked' from pg_stat_activity where pid = $1 and wait_event_type = 'Lock'", pid
        )

    return bool(await wait_until(read_state, what="a blocked or finished statement") == "blocked")


async def run_one_tick(conn: Connection, limit: int = 1000) -> dict[str, Any]:
    return dict(msgspec.json.decode(await conn.fetchval("select holdfast.tick($1)", limit)))


async def run_ticks(conn: Connection, limit: int = 1000) -> dict[str, int]:
    """Run maintenance until nothing is left to do now. Return the sums of what all runs did."""
    total: Counter[str] = Counter()
    while True:
        report = await run_one_tick(conn, limit)
        total.update({name: value for name, value in report.items() if type(value) is int})
        if not report["more"]:
            return total
