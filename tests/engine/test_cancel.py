"""Cancel: decided once, final, reported by the next heartbeat."""

from __future__ import annotations

from uuid import uuid4

import pytest
from manual_worker import (
    ManualWorker,
    expect_error,
    read_job,
    read_task_status,
    read_task_statuses,
    submit_graph,
    submit_job,
)

from holdfast.engine import jobs, leases
from holdfast.engine.connection import Connection


@pytest.mark.parametrize("state", ["ready", "scheduled", "running"])
async def test_a_live_job_is_cancelled_and_stays_so(conn: Connection, state: str) -> None:
    created = await submit_job(conn, delay_s=60 if state == "scheduled" else 0)
    manual_worker = ManualWorker(conn)
    held = await manual_worker.claim_tasks(1) if state == "running" else []
    assert await read_task_status(conn, created) == state
    assert await jobs.cancel_job(conn, created, "why not") == {"cancelled": True, "status": "cancelled"}
    assert await jobs.cancel_job(conn, created) == {"cancelled": False, "status": "cancelled"}
    for task in held:
        assert (await leases.heartbeat_tasks(conn, worker="hand", held=[task])).cancelled == {task.lease}
        assert await manual_worker.finish_task(task) == "stale"
    assert await manual_worker.claim_tasks(5) == []
    ended = await read_job(conn, created)
    assert (ended["status"], ended["error"]["message"]) == ("cancelled", "why not")


async def test_an_ended_job_is_left_as_it_is(conn: Connection) -> None:
    created = await submit_job(conn)
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    assert await jobs.cancel_job(conn, created) == {"cancelled": False, "status": "succeeded"}


async def test_cancelling_an_unknown_job_raises_not_found(conn: Connection) -> None:
    with expect_error("HF002", "id"):
        await jobs.cancel_job(conn, uuid4())


async def test_cancelling_a_graph_keeps_its_finished_tasks(conn: Connection) -> None:
    created = await submit_graph(
        conn,
        {"name": "a"},
        {"name": "b"},
        {"name": "c", "after": ["a", "b"]},
        {"name": "d", "after": [{"name": "c", "on_failure": "run"}]},
    )
    manual_worker = ManualWorker(conn)
    one, two = await manual_worker.claim_tasks(2)
    await manual_worker.finish_task(one)
    assert (await jobs.cancel_job(conn, created.id))["cancelled"]
    assert await manual_worker.finish_task(two) == "stale"
    assert await read_task_statuses(conn, created.id) == {
        "a": "succeeded", "b": "cancelled", "c": "cancelled", "d": "cancelled",
    }  # fmt: skip
    assert (await read_job(conn, created.id))["status"] == "cancelled"
    assert await manual_worker.claim_tasks(5) == []


async def test_cancelling_one_task_resolves_its_children(conn: Connection) -> None:
    created = await submit_graph(
        conn,
        {"name": "a"},
        {"name": "b", "after": ["a"]},
        {"name": "c", "after": [{"name": "a", "on_failure": "run"}]},
    )
    assert created.tasks is not None
    assert await conn.fetchval("select holdfast.cancel_task($1)", created.tasks["a"])
    assert not await conn.fetchval("select holdfast.cancel_task($1)", created.tasks["a"])
    assert await read_task_statuses(conn, created.id) == {"a": "cancelled", "b": "cancelled", "c": "ready"}
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    assert (await read_job(conn, created.id))["status"] == "cancelled"


async def test_by_filter(conn: Connection) -> None:
    await submit_job(conn, type="a", labels={"x": "1", "y": "2"})
    await submit_job(conn, type="b", labels={"x": "1"})
    await submit_job(conn, type="b", labels={"x": "2"}, owner="ann")
    await submit_graph(conn, {"name": "a"}, {"name": "b"}, labels={"x": "1"})
    with expect_error("HF004", "filter"):
        await conn.fetchval("select holdfast.cancel_jobs('{}')")

    async def cancel(what: str) -> int:
        return int(await conn.fetchval("select holdfast.cancel_jobs($1)", what))

    assert await cancel('{"labels": {"x": "1"}, "type": "b"}') == 1
    assert await cancel('{"labels": {"x": "1"}}') == 2
    assert await cancel('{"labels": {"x": "1"}}') == 0
    assert await cancel('{"owner": "ann"}') == 1
    assert await cancel('{"queue": "q"}') == 0


async def test_cancelled_work_frees_its_limit(conn: Connection) -> None:
    await conn.execute("select holdfast.put_limit('one', p_queue => 'q', p_max_running => 1)")
    first, second = await submit_job(conn), await submit_job(conn)
    manual_worker = ManualWorker(conn)
    assert [t.id for t in await manual_worker.claim_tasks(5)] == [first]
    await jobs.cancel_job(conn, first)
    assert [t.id for t in await manual_worker.claim_tasks(5)] == [second]
