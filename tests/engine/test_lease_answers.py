"""Heartbeats are answered by lease: a worker may hold several leases of one task."""

from __future__ import annotations

from manual_worker import ManualWorker, read_task_row, submit_job

from holdfast.engine import jobs, leases
from holdfast.engine.connection import Connection
from holdfast.engine.leases import LeasedTask
from holdfast.model import Progress


async def claim_twice(conn: Connection) -> tuple[LeasedTask, LeasedTask]:
    """Return the stale and the current lease of one task."""
    await submit_job(conn)
    manual_worker = ManualWorker(conn)
    old = await manual_worker.claim_one_task()
    await manual_worker.finish_task(old, "release")
    return old, await manual_worker.claim_one_task()


async def test_two_leases_of_one_task_in_one_heartbeat(conn: Connection) -> None:
    old, new = await claim_twice(conn)
    response = await leases.heartbeat_tasks(conn, worker="hand", held=[old, new])
    assert response.lost == {old.lease}
    assert not response.cancelled


async def test_progress_is_saved_for_the_current_lease(conn: Connection) -> None:
    old, new = await claim_twice(conn)
    progress = {new.id: Progress(percent=40)}
    response = await leases.heartbeat_tasks(conn, worker="hand", held=[new, old], progress=progress)
    assert response.lost == {old.lease}
    assert (await read_task_row(conn, new.id))["percent"] == 40


async def test_only_the_last_attempt_of_a_cancelled_task_is_cancelled(conn: Connection) -> None:
    old, new = await claim_twice(conn)
    await jobs.cancel_job(conn, new.id)
    response = await leases.heartbeat_tasks(conn, worker="hand", held=[old, new])
    assert response.lost == {old.lease, new.lease}
    assert response.cancelled == {new.lease}
