"""One row whose maintenance fails stops neither the tick nor the claims, and operators see it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from manual_worker import (
    ManualWorker,
    expect_error,
    read_task_row,
    read_task_status,
    run_one_tick,
    run_ticks,
    submit_graph,
    submit_job,
)

from holdfast.engine import doctor
from holdfast.engine.connection import Connection
from holdfast.settings import Secret, Settings
from holdfast.testing import Clock

MINUTE = timedelta(minutes=1)


async def poison_row(conn: Connection, table: str, row_id: UUID) -> None:
    """Make every change of a row fail, whatever the reason would be in practice."""
    await conn.execute(
        f"""
        create or replace function public.refuse_change() returns trigger language plpgsql as $$
        begin
          raise exception 'poisoned';
        end $$;
        create trigger poison before update or delete on holdfast.{table} for each row
          when (old.id = '{row_id}') execute function public.refuse_change();
        """
    )


async def cure_row(conn: Connection, table: str) -> None:
    await conn.execute(f"drop trigger poison on holdfast.{table}")


async def list_problems(conn: Connection) -> list[tuple[str, str]]:
    rows = await conn.fetch("select kind, subject from holdfast.list_maintenance_problems()")
    return [(row["kind"], row["subject"]) for row in rows]


async def test_claims_continue_while_a_lease_cannot_be_reclaimed(conn: Connection, clock: Clock) -> None:
    lost = [await submit_job(conn) for _ in range(3)]
    manual_worker = ManualWorker(conn)
    await manual_worker.claim_tasks(3)
    await poison_row(conn, "tasks", lost[1])
    await clock.advance(timedelta(minutes=2))
    fresh = await submit_job(conn)
    claimed = {each.id for each in await manual_worker.claim_tasks(10)}
    assert claimed == {lost[0], lost[2], fresh}
    assert await list_problems(conn) == [("lease", str(lost[1]))]

    await cure_row(conn, "tasks")
    await clock.advance(2 * MINUTE)
    await run_ticks(conn)
    assert await list_problems(conn) == []
    assert await read_task_status(conn, lost[1]) != "running"


async def test_set_aside_row_is_tried_again_later_each_time(conn: Connection, clock: Clock) -> None:
    lost = await submit_job(conn)
    await ManualWorker(conn).claim_one_task()
    await poison_row(conn, "tasks", lost)
    await clock.advance(2 * MINUTE)
    pauses = []
    for _ in range(3):
        await run_ticks(conn)
        await run_ticks(conn)  # not tried again at once
        row = await conn.fetchrow("select *, retry_at - last_at as pause from holdfast.maintenance_problems")
        assert row is not None
        assert row["message"] == "poisoned"
        pauses.append((row["failures"], row["pause"]))
        await clock.advance(row["pause"] + MINUTE)
    assert pauses == [(1, MINUTE), (2, 2 * MINUTE), (3, 4 * MINUTE)]


async def test_due_tasks_become_ready_beside_one_that_cannot(conn: Connection, clock: Clock) -> None:
    due = [await submit_job(conn, delay_s=30) for _ in range(4)]
    await poison_row(conn, "tasks", due[2])
    await clock.advance(MINUTE)
    claimed = {each.id for each in await ManualWorker(conn).claim_tasks(10)}
    assert claimed == {due[0], due[1], due[3]}
    assert await list_problems(conn) == [("scheduled task", str(due[2]))]


async def test_tasks_expire_beside_one_that_cannot(conn: Connection, clock: Clock) -> None:
    soon = await conn.fetchval("select to_jsonb(holdfast.now() + interval '30 seconds') #>> '{}'")
    expiring = [await submit_job(conn, expires_at=soon) for _ in range(3)]
    await poison_row(conn, "tasks", expiring[0])
    await clock.advance(MINUTE)
    assert (await run_ticks(conn))["expired"] == 2
    assert [await read_task_status(conn, each) for each in expiring] == ["ready", "cancelled", "cancelled"]
    assert await list_problems(conn) == [("expired task", str(expiring[0]))]


async def test_jobs_are_archived_beside_one_that_cannot(conn: Connection, clock: Clock) -> None:
    graphs = [(await submit_graph(conn, {"name": "a"}, {"name": "b"})).id for _ in range(3)]
    manual_worker = ManualWorker(conn)
    for each in await manual_worker.claim_tasks(6):
        await manual_worker.finish_task(each)
    await poison_row(conn, "jobs", graphs[1])
    await clock.advance(2 * MINUTE)
    assert (await run_ticks(conn))["archived"] == 4
    archived = await conn.fetch("select id from holdfast.jobs where archived")
    assert {row["id"] for row in archived} == {graphs[0], graphs[2]}
    assert await list_problems(conn) == [("archiving of a job", str(graphs[1]))]


async def test_schedules_run_beside_one_with_an_unknown_time_zone(conn: Connection, clock: Clock) -> None:
    for name in ("bad", "good"):
        await conn.execute(
            'select holdfast.put_schedule($1, \'{"type": "t", "queue": "q"}\', p_cron => \'* * * * *\')', name
        )
    await conn.execute("update holdfast.schedules set timezone = 'Nowhere/Never' where name = 'bad'")
    await clock.advance(2 * MINUTE)
    (claimed,) = await ManualWorker(conn).claim_tasks(10)
    row = await read_task_row(conn, claimed.id)
    assert "good" in row["labels"]
    assert await list_problems(conn) == [("schedule", "bad")]
    error = await conn.fetchval("select last_error from holdfast.schedules where name = 'bad'")
    assert "Nowhere" in error


@pytest.fixture
async def hooks(conn: Connection) -> list[UUID]:
    """Two webhooks for ended jobs, of which the second cannot be delivered to."""
    created = [
        await conn.fetchval(
            "select holdfast.create_webhook($1, '{job.succeeded,batch.completed}',"
            " 'whsec_' || repeat('A', 44))",
            f"https://example.com/{n}",
        )
        for n in (1, 2)
    ]
    await conn.execute(
        f"""
        create function public.refuse_delivery() returns trigger language plpgsql as $$
        begin
          raise exception 'no delivery';
        end $$;
        create trigger poison before insert on holdfast.tasks for each row
          when (new.args ->> 'webhook' = '{created[1]}') execute function public.refuse_delivery();
        """
    )
    return created


async def test_jobs_end_although_a_webhook_cannot_be_notified(conn: Connection, hooks: list[UUID]) -> None:
    await submit_job(conn)
    graph = await submit_graph(conn, {"name": "a"}, {"name": "b"})
    manual_worker = ManualWorker(conn)
    for each in await manual_worker.claim_tasks(3):
        assert await manual_worker.finish_task(each) == "ok"
    batch: UUID = await conn.fetchval("select holdfast.open_batch()")
    await conn.fetchval("select holdfast.close_batch($1)", batch)
    assert await conn.fetchval("select status from holdfast.jobs where id = $1", graph.id) == "succeeded"
    deliveries = await conn.fetch(
        "select t.args ->> 'webhook' as hook, count(*) as n from holdfast.tasks t"
        " where t.args ? 'webhook' group by 1"
    )
    assert [(row["hook"], row["n"]) for row in deliveries] == [(str(hooks[0]), 3)]
    assert await list_problems(conn) == [("webhook", str(hooks[1]))]


async def test_failing_step_does_not_stop_the_tick(conn: Connection) -> None:
    await conn.execute(
        """
        create or replace function holdfast.tick_access(p_limit integer) returns integer
        language plpgsql as $$
        begin
          raise exception 'broken step';
        end $$
        """
    )
    report = await run_one_tick(conn)
    while report["more"]:
        report = await run_one_tick(conn)
    assert "tick_access" not in report
    assert {"archived", "tick_messages", "tick_webhooks", "tick_operations"} <= set(report)
    assert await list_problems(conn) == [("maintenance step", "tick_access")]


@pytest.mark.parametrize(
    ("callback", "field"),
    [
        ({}, "type"),
        ([], "callback"),
        ({"type": "t\n"}, "type"),
        ({"type": "t", "args": {"text": "x" * 300_000}}, "args"),
        ({"type": "t", "batch": str(UUID(int=0))}, "callback"),
        ({"tasks": [{"type": "t", "name": "a", "after": ["missing"]}, {"type": "t", "name": "b"}]}, "after"),
    ],
)
async def test_batch_refuses_a_callback_that_is_no_job(conn: Connection, callback: Any, field: str) -> None:
    with expect_error("HF004", field):
        await conn.execute(
            "select holdfast.open_batch(p_callback => $1)", msgspec.json.encode(callback).decode()
        )


async def test_checking_a_callback_leaves_nothing_behind(conn: Connection) -> None:
    await conn.execute("""select holdfast.open_batch(p_callback => '{"type": "t", "queue": "new"}')""")
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 0


async def test_broken_callback_is_submitted_once_it_is_repaired(conn: Connection, clock: Clock) -> None:
    batch: UUID = await conn.fetchval("select holdfast.open_batch()")
    await conn.execute("update holdfast.batches set callback = '{}' where id = $1", batch)
    await conn.fetchval("select holdfast.close_batch($1)", batch)
    assert await list_problems(conn) == [("batch callback", str(batch))]
    callback = '{"type": "t", "queue": "q"}'
    await conn.execute("update holdfast.batches set callback = $2 where id = $1", batch, callback)
    await clock.advance(2 * MINUTE)
    await run_ticks(conn)
    (claimed,) = await ManualWorker(conn).claim_tasks(10)
    assert await conn.fetchval("select callback_job from holdfast.batches") == claimed.id
    assert await list_problems(conn) == []


async def test_doctor_shows_maintenance_problems(conn: Connection, url: Secret, settings: Settings) -> None:
    async def find() -> doctor.DoctorFinding:
        findings = await doctor.run_doctor_checks(url, settings)
        return next(each for each in findings if each.check == "maintenance")

    assert (await find()).level == "ok"
    await conn.execute(
        "select holdfast.record_maintenance_problem('batch callback', 'x', 'type is missing', holdfast.now())"
    )
    finding = await find()
    assert finding.level == "warn"
    assert "batch callback x: type is missing" in finding.text
