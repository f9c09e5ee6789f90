"""Charts by queue, task type, worker and owner: samples of the most active names, and the rest as one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, get_args

import pytest
from manual_worker import ManualWorker, expect_error, run_ticks, submit_graph

from holdfast.engine import erasures, jobs, overview
from holdfast.engine.connection import Connection
from holdfast.testing import Clock


async def end_tasks(
    conn: Connection, count: int, *, worker: str = "w1", kind: Any = "succeed", **job: Any
) -> None:
    await jobs.submit_many(conn, [{"type": "t", "queue": "q", "attempts": 1, **job} for _ in range(count)])
    manual_worker = ManualWorker(conn, worker)
    error = {"type": "E", "message": "m"} if kind == "fail" else None
    for task in await manual_worker.claim_tasks(count):
        await manual_worker.finish_task(task, kind, error)


async def read_totals(
    conn: Connection, kind: Any, hours: float = 1, **options: Any
) -> dict[str, tuple[int, int]]:
    now = await conn.fetchval("select holdfast.now()")
    data = await overview.get_throughput_by_name(conn, kind, now - timedelta(hours=hours), now, **options)
    totals = {row["name"]: (row["succeeded"], row["failed"]) for row in data["names"]}
    for name, (succeeded, failed) in totals.items():
        points = [point for point in data["points"] if point["name"] == name]
        assert (sum(p["succeeded"] for p in points), sum(p["failed"] for p in points)) == (succeeded, failed)
    return totals


async def test_every_kind_counts_each_task_once(conn: Connection, clock: Clock) -> None:
    await end_tasks(conn, 6, owner="ann")
    await end_tasks(conn, 3, worker="w2", kind="fail", type="mail", owner="bob")
    await end_tasks(conn, 2, worker="w2")
    await submit_graph(conn, {"name": "a"}, {"name": "b", "after": ["a"]}, owner="ann")
    for _ in range(2):
        hand = ManualWorker(conn, "w3")
        await hand.finish_task(await hand.claim_one_task())
    await clock.advance(timedelta(minutes=2))
    for _ in range(2):
        await run_ticks(conn)
    expected: dict[str, Any] = {
        "queue": {"q": (10, 3)},
        "type": {"t": (10, 0), "mail": (0, 3)},
        "worker": {"w1": (6, 0), "w2": (2, 3), "w3": (2, 0)},
        "owner": {"ann": (8, 0), "bob": (0, 3)},
    }
    assert set(expected) == set(get_args(overview.SampledKind))
    for kind, totals in expected.items():
        assert await read_totals(conn, kind) == totals, kind
    await clock.advance(timedelta(minutes=20))
    await run_ticks(conn)  # adds the quarter of an hour up, which charts of a day read
    for kind, totals in expected.items():
        assert await read_totals(conn, kind, 24) == totals, kind


async def test_only_the_most_active_names_have_samples(conn: Connection, clock: Clock) -> None:
    kept = await conn.fetchval("select holdfast.get_max_sampled_names()")
    for number in range(kept + 3):
        await end_tasks(conn, 1 + (number < kept), owner=f"user-{number:02}")
    await clock.advance(timedelta(minutes=2))
    await run_ticks(conn)
    totals = await read_totals(conn, "owner", max_names=50)
    assert totals.pop("") == (3, 0)
    assert totals == {f"user-{number:02}": (2, 0) for number in range(kept)}
    await clock.advance(timedelta(minutes=20))
    await run_ticks(conn)
    totals = await read_totals(conn, "owner", 24, max_names=2)
    assert totals == {"user-00": (2, 0), "user-01": (2, 0), "": (2 * (kept - 2) + 3, 0)}
    assert await read_totals(conn, "owner", name="user-03") == {"user-03": (2, 0)}
    assert await read_totals(conn, "owner", name="user-27") == {}


async def test_run_times_are_added_up(conn: Connection, clock: Clock) -> None:
    await jobs.submit_many(conn, [{"type": "t", "queue": "q"} for _ in range(2)])
    worker = ManualWorker(conn, "w1")
    tasks = await worker.claim_tasks(2)
    await clock.advance(timedelta(seconds=30))
    for task in tasks:
        await worker.finish_task(task)
    await clock.advance(timedelta(minutes=2))
    await run_ticks(conn)
    now = await conn.fetchval("select holdfast.now()")
    data = await overview.get_throughput_by_name(conn, "worker", now - timedelta(hours=1), now)
    assert 60 <= data["names"][0]["run_s"] < 70


async def test_an_erased_owner_has_no_samples(conn: Connection, clock: Clock) -> None:
    await end_tasks(conn, 2, owner="ann")
    await end_tasks(conn, 2, owner="bob")
    await clock.advance(timedelta(minutes=2))
    await run_ticks(conn)
    await erasures.start_erasure(conn, "ann", "operator")
    for _ in range(3):
        await clock.advance(timedelta(minutes=1))
        await erasures.advance_erasure(conn, "ann")
    assert await read_totals(conn, "owner") == {"bob": (2, 0)}


async def test_an_unknown_kind_is_refused(conn: Connection) -> None:
    now = await conn.fetchval("select holdfast.now()")
    for kind in ("label", None):
        with expect_error("HF004", "kind"):
            await overview.get_throughput_by_name(conn, kind, now, now)  # type: ignore[arg-type]


@pytest.mark.parametrize("minutes", [1, 20])
async def test_samples_are_deleted_in_time(conn: Connection, clock: Clock, minutes: int) -> None:
    await end_tasks(conn, 2, owner="ann")
    await clock.advance(timedelta(minutes=minutes + 1))
    await run_ticks(conn)
    assert await conn.fetchval("select count(*) from holdfast.activity_samples") > 0
    await clock.advance(timedelta(days=36))
    await end_tasks(conn, 1)
    await clock.advance(timedelta(minutes=20))
    await run_ticks(conn)
    left = await conn.fetch("select distinct kind, name from holdfast.activity_samples")
    assert [tuple(row) for row in left] == [("worker", "w1")]
