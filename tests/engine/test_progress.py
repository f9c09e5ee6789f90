"""Progress: percent, phase, message, and their events."""

from __future__ import annotations

from manual_worker import ManualWorker, read_job, submit_graph, submit_job

from holdfast.engine import jobs, leases
from holdfast.engine.connection import Connection
from holdfast.engine.leases import LeasedTask
from holdfast.model import Progress


async def report(conn: Connection, task: LeasedTask, percent: float | None, phase: str | None = None) -> None:
    await leases.heartbeat_tasks(
        conn, worker="hand", held=[task], progress={task.id: Progress(percent=percent, phase=phase)}
    )


async def test_of_a_single_task(conn: Connection) -> None:
    created = await submit_job(conn)
    hand = ManualWorker(conn)
    task = await hand.one()
    await report(conn, task, 25, "capture")
    await report(conn, task, 25, "capture")  # nothing new, no event
    await report(conn, task, None, "upload")
    assert (await read_job(conn, created))["progress"] == {"percent": 25, "phase": "upload", "message": None}
    await hand.finish(task)
    events = await jobs.list_job_events(conn, created)
    assert [(e.seq, e.kind, e.body["percent"]) for e in events] == [
        (1, "progress", 25),
        (2, "progress", 25),
        (3, "job", 100),
    ]
    assert [e.seq for e in await jobs.list_job_events(conn, created, after=2)] == [3]


async def test_of_a_graph_is_weighted_and_never_falls(conn: Connection) -> None:
    created = await submit_graph(conn, {"name": "a", "weight": 3}, {"name": "b", "weight": 1})
    hand = ManualWorker(conn)
    a, b = await hand.take(2)
    seen: list[float] = []

    async def percent() -> float:
        seen.append((await read_job(conn, created.id))["progress"]["percent"])
        return round(seen[-1], 2)

    await report(conn, a, 50)
    assert await percent() == 37.5
    await report(conn, b, 100)
    assert await percent() == 62.5
    await report(conn, a, 10)
    assert await percent() == 62.5
    await report(conn, a, 60)
    assert await percent() == 70
    await hand.finish(b)
    assert await percent() == 70
    await hand.finish(a)
    assert await percent() == 100
    assert seen == sorted(seen)
    events = await jobs.list_job_events(conn, created.id)
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert events[-1].body["status"] == "succeeded"


async def test_absurd_numbers_are_put_in_range(conn: Connection) -> None:
    created = await submit_job(conn)
    task = await ManualWorker(conn).one()
    await report(conn, task, 4000)
    assert (await read_job(conn, created))["progress"]["percent"] == 100
    await report(conn, task, -3)
    assert (await read_job(conn, created))["progress"]["percent"] == 0


async def test_jobs_that_nobody_watches_write_no_events(conn: Connection) -> None:
    await submit_job(conn)
    await submit_job(conn, owner="ann")
    hand = ManualWorker(conn)
    for task in await hand.take(2):
        await hand.finish(task)
    assert await conn.fetchval("select count(*) from holdfast.events") == 1
