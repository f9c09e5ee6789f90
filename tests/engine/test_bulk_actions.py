"""Bulk actions: jobs selected at the start, stages, stopping, and undoing for jobs that have not started."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from manual_worker import ManualWorker, expect_error, read_job, submit_graph, submit_job

from holdfast.engine import bulk_actions, jobs, search
from holdfast.engine.bulk_actions import BulkAction, BulkStageOptions
from holdfast.engine.connection import Connection
from holdfast.testing import Clock


async def submit_failed_jobs(conn: Connection, count: int) -> list[UUID]:
    submitted = await jobs.submit_many(
        conn, [{"type": "t", "queue": "q", "attempts": 1} for _ in range(count)]
    )
    await finish_ready_tasks(conn, "fail")
    return [one.id for one in submitted]


async def finish_ready_tasks(conn: Connection, kind: str) -> int:
    """Every ready task gets this outcome; how many there were."""
    manual_worker, count = ManualWorker(conn), 0
    while tasks := await manual_worker.claim_tasks(200):
        for task in tasks:
            error = {"type": "E", "message": "m"} if kind == "fail" else None
            await manual_worker.finish_task(task, kind, error)  # type: ignore[arg-type]
        count += len(tasks)
    return count


async def start_bulk_action(
    conn: Connection,
    verb: bulk_actions.BulkVerb = "retry",
    text: str = "",
    ramp: BulkStageOptions | None = None,
) -> UUID:
    return await bulk_actions.start_bulk_action(conn, verb, text, by="ann", reason="fixed", ramp=ramp)


async def get_bulk_action(conn: Connection, bulk_id: UUID) -> BulkAction:
    bulk_action = await bulk_actions.get_bulk_action(conn, bulk_id)
    assert bulk_action is not None
    return bulk_action


async def test_a_bulk_retry_runs_in_stages(conn: Connection) -> None:
    ids = await submit_failed_jobs(conn, 1000)
    preview = await bulk_actions.preview_bulk_action(conn, "retry", "task:t")
    assert (preview.count, preview.exact) == (1000, True)
    action = await start_bulk_action(conn, text="task:t")
    late = await submit_failed_jobs(conn, 1)
    stages: list[int] = []
    while (await get_bulk_action(conn, action)).is_open:
        await bulk_actions.advance_bulk_actions(conn)
        assert await bulk_actions.advance_bulk_actions(conn) == 0 or len(stages) >= 2, (
            "the next stage came before this one had ended"
        )
        stages.append(await finish_ready_tasks(conn, "succeed"))
    now = await get_bulk_action(conn, action)
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


async def test_a_bulk_retry_stops_when_its_first_stage_fails_again(conn: Connection) -> None:
    await submit_failed_jobs(conn, 50)
    action = await start_bulk_action(conn)
    assert await bulk_actions.advance_bulk_actions(conn) == 10
    await finish_ready_tasks(conn, "fail")
    assert await bulk_actions.advance_bulk_actions(conn) == 0
    now = await get_bulk_action(conn, action)
    assert (now.status, now.stop_reason, now.done, now.failed_again) == (
        "stopped",
        "10 of 10 failed again.",
        10,
        10,
    )
    assert await bulk_actions.advance_bulk_actions(conn) == 0


async def test_a_bulk_retry_continues_after_few_repeated_failures(conn: Connection) -> None:
    await submit_failed_jobs(conn, 20)
    action = await start_bulk_action(conn)
    await bulk_actions.advance_bulk_actions(conn)
    manual_worker = ManualWorker(conn)
    for n, task in enumerate(await manual_worker.claim_tasks(10)):
        await manual_worker.finish_task(
            task, "fail" if n == 0 else "succeed", {"type": "E", "message": "m"} if n == 0 else None
        )
    assert await bulk_actions.advance_bulk_actions(conn) == 10
    assert (await get_bulk_action(conn, action)).status == "done"


async def test_a_bulk_action_is_paused_resumed_and_stopped(conn: Connection) -> None:
    await submit_failed_jobs(conn, 30)
    action = await start_bulk_action(conn, ramp=BulkStageOptions(stage_sizes=(5,)))
    assert await bulk_actions.advance_bulk_actions(conn) == 5
    assert await bulk_actions.control_bulk_action(conn, action, "pause")
    assert not await bulk_actions.control_bulk_action(conn, action, "pause")
    await finish_ready_tasks(conn, "succeed")
    assert await bulk_actions.advance_bulk_actions(conn) == 0
    assert await bulk_actions.control_bulk_action(conn, action, "resume")
    assert await bulk_actions.advance_bulk_actions(conn, limit=10) == 10
    assert await bulk_actions.control_bulk_action(conn, action, "stop")
    assert await bulk_actions.advance_bulk_actions(conn) == 0
    now = await get_bulk_action(conn, action)
    assert (now.status, now.done, now.total) == ("stopped", 15, 30)
    with expect_error("HF002", "id"):
        await bulk_actions.control_bulk_action(conn, UUID(int=1), "stop")


async def test_an_action_that_stopped_itself_continues_when_asked(conn: Connection) -> None:
    await submit_failed_jobs(conn, 30)
    action = await start_bulk_action(conn)
    assert await bulk_actions.advance_bulk_actions(conn) == 10
    await finish_ready_tasks(conn, "fail")
    await bulk_actions.advance_bulk_actions(conn)
    assert (await get_bulk_action(conn, action)).status == "stopped"
    assert await bulk_actions.control_bulk_action(conn, action, "resume")
    while (await get_bulk_action(conn, action)).is_open:
        await bulk_actions.advance_bulk_actions(conn)
        await finish_ready_tasks(conn, "fail")
    now = await get_bulk_action(conn, action)
    assert (now.status, now.done) == ("done", 30)
    assert not await bulk_actions.control_bulk_action(conn, action, "resume")
    await bulk_actions.undo_bulk_action(conn, action)
    assert not await bulk_actions.control_bulk_action(conn, action, "resume")


async def test_jobs_of_an_action_have_the_state_that_lists_show(conn: Connection) -> None:
    await submit_failed_jobs(conn, 3)
    action = await start_bulk_action(conn)
    await bulk_actions.advance_bulk_actions(conn)
    await ManualWorker(conn).claim_tasks(1)
    listed = {row["id"]: row["state"] for row in (await search.search_jobs(conn, "")).rows}
    shown = {row["job_id"]: row["state"] for row in await bulk_actions.list_bulk_action_jobs(conn, action)}
    assert shown == listed
    assert sorted(shown.values()) == ["ready", "ready", "running"]


async def test_undo_affects_only_jobs_that_have_not_started(conn: Connection) -> None:
    await submit_failed_jobs(conn, 10)
    action = await start_bulk_action(conn)
    await bulk_actions.advance_bulk_actions(conn)
    manual_worker = ManualWorker(conn)
    running, quick = await manual_worker.claim_tasks(2)
    await manual_worker.finish_task(quick)
    assert await bulk_actions.undo_bulk_action(conn, action) == 8
    assert await bulk_actions.undo_bulk_action(conn, action) == 0
    statuses = sorted([row["status"] for row in await bulk_actions.list_bulk_action_jobs(conn, action)])
    assert statuses == ["cancelled"] * 8 + ["running", "succeeded"]
    assert await manual_worker.finish_task(running) == "ok"
    assert ((await get_bulk_action(conn, action)).status, (await get_bulk_action(conn, action)).undone) == (
        "undone",
        8,
    )


async def test_a_bulk_cancel_has_no_stages_and_can_be_undone(conn: Connection) -> None:
    alive = [await submit_job(conn, delay_s=600) for _ in range(20)]
    pair = await submit_graph(conn, {"name": "a", "attempts": 1}, {"name": "b", "after": ["a"]})
    assert (await bulk_actions.preview_bulk_action(conn, "cancel", "")).count == 21
    await submit_failed_jobs(conn, 3)  # the pair with them
    assert (await bulk_actions.preview_bulk_action(conn, "cancel", "")).count == 20
    action = await start_bulk_action(conn, "cancel", "state:scheduled")
    assert await bulk_actions.advance_bulk_actions(conn) == 20
    assert (await get_bulk_action(conn, action)).status == "done"
    assert {(await read_job(conn, one))["status"] for one in alive} == {"cancelled"}
    assert (await read_job(conn, pair.id))["status"] == "failed"
    assert await bulk_actions.undo_bulk_action(conn, action, limit=15) == 15
    assert await bulk_actions.undo_bulk_action(conn, action, limit=15) == 5
    assert {(await read_job(conn, one))["status"] for one in alive} == {"queued"}


async def test_a_bulk_retry_of_a_graph_is_undone_as_a_whole(conn: Connection) -> None:
    submitted = [
        await submit_graph(conn, {"name": "a", "attempts": 1}, {"name": "b", "after": ["a"]})
        for _ in range(3)
    ]
    await finish_ready_tasks(conn, "fail")
    action = await start_bulk_action(conn)
    assert await bulk_actions.advance_bulk_actions(conn) == 3
    manual_worker = ManualWorker(conn)
    await manual_worker.claim_one_task()
    assert await bulk_actions.undo_bulk_action(conn, action) == 2
    assert sorted([(await read_job(conn, one.id))["status"] for one in submitted]) == [
        "cancelled",
        "cancelled",
        "running",
    ]


async def test_a_bulk_action_skips_jobs_that_changed(conn: Connection) -> None:
    first, *_ = await submit_failed_jobs(conn, 3)
    action = await start_bulk_action(conn)
    await jobs.retry_job(conn, first)
    await bulk_actions.advance_bulk_actions(conn)
    now = await get_bulk_action(conn, action)
    assert (now.done, now.skipped, now.status) == (2, 1, "done")


async def test_a_bulk_action_respects_its_rate(conn: Connection, clock: Clock) -> None:
    await submit_failed_jobs(conn, 30)
    await start_bulk_action(conn, ramp=BulkStageOptions(stage_sizes=(), max_jobs_per_s=2))
    assert await bulk_actions.advance_bulk_actions(conn, limit=10) == 10
    assert await bulk_actions.advance_bulk_actions(conn, limit=10) == 0
    due = await conn.fetch("select due_at from holdfast.tasks order by due_at")
    assert due[-1]["due_at"] - due[0]["due_at"] >= timedelta(seconds=4)
    await clock.advance(timedelta(seconds=6))
    assert await bulk_actions.advance_bulk_actions(conn, limit=10) == 10


async def test_a_bulk_action_without_reason_is_refused(conn: Connection) -> None:
    with expect_error("HF004", "reason"):
        await bulk_actions.start_bulk_action(conn, "retry", "", by="ann", reason=" ")
    with expect_error("HF004", "verb"):
        await bulk_actions.start_bulk_action(conn, "explode", "", by="ann", reason="x")  # type: ignore[arg-type]
    assert await bulk_actions.list_bulk_actions(conn) == []


async def test_a_bulk_action_without_jobs_is_done_at_once(conn: Connection) -> None:
    action = await start_bulk_action(conn)
    assert ((await get_bulk_action(conn, action)).status, (await get_bulk_action(conn, action)).total) == (
        "done",
        0,
    )
    assert [one.id for one in await bulk_actions.list_bulk_actions(conn)] == [action]
