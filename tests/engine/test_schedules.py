"""Schedules: one job per time, missed times, and changes."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import pytest
from manual_worker import ManualWorker, expect_error, run_ticks

from holdfast.engine import jobs, schedules
from holdfast.engine.connection import Connection
from holdfast.errors import HoldfastError
from holdfast.model import StoredSchedule
from holdfast.settings import Secret
from holdfast.testing import Clock

HOUR = timedelta(hours=1)
SCHEDULED_JOB = {"type": "t", "queue": "q"}


async def put_schedule(conn: Connection, name: str = "s", **times: Any) -> StoredSchedule:
    return await schedules.put_schedule(conn, {"name": name, "job": SCHEDULED_JOB, **times})


async def submit_due_schedules(conn: Connection) -> int:
    return int(await conn.fetchval("select holdfast.tick_schedules(1000)"))


async def list_submitted_jobs(conn: Connection, name: str = "s") -> list[str]:
    """The times that jobs were made for, oldest first."""
    rows = await jobs.list_jobs(conn, {"labels": {"schedule": name}}, limit=1000)
    return sorted(row["labels"]["schedule_at"] for row in rows)


async def test_each_scheduled_time_creates_one_job(conn: Connection, clock: Clock) -> None:
    stored = await put_schedule(conn, cron="@hourly")
    assert await submit_due_schedules(conn) == 0
    for _ in range(3):
        await clock.advance(HOUR)
        assert await submit_due_schedules(conn) == 1
        assert await submit_due_schedules(conn) == 0
    times = await list_submitted_jobs(conn)
    assert len(set(times)) == 3
    assert stored.next_at is not None
    assert times[0] == stored.next_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    (task,) = await ManualWorker(conn).claim_tasks(1)
    result = await schedules.get_schedule(conn, "s")
    assert result.last_job is not None
    assert task.type == "t"
    assert result.last_error is None


async def test_concurrent_ticks_submit_one_job_per_scheduled_time(
    url: Secret, conn: Connection, clock: Clock
) -> None:
    for n in range(20):
        await put_schedule(conn, f"s{n}", cron="*/5 * * * *")
    connections = await asyncio.gather(*(asyncpg.connect(url.reveal()) for _ in range(8)))
    for _ in range(3):
        await clock.advance(timedelta(minutes=5))
        counts = await asyncio.gather(
            *(c.fetchval("select holdfast.tick_schedules(1000)") for c in connections)
        )
        assert sum(counts) == 20
    await asyncio.gather(*(c.close() for c in connections))
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 60


async def test_a_restored_time_makes_no_second_job(conn: Connection, clock: Clock) -> None:
    before = await put_schedule(conn, cron="@hourly")
    await clock.advance(HOUR)
    assert await submit_due_schedules(conn) == 1
    await conn.execute("update holdfast.schedules set next_at = $1", before.next_at)
    await submit_due_schedules(conn)
    assert len(await list_submitted_jobs(conn)) == 1


@pytest.mark.parametrize(("missed", "count"), [("coalesce", 1), ("skip", 0), ("catch_up", 5)])
async def test_missed_times_follow_the_missed_policy(
    conn: Connection, clock: Clock, missed: str, count: int
) -> None:
    first = await put_schedule(conn, every_s=3600, missed=missed)
    assert first.next_at is not None
    await clock.advance(5 * HOUR + timedelta(minutes=10))
    assert await submit_due_schedules(conn) == count
    assert await submit_due_schedules(conn) == 0
    times = [datetime.fromisoformat(text) for text in await list_submitted_jobs(conn)]
    due = [(first.next_at + n * HOUR).replace(microsecond=0) for n in range(5)]
    assert times == due[5 - count :]
    await clock.advance(HOUR - timedelta(minutes=10, seconds=-5))
    assert await submit_due_schedules(conn) == 1  # and on it goes


async def test_catching_up_is_bounded_and_takes_the_newest(conn: Connection, clock: Clock) -> None:
    await put_schedule(conn, cron="* * * * *", missed="catch_up", max_catch_up=7)
    await clock.advance(timedelta(days=400))
    assert await submit_due_schedules(conn) == 7
    times = [datetime.fromisoformat(text) for text in await list_submitted_jobs(conn)]
    assert [b - a for a, b in itertools.pairwise(times)] == [timedelta(minutes=1)] * 6
    now = await conn.fetchval("select holdfast.now()")
    assert now - times[-1] < timedelta(minutes=2)


async def test_pause_resume_run_now_delete(conn: Connection, clock: Clock) -> None:
    await put_schedule(conn, cron="@hourly")
    assert await schedules.pause_schedule(conn, "s", "ada")
    assert not await schedules.pause_schedule(conn, "s")
    paused = await schedules.get_schedule(conn, "s")
    assert (paused.paused_by, paused.next_at) == ("ada", None)
    await clock.advance(3 * HOUR)
    assert await submit_due_schedules(conn) == 0
    ran = await schedules.run_schedule(conn, "s")
    again = await schedules.run_schedule(conn, "s")
    assert ran.id != again.id
    assert await schedules.resume_schedule(conn, "s")
    assert not await schedules.resume_schedule(conn, "s")
    assert await submit_due_schedules(conn) == 0
    await clock.advance(HOUR)
    assert await submit_due_schedules(conn) == 1
    assert await schedules.delete_schedule(conn, "s")
    assert not await schedules.delete_schedule(conn, "s")
    with expect_error("HF002", "name"):
        await schedules.run_schedule(conn, "s")


async def test_a_change_of_the_job_keeps_the_time_and_a_change_of_times_does_not(conn: Connection) -> None:
    first = await put_schedule(conn, every_s=3600)
    same = await put_schedule(conn, every_s=3600)
    job = await schedules.put_schedule(conn, {"name": "s", "job": {"type": "other"}, "every_s": 3600})
    times = await put_schedule(conn, every_s=60)
    assert (same.change, job.change, times.change) == ("unchanged", "changed", "changed")
    assert first.next_at == same.next_at == job.next_at != times.next_at
    with expect_error("HF003", "name"):
        await schedules.create_schedule(conn, {"name": "s", "job": SCHEDULED_JOB, "cron": "@daily"})


async def test_a_run_with_a_unique_key_is_skipped_while_the_last_is_unfinished(
    conn: Connection, clock: Clock
) -> None:
    job = {**SCHEDULED_JOB, "unique_key": "only one"}
    await schedules.put_schedule(conn, {"name": "s", "job": job, "cron": "@hourly"})
    for _ in range(3):
        await clock.advance(HOUR)
        await submit_due_schedules(conn)
    manual_worker = ManualWorker(conn)
    (task,) = await manual_worker.claim_tasks(9)
    await manual_worker.finish_task(task)
    await clock.advance(HOUR)
    await submit_due_schedules(conn)
    assert len(await manual_worker.claim_tasks(9)) == 1


async def test_a_failed_scheduled_submit_is_recorded_and_the_schedule_continues(
    conn: Connection, clock: Clock
) -> None:
    bad_job = {"type": "t", "priority": 1000}
    with expect_error("HF004", "priority"):
        await schedules.put_schedule(conn, {"name": "bad", "job": bad_job, "cron": "@hourly"})
    # A job can become invalid after it was stored.
    await put_schedule(conn, "bad", cron="@hourly")
    await conn.execute(
        "update holdfast.schedules set job = $1 where name = 'bad'", msgspec.json.encode(bad_job).decode()
    )
    await put_schedule(conn, "good", cron="@hourly")
    await clock.advance(HOUR)
    assert await submit_due_schedules(conn) == 1
    bad = await schedules.get_schedule(conn, "bad")
    assert "priority" in (bad.last_error or "")
    assert bad.next_at is not None
    assert bad.next_at > await conn.fetchval("select holdfast.now()")


async def test_a_locked_unique_key_delays_no_other_schedule(
    conn: Connection, second: Connection, clock: Clock
) -> None:
    job = {**SCHEDULED_JOB, "unique_key": "k"}
    await schedules.put_schedule(conn, {"name": "s", "job": job, "cron": "@hourly"})
    await clock.advance(HOUR)
    async with second.transaction():
        await jobs.submit(second, job)
        assert await submit_due_schedules(conn) == 0  # left for later
    assert await submit_due_schedules(conn) == 1


async def test_claims_and_ticks_submit_due_schedules(conn: Connection, clock: Clock) -> None:
    await put_schedule(conn, every_s=600)
    manual_worker = ManualWorker(conn)
    assert await manual_worker.claim_tasks(1) == []
    assert manual_worker.next_s is not None
    assert 0 < manual_worker.next_s <= 600
    await clock.advance(timedelta(minutes=10))
    assert len(await manual_worker.claim_tasks(5)) == 1
    await clock.advance(timedelta(minutes=10))
    await run_ticks(conn)
    assert len(await list_submitted_jobs(conn)) == 2


async def test_graphs_and_owners(conn: Connection, clock: Clock) -> None:
    graph = {"type": "g", "queue": "q", "tasks": [{"type": "a"}, {"type": "b", "after": ["a"]}]}
    await schedules.put_schedule(conn, {"name": "s", "job": graph, "cron": "@hourly", "owner": "ada"})
    await clock.advance(HOUR)
    assert await submit_due_schedules(conn) == 1
    result = await schedules.get_schedule(conn, "s")
    assert result.last_job is not None
    job = await jobs.get_job(conn, result.last_job)
    assert job is not None
    assert (job["owner"], job["labels"]["schedule"]) == ("ada", "s")
    assert [each.name for each in await schedules.list_schedules(conn, owner="ada")] == ["s"]
    assert await schedules.list_schedules(conn, owner="bob") == []


async def test_the_schedules_of_an_application(conn: Connection) -> None:
    def build_schedule(name: str, cron: str = "@daily") -> dict[str, Any]:
        return {"name": name, "job": SCHEDULED_JOB, "cron": cron}

    first = await schedules.register_schedules(conn, "app", [build_schedule("a"), build_schedule("b")])
    await schedules.register_schedules(conn, "other", [build_schedule("x")])
    await schedules.pause_schedule(conn, "a")
    again = await schedules.register_schedules(
        conn, "app", [build_schedule("a"), build_schedule("c"), build_schedule("b", "@hourly")]
    )
    less = await schedules.register_schedules(conn, "app", [build_schedule("c")])
    assert (first.created, first.missing) == (["a", "b"], [])
    assert (again.created, again.changed, again.unchanged) == (["c"], ["b"], ["a"])
    assert less.missing == ["a", "b"]
    assert (await schedules.get_schedule(conn, "a")).paused_at is not None
    assert len(await schedules.list_schedules(conn)) == 4


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("cron", {"cron": "0 0 30 2 *"}),
        ("cron", {"cron": "61 * * * *"}),
        ("cron", {}),
        ("cron", {"cron": "@daily", "every_s": 60}),
        ("every_s", {"every_s": 0}),
        ("every_s", {"every_s": -5}),
        ("every_s", {"every_s": 1e12}),
        ("every_s", {"every_s": float("nan")}),
        ("timezone", {"cron": "@daily", "timezone": "Europe/Nowhere"}),
        ("missed", {"cron": "@daily", "missed": "never"}),
        ("max_catch_up", {"cron": "@daily", "max_catch_up": 0}),
        ("name", {"cron": "@daily", "name": ""}),
        ("name", {"cron": "@daily", "name": "x" * 300}),
        ("job", {"cron": "@daily", "job": []}),
        ("job", {"cron": "@daily", "job": {}}),
        ("job", {"cron": "@daily", "job": {"type": "t", "key": "k"}}),
        ("type", {"cron": "@daily", "job": {"type": ""}}),
    ],
)
async def test_bad_schedules_are_refused(conn: Connection, field: str, arguments: dict[str, Any]) -> None:
    with expect_error("HF004", field):
        await schedules.create_schedule(conn, {"name": "s", "job": SCHEDULED_JOB, **arguments})


async def test_intervals_do_not_drift(conn: Connection) -> None:
    after = datetime(2026, 1, 1, tzinfo=UTC)
    times = await schedules.list_next_run_times(conn, every_s=0.1 * 21, count=1000, after=after)
    assert times[-1] - after == timedelta(milliseconds=2100 * 1000)
    with pytest.raises((HoldfastError, asyncpg.PostgresError)):
        await schedules.list_next_run_times(conn, every_s=60, count=10_000)


async def test_a_schedule_as_it_is_shown(conn: Connection) -> None:
    stored = await put_schedule(conn, cron="30 6 * * MON-FRI", timezone="europe/madrid")
    assert stored.timezone == "Europe/Madrid"
    assert len(await schedules.preview_schedule(conn, "s", 5)) == 5
    text = await conn.fetchval("select holdfast.get_schedule('s')")
    assert msgspec.json.decode(text)["job"] == SCHEDULED_JOB
