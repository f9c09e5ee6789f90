"""Progress: percent, phase, message, and their events."""

from __future__ import annotations

from manual_worker import ManualWorker, read_job, submit_graph, submit_job

from holdfast.engine import jobs, leases
from holdfast.engine.connection import Connection
from holdfast.engine.leases import LeasedTask
from holdfast.model import Progress


async def report_progress(
    conn: Connection, task: LeasedTask, percent: float | None, phase: str | None = None
) -> None:
    await leases.heartbeat_tasks(
        conn, worker="hand", held=[task], progress={task.id: Progress(percent=percent, phase=phase)}
    )


async def test_progress_of_a_single_task(conn: Connection) -> None:
    created = await submit_job(conn)
    manual_worker = ManualWorker(conn)
    task = await manual_worker.claim_one_task()
    await report_progress(conn, task, 25, "capture")
    await report_progress(conn, task, 25, "capture")  # nothing new, no event
    await report_progress(conn, task, None, "upload")
    assert (await read_job(conn, created))["progress"] == {"percent": 25, "phase": "upload", "message": None}
    await manual_worker.finish_task(task)
    events = await jobs.list_job_events(conn, created)
    assert [(e.seq, e.kind, e.body["percent"]) for e in events] == [
        (1, "progress", 25),
        (2, "progress", 25),
        (3, "job", 100),
    ]
    assert [e.seq for e in await jobs.list_job_events(conn, created, after=2)] == [3]


async def test_progress_of_a_graph_is_weighted_and_never_falls(conn: Connection) -> None:
    created = await submit_graph(conn, {"name": "a", "weight": 3}, {"name": "b", "weight": 1})
    manual_worker = ManualWorker(conn)
    a, b = await manual_worker.claim_tasks(2)
    seen: list[float] = []

    async def read_percent() -> float:
        seen.append((await read_job(conn, created.id))["progress"]["percent"])
        return round(seen[-1], 2)

    await report_progress(conn, a, 50)
    assert await read_percent() == 37.5
    await report_progress(conn, b, 100)
    assert await read_percent() == 62.5
    await report_progress(conn, a, 10)
    assert await read_percent() == 62.5
    await report_progress(conn, a, 60)
    assert await read_percent() == 70
    await manual_worker.finish_task(b)
    assert await read_percent() == 70
    await manual_worker.finish_task(a)
    assert await read_percent() == 100
    assert seen == sorted(seen)
    events = await jobs.list_job_events(conn, created.id)
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert events[-1].body["status"] == "succeeded"


async def test_progress_out_of_range_is_clamped(conn: Connection) -> None:
    created = await submit_job(conn)
    task = await ManualWorker(conn).claim_one_task()
    await report_progress(conn, task, 4000)
    assert (await read_job(conn, created))["progress"]["percent"] == 100
    await report_progress(conn, task, -3)
    assert (await read_job(conn, created))["progress"]["percent"] == 0


async def test_unwatched_jobs_write_no_events(conn: Connection) -> None:
    await submit_job(conn)
    await submit_job(conn, owner="ann")
    manual_worker = ManualWorker(conn)
    for task in await manual_worker.claim_tasks(2):
        await manual_worker.finish_task(task)
    assert await conn.fetchval("select count(*) from holdfast.events") == 1
