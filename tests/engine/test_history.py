"""History, retention, maintenance and redrive."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest
from manual_worker import (
    ManualWorker,
    expect_error,
    read_job,
    read_task_status,
    run_ticks,
    submit_graph,
    submit_job,
)

from holdfast.engine import jobs
from holdfast.engine.connection import Connection
from holdfast.settings import Secret
from holdfast.testing import Clock

ATTEMPT_ERROR = {"type": "ValueError", "message": "no", "fingerprint": "ValueError:here"}


async def run_job(conn: Connection, kind: Any = "succeed") -> None:
    manual_worker = ManualWorker(conn)
    for task in await manual_worker.claim_tasks(50):
        await manual_worker.finish_task(task, kind, ATTEMPT_ERROR)


async def list_partition_days(conn: Connection) -> set[str]:
    rows = await conn.fetch(
        "select relname from pg_class where relnamespace = 'holdfast'::regnamespace and relkind = 'r' "
        "and relname ~ '_[0-9]{8}$'"
    )
    return {row["relname"] for row in rows}


async def test_succeeded_jobs_are_deleted_after_a_day_and_failed_ones_after_a_week(
    conn: Connection, clock: Clock
) -> None:
    await run_ticks(conn)
    good = await submit_job(conn)
    await run_job(conn)
    bad = await submit_job(conn)
    await run_job(conn, "reject")
    assert await conn.fetchval("select count(*) from only holdfast.history_default") == 0
    for _ in range(2):
        await clock.advance(timedelta(days=1, minutes=1))
        await run_ticks(conn)
    assert await jobs.get_job(conn, good) is None
    assert (await read_job(conn, bad))["status"] == "failed"
    await clock.advance(timedelta(days=7))
    await run_ticks(conn)
    assert await jobs.get_job(conn, bad) is None


async def test_day_partitions_are_dropped_whole_and_created_ahead(conn: Connection, clock: Clock) -> None:
    await run_ticks(conn)
    before = await list_partition_days(conn)
    await clock.advance(timedelta(days=12))
    result = await run_ticks(conn)
    assert result["partitions_dropped"] == 13  # of history, events and log lines; attempts are kept longer
    after = await list_partition_days(conn)
    assert not any(name.startswith(("history", "events", "logs")) for name in before & after)
    assert sum(name.startswith("history") for name in after) == 7


async def test_a_day_partition_in_use_is_dropped_later(
    conn: Connection, second: Connection, clock: Clock
) -> None:
    await run_ticks(conn)
    await clock.advance(timedelta(days=12))
    async with second.transaction():
        await second.fetch("select * from holdfast.history limit 1")
        assert (await run_ticks(conn))["partitions_dropped"] == 0
    assert (await run_ticks(conn))["partitions_dropped"] > 0


async def test_without_days_nothing_is_lost_and_rows_are_deleted(conn: Connection, clock: Clock) -> None:
    created = await submit_job(conn)
    await run_job(conn)
    assert (await read_job(conn, created))["status"] == "succeeded"
    assert await conn.fetchval("select count(*) from only holdfast.history_default") == 1
    await clock.advance(timedelta(days=1, minutes=1))
    await run_ticks(conn)
    assert await jobs.get_job(conn, created) is None


async def test_a_queue_keeps_jobs_for_its_own_time(conn: Connection, clock: Clock) -> None:
    await conn.execute("select holdfast.put_queue_settings('q', p_keep_s => 864000)")
    created = await submit_job(conn)
    await run_job(conn)
    await clock.advance(timedelta(days=9))
    await run_ticks(conn)
    assert (await read_job(conn, created))["status"] == "succeeded"


async def test_an_ended_graph_is_archived_whole_and_forgotten_whole(conn: Connection, clock: Clock) -> None:
    created = await submit_graph(conn, {"name": "a"}, {"name": "b"}, {"name": "c", "after": ["a"]})
    await run_job(conn)
    await run_job(conn)
    before = await read_job(conn, created.id)
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 3
    await clock.advance(timedelta(minutes=2))
    assert (await run_ticks(conn, 2))["archived"] == 3
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 0
    assert await read_job(conn, created.id) == before
    await clock.advance(timedelta(days=2))
    await run_ticks(conn)
    await run_ticks(conn)
    assert await jobs.get_job(conn, created.id) is None
    assert await conn.fetchval("select count(*) from holdfast.dependencies") == 0


async def test_tasks_of_a_long_job_outlive_its_days(conn: Connection, clock: Clock) -> None:
    """A parent that ended long ago still hands its output to a child of the same job."""
    await submit_graph(conn, {"name": "a"}, {"name": "b", "after": ["a"], "delay_s": 864000})
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(await manual_worker.claim_one_task(), "succeed", "kept")
    for _ in range(11):
        await clock.advance(timedelta(days=1))
        await run_ticks(conn)
    assert (await manual_worker.claim_one_task()).parents == {"a": "kept"}


async def test_ticks_from_everywhere_at_once(conn: Connection, url: Secret, clock: Clock) -> None:
    for n in range(40):
        await submit_job(conn, delay_s=10 if n % 2 else 0)
    await ManualWorker(conn).claim_tasks(20)
    await clock.advance(timedelta(minutes=3))
    others = [await asyncpg.connect(url.reveal()) for _ in range(6)]
    await asyncio.gather(*(run_ticks(other, 10) for other in others))
    await run_ticks(conn)  # what one of them held was passed over by the others
    counts = {
        r["status"]: r["count"]
        for r in await conn.fetch("select status, count(*) from holdfast.tasks group by 1")
    }
    assert counts == {"ready": 40}  # 20 were promoted, and 20 lost tasks returned
    assert await conn.fetchval("select count(*) from holdfast.attempts") == 20
    for other in others:
        await other.close()


async def test_keys_are_remembered_for_a_week(conn: Connection, clock: Clock) -> None:
    first = await submit_job(conn, key="k")
    await run_job(conn)
    await clock.advance(timedelta(days=6))
    await run_ticks(conn)
    assert await submit_job(conn, key="k") == first
    await clock.advance(timedelta(days=2))
    await run_ticks(conn)
    assert await submit_job(conn, key="k") != first


async def test_bad_limits_are_refused(conn: Connection) -> None:
    for limit in (0, -1, 100_001, None):
        with expect_error("HF004", "limit"):
            await conn.fetchval("select holdfast.tick($1)", limit)


async def redrive(conn: Connection, **where: Any) -> dict[str, Any]:
    dry = where.pop("dry", False)
    return dict(
        msgspec.json.decode(
            await conn.fetchval(
                "select holdfast.redrive($1, 100, $2)", msgspec.json.encode(where).decode(), dry
            )
        )
    )


async def test_failed_jobs_are_redriven_by_filter(conn: Connection) -> None:
    one = await submit_job(conn, type="a")
    two = await submit_job(conn, type="b")
    pair = await submit_graph(conn, {"name": "x"}, {"name": "y"})
    fine = await submit_job(conn)
    manual_worker = ManualWorker(conn)
    for task in await manual_worker.claim_tasks(50):
        await manual_worker.finish_task(task, "succeed" if task.id == fine else "reject", ATTEMPT_ERROR)
    assert await redrive(conn, type="a", dry=True) == {"matched": 1, "restarted": 0}
    assert await read_task_status(conn, one) == "failed"
    assert await redrive(conn, error_type="Other") == {"matched": 0, "restarted": 0}
    assert await redrive(conn, type="a") == {"matched": 1, "restarted": 1}
    assert await redrive(conn, fingerprint="ValueError:here") == {"matched": 2, "restarted": 2}
    assert await redrive(conn, fingerprint="ValueError:here") == {"matched": 0, "restarted": 0}
    taken = await manual_worker.claim_tasks(50)
    assert {task.job_id or task.id for task in taken} == {one, two, pair.id}
    assert {task.attempt for task in taken} == {2}
    for task in taken:
        await manual_worker.finish_task(task)
    for each in (one, two, pair.id):
        assert (await read_job(conn, each))["status"] == "succeeded"


async def test_redriving_is_spread_over_time(conn: Connection, clock: Clock) -> None:
    for _ in range(4):
        await submit_job(conn)
    await run_job(conn, "reject")
    await conn.fetchval("select holdfast.redrive('{}', 100, false, 100)")
    manual_worker = ManualWorker(conn)
    (first,) = await manual_worker.claim_tasks(50)
    await manual_worker.finish_task(first)
    await clock.advance(timedelta(seconds=60))
    assert len(await manual_worker.claim_tasks(50)) == 2


async def test_two_redrives_at_once_restart_a_job_once(conn: Connection, second: Connection) -> None:
    created = await submit_job(conn)
    await run_job(conn, "reject")
    await asyncio.gather(
        conn.fetchval("select holdfast.retry_job($1)", created),
        second.fetchval("select holdfast.retry_job($1)", created),
    )
    assert len(await ManualWorker(conn).claim_tasks(5)) == 1
    assert await conn.fetchval("select count(*) from holdfast.history") == 0


async def test_a_live_job_cannot_be_run_again(conn: Connection) -> None:
    created = await submit_graph(conn, {"name": "a"}, {"name": "b", "after": ["a"]})
    await ManualWorker(conn).claim_tasks(1)
    with expect_error("HF003"):
        await conn.fetchval("select holdfast.retry_job($1, array['a'])", created.id)
    with expect_error("HF004", "from"):
        await conn.fetchval("select holdfast.retry_job($1, array['z'])", created.id)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("ready", "no_worker"),
        ("queued", "queued"),
        ("scheduled", "scheduled"),
        ("running", "running"),
        ("ended", "ended"),
    ],
)
async def test_explain_task_names_each_reason(
    conn: Connection, clock: Clock, state: str, reason: str
) -> None:
    manual_worker = ManualWorker(conn)
    if state == "queued":
        await manual_worker.claim_tasks(1)
    created = await submit_job(conn, delay_s=60 if state == "scheduled" else 0)
    if state in {"running", "ended"}:
        task = await manual_worker.claim_one_task()
        if state == "ended":
            await manual_worker.finish_task(task)
    response = msgspec.json.decode(await conn.fetchval("select holdfast.explain_task($1)", created))
    assert [each["reason"] for each in response["reasons"]] == [reason]
