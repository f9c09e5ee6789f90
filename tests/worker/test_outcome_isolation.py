"""One outcome that the database refuses does not keep the others, and is recorded with its reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from manual_worker import ManualWorker, build_outcome, read_task_row, submit_job

from holdfast import telemetry
from holdfast.definitions.payloads import encode_payload
from holdfast.definitions.tasks import task
from holdfast.engine import jobs
from holdfast.engine.connection import Connection, Database
from holdfast.engine.leases import Lease, LeasedTask, Outcome
from holdfast.errors import DatabaseUnavailableError
from holdfast.testing import wait_until
from holdfast.worker import outcomes as outcomes_module
from holdfast.worker.outbox import Outbox
from holdfast.worker.outcome_isolation import OutcomeIsolator
from holdfast.worker.runtime import WorkerRuntime

NUL_JSON = b'"a\\u0000b"'  # JSON that PostgreSQL cannot store as jsonb
Events = list[tuple[str, dict[str, Any]]]


@task(queue="q", name="echo")
async def echo(text: str = "") -> str:
    return text


@pytest.fixture
def events() -> Generator[Events]:
    collected: Events = []
    with telemetry.subscription(lambda name, fields: collected.append((name, fields))):
        yield collected


@asynccontextmanager
async def run_worker(db: Database) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    running = asyncio.create_task(WorkerRuntime(db, {echo.name: echo}).run(stop))
    try:
        yield
    finally:
        stop.set()
        await running


def list_events(events: Events, name: str, task_id: UUID) -> list[dict[str, Any]]:
    return [fields for event, fields in events if event == name and fields["task"] == task_id]


async def wait_until_ended(conn: Connection, *ids: UUID) -> None:
    async def ended() -> bool:
        return all([(await read_task_row(conn, each))["finished_at"] for each in ids])

    await wait_until(ended)


async def open_batch_with_callback(conn: Connection, callback: str) -> UUID:
    """Open a batch whose callback no check has seen, as an older version may have stored it."""
    batch: UUID = await conn.fetchval("select holdfast.open_batch()")
    await conn.execute("update holdfast.batches set callback = $2::jsonb where id = $1", batch, callback)
    return batch


async def test_broken_batch_callback_does_not_change_the_outcome_of_jobs(
    db: Database, conn: Connection, events: Events
) -> None:
    batch = await open_batch_with_callback(conn, "{}")
    member = await submit_job(conn, type="echo", batch=str(batch))
    other = await submit_job(conn, type="echo")
    await conn.fetchval("select holdfast.close_batch($1)", batch)
    async with run_worker(db):
        await wait_until_ended(conn, member, other)
        later = await submit_job(conn, type="echo")
        await wait_until_ended(conn, later)
    assert {(await read_task_row(conn, each))["status"] for each in (member, other, later)} == {"succeeded"}
    (problem,) = await conn.fetch("select * from holdfast.list_maintenance_problems()")
    assert (problem["kind"], problem["subject"]) == ("batch callback", str(batch))
    assert await conn.fetchval("select finished_at is not null from holdfast.batches where id = $1", batch)
    assert not [name for name, _ in events if name == "database.connection_failed"]


async def test_result_that_cannot_be_stored_fails_its_task_only(
    db: Database, conn: Connection, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        outcomes_module,
        "encode_payload",
        lambda value, what: NUL_JSON if value == "bad" else encode_payload(value, what=what),
    )
    bad = await submit_job(conn, type="echo", args={"text": "bad"})
    good = [await submit_job(conn, type="echo", args={"text": "good"}) for _ in range(7)]
    async with run_worker(db):
        await wait_until_ended(conn, bad, *good)
    assert {(await read_task_row(conn, each))["status"] for each in good} == {"succeeded"}
    row = await read_task_row(conn, bad)
    assert row["status"] == "failed"
    assert '"OutcomeRefused"' in row["error"]
    (refused,) = list_events(events, "outcome.refused", bad)
    assert "Unicode" in refused["reason"]
    assert (refused["attempt"], refused["outcome"]) == (1, "succeed")
    assert not list_events(events, "task.finished", bad)
    assert len([name for name, _ in events if name == "task.finished"]) == len(good)
    assert not {name for name, _ in events} & {"database.connection_failed", "worker.service_failed"}


class IsolationCase:
    """Claimed tasks, and an isolator that sends their outcomes."""

    def __init__(self, db: Database, tasks: list[LeasedTask]) -> None:
        self.tasks = tasks
        self.outbox = Outbox()
        self.ended: list[UUID] = []
        self.isolator = OutcomeIsolator(db, "hand", self.outbox, self.end_leases)

    def end_leases(self, ended: Any, _: float) -> None:
        self.ended += [lease.id for lease in ended]

    def put(self, task_to_end: LeasedTask, kind: Any = "succeed", body: bytes | None = None) -> None:
        lease = Lease(id=task_to_end.id, attempt=task_to_end.attempt, nonce=task_to_end.nonce)
        self.outbox.put_outcome(
            Outcome(id=lease.id, attempt=lease.attempt, nonce=lease.nonce, kind=kind, body=body),
            {"task": lease.id, "outcome": kind},
        )


@pytest.fixture
async def case(db: Database, conn: Connection) -> IsolationCase:
    for _ in range(9):
        await submit_job(conn)
    return IsolationCase(db, await ManualWorker(conn).claim_tasks(9))


async def test_only_refused_outcomes_are_replaced(
    case: IsolationCase, conn: Connection, events: Events
) -> None:
    bodies: dict[int, bytes] = {2: NUL_JSON, 5: b"{", 8: b"\xff"}
    for number, each in enumerate(case.tasks):
        case.put(each, body=bodies.get(number, b'"good"'))
    await case.isolator.send_outcomes_apart()
    rows = [await read_task_row(conn, each.id) for each in case.tasks]
    assert [row["status"] == "failed" for row in rows] == [number in bodies for number in range(9)]
    assert {rows[number]["attempt"] for number in bodies} == {1}
    assert (len(case.outbox), sorted(case.ended)) == (0, sorted(each.id for each in case.tasks))
    assert len([1 for name, _ in events if name == "outcome.refused"]) == len(bodies)


async def test_refused_failure_keeps_its_retries(case: IsolationCase, conn: Connection) -> None:
    case.put(case.tasks[0], "fail", b'{"type": "E", "message": "a\\u0000b"}')
    await case.isolator.send_outcomes_apart()
    row = await read_task_row(conn, case.tasks[0].id)
    assert (row["status"], row["failures"]) == ("scheduled", 1)


async def test_stale_outcome_is_one_warning_and_no_success(
    case: IsolationCase, conn: Connection, events: Events
) -> None:
    await jobs.cancel_job(conn, case.tasks[0].id)
    case.put(case.tasks[0])
    case.put(case.tasks[1])
    await case.isolator.send_outcomes_apart()
    assert [name for name, _ in events if name != "tasks.claimed"] == ["outcome.refused", "task.finished"]
    assert events[0][1]["task"] == case.tasks[0].id


async def test_outcome_whose_failure_is_refused_too_is_given_up(
    case: IsolationCase, conn: Connection, events: Events
) -> None:
    await poison_task(conn, case.tasks[0].id)
    for each in case.tasks[:3]:
        case.put(each)
    case.put(case.tasks[3], "release")
    await case.isolator.send_outcomes_apart()
    assert len(case.outbox) == 0
    assert (await read_task_row(conn, case.tasks[0].id))["status"] == "running"
    assert [(await read_task_row(conn, each.id))["status"] for each in case.tasks[1:4]] == [
        "succeeded", "succeeded", "ready",
    ]  # fmt: skip
    assert {fields["task"] for name, fields in events if name == "outcome.refused"} == {case.tasks[0].id}


async def test_connection_error_keeps_all_outcomes(
    case: IsolationCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in case.tasks:
        case.put(each, body=NUL_JSON)
    before = [build_outcome(each).id for each in case.tasks]

    async def fail(_: list[Outcome]) -> Any:
        raise DatabaseUnavailableError("Gone.")

    monkeypatch.setattr(case.isolator, "_finish", fail)
    with pytest.raises(DatabaseUnavailableError):
        await case.isolator.send_outcomes_apart()
    assert [outcome.id for outcome in case.outbox.take_unsent_outcomes()] == before


async def poison_task(conn: Connection, task_id: UUID) -> None:
    """Make every change of a task fail, whatever the reason would be in practice."""
    await conn.execute(
        f"""
        create function public.refuse_change() returns trigger language plpgsql as $$
        begin
          raise exception 'poisoned';
        end $$;
        create trigger poison before update or delete on holdfast.tasks for each row
          when (old.id = '{task_id}') execute function public.refuse_change();
        """
    )
