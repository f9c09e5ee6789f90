"""Bulk actions: jobs selected at the start, stages, stopping, and undoing for jobs that have not started."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from manual_worker import ManualWorker, expect_error, read_job, submit_graph, submit_job

from holdfast.engine import bulk_actions, jobs
from holdfast.engine.bulk_actions import BulkAction, BulkRamp
from holdfast.engine.connection import Connection
from holdfast.testing import Clock


async def failed(conn: Connection, count: int) -> list[UUID]:
    submitted = await jobs.submit_many(
        conn, [{"type": "t", "queue": "q", "attempts": 1} for _ in range(count)]
    )
    await work(conn, "fail")
    return [one.id for one in submitted]


async def work(conn: Connection, kind: str) -> int:
    """Every ready task gets this outcome; how many there were."""
    hand, count = ManualWorker(conn), 0
    while tasks := await hand.take(200):
        for task in tasks:
            await hand.finish(task, kind, {"type": "E", "message": "m"} if kind == "fail" else None)  # type: ignore[arg-type]
        count += len(tasks)
    return count


async def started(
    conn: Connection, verb: bulk_actions.BulkVerb = "retry", text: str = "", ramp: BulkRamp | None = None
) -> UUID:
    return await bulk_actions.start_bulk_action(conn, verb, text, by="ann", reason="mended", ramp=ramp)


async def bulk(conn: Connection, bulk_id: UUID) -> BulkAction:
    bulk_action = await bulk_actions.get_bulk_action(conn, bulk_id)
    assert bulk_action is not None
    return bulk_action


async def test_a_thousand_failed_jobs_go_back_in_waves(conn: Connection) -> None:
    ids = await failed(conn, 1000)
    preview = await bulk_actions.preview_bulk_action(conn, "retry", "task:t")
    assert (preview.count, preview.exact) == (1000, True)
    action = await started(conn, text="task:t")
    late = await failed(conn, 1)
    stages: list[int] = []
    while (await bulk(conn, action)).open:
        await bulk_actions.advance_bulk_actions(conn)
        assert await bulk_actions.advance_bulk_actions(conn) == 0 or len(stages) >= 2, (
            "the next stage came before this one had ended"
        )
        stages.append(await work(conn, "succeed"))
    now = await bulk(conn, action)
    assert stages[:2] == [10, 100]
    assert (now.status, now.total, now.done, now.skipped, now.failed_again, sum(stages)) == (
        "done",
        1000,
        1000,
        0,
        0,
        1000,
    )
    assert {(await read_job(conn, one))["status"] for one in ids[:20]} == {"succeeded"}
    assert (await read_job(conn, late[0]))["status"] == "failed"


async def test_it_stops_when_the_first_wave_fails_again(conn: Connection) -> None:
    await failed(conn, 50)
    action = await started(conn)
    assert await bulk_actions.advance_bulk_actions(conn) == 10
    await work(conn, "fail")
    assert await bulk_actions.advance_bulk_actions(conn) == 0
    now = await bulk(conn, action)
    assert (now.status, now.stop_reason, now.done, now.failed_again) == (
        "stopped",
        "10 of 10 failed again.",
        10,
        10,
    )
    assert await bulk_actions.advance_bulk_actions(conn) == 0


async def test_a_few_that_fail_again_do_not_stop_it(conn: Connection) -> None:
    await failed(conn, 20)
    action = await started(conn)
    await bulk_actions.advance_bulk_actions(conn)
    hand = ManualWorker(conn)
    for n, task in enumerate(await hand.take(10)):
        await hand.finish(
            task, "fail" if n == 0 else "succeed", {"type": "E", "message": "m"} if n == 0 else None
        )
    assert await bulk_actions.advance_bulk_actions(conn) == 10
    assert (await bulk(conn, action)).status == "done"


async def test_pause_resume_stop(conn: Connection) -> None:
    await failed(conn, 30)
    action = await started(conn, ramp=BulkRamp(stage_sizes=(5,)))
    assert await bulk_actions.advance_bulk_actions(conn) == 5
    assert await bulk_actions.control_bulk_action(conn, action, "pause")
    assert not await bulk_actions.control_bulk_action(conn, action, "pause")
    await work(conn, "succeed")
    assert await bulk_actions.advance_bulk_actions(conn) == 0
    assert await bulk_actions.control_bulk_action(conn, action, "resume")
    assert await bulk_actions.advance_bulk_actions(conn, limit=10) == 10
    assert await bulk_actions.control_bulk_action(conn, action, "stop")
    assert await bulk_actions.advance_bulk_actions(conn) == 0
    now = await bulk(conn, action)
    assert (now.status, now.done, now.total) == ("stopped", 15, 30)
    with expect_error("HF002", "id"):
        await bulk_actions.control_bulk_action(conn, UUID(int=1), "stop")


async def test_undo_takes_back_only_what_has_not_started(conn: Connection) -> None:
    await failed(conn, 10)
    action = await started(conn)
    await bulk_actions.advance_bulk_actions(conn)
    hand = ManualWorker(conn)
    running, quick = await hand.take(2)
    await hand.finish(quick)
    assert await bulk_actions.undo_bulk_action(conn, action) == 8
    assert await bulk_actions.undo_bulk_action(conn, action) == 0
    statuses = sorted([row["status"] for row in await bulk_actions.list_bulk_jobs(conn, action)])
    assert statuses == ["cancelled"] * 8 + ["running", "succeeded"]
    assert await hand.finish(running) == "ok"
    assert ((await bulk(conn, action)).status, (await bulk(conn, action)).undone) == ("undone", 8)


async def test_cancel_has_no_waves_and_can_be_undone(conn: Connection) -> None:
    alive = [await submit_job(conn, delay_s=600) for _ in range(20)]
    pair = await submit_graph(conn, {"name": "a", "attempts": 1}, {"name": "b", "after": ["a"]})
    assert (await bulk_actions.preview_bulk_action(conn, "cancel", "")).count == 21
    await failed(conn, 3)  # the pair with them
    assert (await bulk_actions.preview_bulk_action(conn, "cancel", "")).count == 20
    action = await started(conn, "cancel", "state:scheduled")
    assert await bulk_actions.advance_bulk_actions(conn) == 20
    assert (await bulk(conn, action)).status == "done"
    assert {(await read_job(conn, one))["status"] for one in alive} == {"cancelled"}
    assert (await read_job(conn, pair.id))["status"] == "failed"
    assert await bulk_actions.undo_bulk_action(conn, action, limit=15) == 15
    assert await bulk_actions.undo_bulk_action(conn, action, limit=15) == 5
    assert {(await read_job(conn, one))["status"] for one in alive} == {"queued"}


async def test_graphs_are_restarted_and_taken_back_whole(conn: Connection) -> None:
    submitted = [
        await submit_graph(conn, {"name": "a", "attempts": 1}, {"name": "b", "after": ["a"]})
        for _ in range(3)
    ]
    await work(conn, "fail")
    action = await started(conn)
    assert await bulk_actions.advance_bulk_actions(conn) == 3
    hand = ManualWorker(conn)
    await hand.one()
    assert await bulk_actions.undo_bulk_action(conn, action) == 2
    assert sorted([(await read_job(conn, one.id))["status"] for one in submitted]) == [
        "cancelled",
        "cancelled",
        "running",
    ]


async def test_what_changed_in_the_meantime_is_left_alone(conn: Connection) -> None:
    first, *_ = await failed(conn, 3)
    action = await started(conn)
    await jobs.retry_job(conn, first)
    await bulk_actions.advance_bulk_actions(conn)
    now = await bulk(conn, action)
    assert (now.done, now.skipped, now.status) == (2, 1, "done")


async def test_so_many_a_second(conn: Connection, clock: Clock) -> None:
    await failed(conn, 30)
    await started(conn, ramp=BulkRamp(stage_sizes=(), max_jobs_per_s=2))
    assert await bulk_actions.advance_bulk_actions(conn, limit=10) == 10
    assert await bulk_actions.advance_bulk_actions(conn, limit=10) == 0
    due = await conn.fetch("select due_at from holdfast.tasks order by due_at")
    assert due[-1]["due_at"] - due[0]["due_at"] >= timedelta(seconds=4)
    await clock.advance(timedelta(seconds=6))
    assert await bulk_actions.advance_bulk_actions(conn, limit=10) == 10


async def test_a_reason_is_needed(conn: Connection) -> None:
    with expect_error("HF004", "reason"):
        await bulk_actions.start_bulk_action(conn, "retry", "", by="ann", reason=" ")
    with expect_error("HF004", "verb"):
        await bulk_actions.start_bulk_action(conn, "explode", "", by="ann", reason="x")  # type: ignore[arg-type]
    assert await bulk_actions.list_bulk_actions(conn) == []


async def test_nothing_to_do_is_done(conn: Connection) -> None:
    action = await started(conn)
    assert ((await bulk(conn, action)).status, (await bulk(conn, action)).total) == ("done", 0)
    assert [one.id for one in await bulk_actions.list_bulk_actions(conn)] == [action]
