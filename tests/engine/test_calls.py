"""The coroutines of the engine call the SQL functions of the same name with the right arguments."""

from __future__ import annotations

from datetime import timedelta

from manual_worker import QUEUE, ManualWorker, read_task_status, submit_graph, submit_job

from holdfast.engine import explain, jobs, leases, limits, maintenance, overview
from holdfast.engine.connection import Connection
from holdfast.engine.limits import LimitRule


async def test_functions_of_jobs_and_batches(conn: Connection) -> None:
    created = await submit_graph(conn, {"name": "a"}, {"name": "b", "after": ["a"]}, labels={"x": "1"})
    assert created.tasks is not None
    assert await jobs.cancel_task(conn, created.tasks["a"], "no")
    assert await jobs.retry_job(conn, created.id, delay=timedelta(hours=1)) == 2
    assert await read_task_status(conn, created.tasks["a"]) == "scheduled"
    assert await jobs.cancel_jobs(conn, {"labels": {"x": "1"}}, "stop", limit=5) == 1
    assert await jobs.retry_job(conn, created.id, from_tasks=["b"]) == 1
    batch = await jobs.open_batch(conn, "night", callback={"type": "after", "queue": "later"}, owner="ann")
    single = await submit_job(conn, batch=str(batch))
    manual_worker = ManualWorker(conn)
    for task in await manual_worker.claim_tasks(9):
        await manual_worker.finish_task(task, "reject", {"type": "E", "message": "m"})
    closed = await jobs.close_batch(conn, batch)
    assert (closed["total"], closed["failed"], closed["owner"]) == (1, 1, "ann")
    assert closed == await jobs.get_batch(conn, batch)
    where = {"ids": [str(single)]}
    assert await jobs.redrive_failed_jobs(conn, where, dry_run=True) == jobs.RedriveResult(
        matched=1, restarted=0
    )
    assert await jobs.redrive_failed_jobs(conn, where, spread=timedelta(hours=1)) == jobs.RedriveResult(
        matched=1, restarted=1
    )


async def test_functions_of_limits_and_queues(conn: Connection) -> None:
    await limits.put_limit(conn, LimitRule(name="x", queue=QUEUE, max_running=1))
    await submit_job(conn)
    await submit_job(conn)
    manual_worker = ManualWorker(conn)
    assert len(await manual_worker.claim_tasks(9)) == 1
    assert await limits.delete_limit(conn, "x")
    assert not await limits.delete_limit(conn, "x")
    await limits.pause_queue(conn, QUEUE, reason="w", by="b")
    assert await manual_worker.claim_tasks(9) == []
    assert await limits.resume_queue(conn, QUEUE)
    assert not await limits.resume_queue(conn, QUEUE)
    await limits.put_queue_settings(
        conn, QUEUE, keep=timedelta(days=3), keep_failed=timedelta(days=4), ageing=timedelta(minutes=2)
    )
    row = await conn.fetchrow(
        "select keep_s, keep_failed_s, ageing_s from holdfast.queues where name = $1", QUEUE
    )
    assert row is not None
    assert tuple(row) == (259200, 345600, 120)


async def test_functions_that_explain_tasks(conn: Connection) -> None:
    created = await submit_job(conn)
    assert (await explain.explain_task(conn, created))["status"] == "ready"
    manual_worker = ManualWorker(conn)
    task = await manual_worker.claim_one_task()
    assert set(await leases.add_tasks(conn, task, b'[{"type": "t", "name": "child"}]')) == {"child"}
    await manual_worker.finish_task(task, "fail", {"type": "E", "message": "m", "fingerprint": "f"})
    (tried,) = await explain.list_task_attempts(conn, created)
    assert (tried.attempt, tried.outcome, tried.worker, tried.fingerprint) == (1, "failed", "hand", "f")
    response = await overview.get_engine_metrics(conn)
    assert {(q["queue"], q["ready"]) for q in response["queues"]} == {(QUEUE, 0), ("default", 1)}
    assert (response["scheduled"], response["workers"]) == (1, 1)
    while (await maintenance.tick(conn, limit=10))["more"]:
        pass
