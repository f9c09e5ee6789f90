"""What people at a terminal ask of the engine."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
from hands import Hand, graph, job, refused, submit

from holdfast.engine import jobs, limits, operate
from holdfast.engine.connection import Connection
from holdfast.testing import Clock


async def test_queues_with_what_waits_and_who_serves_them(conn: Connection, clock: Clock) -> None:
    for _ in range(3):
        await submit(conn)
    await submit(conn, queue="other", delay_s=60)
    await limits.pause_queue(conn, "third", why="maintenance", by="ann")
    await Hand(conn).take(1)
    await clock.advance(timedelta(seconds=90))
    found = {row["queue"]: row for row in await operate.task_queues(conn)}
    q = found["q"]
    assert (q["ready"], q["running"], q["scheduled"], q["workers"]) == (2, 1, 0, 1)
    assert q["oldest_s"] >= 90
    assert (found["other"]["scheduled"], found["other"]["workers"]) == (1, 0)
    assert (found["third"]["paused_by"], found["third"]["paused_why"]) == ("ann", "maintenance")
    assert [row["queue"] for row in await operate.task_queues(conn, "other")] == ["other"]
    assert await operate.task_queues(conn, "none") == []


async def test_how_many_workers_a_queue_could_use(conn: Connection, clock: Clock) -> None:
    assert await operate.desired_workers(conn, "none") == 0
    for _ in range(17):
        await submit(conn)
    assert await operate.desired_workers(conn, "q") == 3
    await clock.advance(timedelta(minutes=2, seconds=5))
    assert await operate.desired_workers(conn, "q") == 5  # two minutes of waiting
    await clock.advance(timedelta(hours=2))
    assert await operate.desired_workers(conn, "q", per_worker=10) == 4  # never more than twice as many
    await limits.pause_queue(conn, "q")
    assert await operate.desired_workers(conn, "q") == 0
    with refused("HF004", "per_worker"):
        await operate.desired_workers(conn, "q", per_worker=0)


async def test_workers_and_what_they_run(conn: Connection, clock: Clock) -> None:
    await submit(conn, timeout_s=300)
    (task,) = await Hand(conn, "ann").take(1)
    await Hand(conn, "bob").take(1)
    await clock.advance(timedelta(seconds=62))
    await Hand(conn, "bob").take(1)  # takes the lease back; the task rests for a few seconds
    await clock.advance(timedelta(seconds=30))
    await Hand(conn, "bob").take(1)
    found = {row["name"]: row for row in await operate.list_workers(conn)}
    assert (found["ann"]["state"], found["ann"]["running"]) == ("quiet", 0)  # its lease went to bob
    assert (found["bob"]["state"], found["bob"]["running"]) == ("live", 1)
    (running,) = await operate.worker_tasks(conn, "bob")
    assert (running["task"], running["attempt"]) == (str(task.id), 2)
    assert await operate.worker_tasks(conn, "nobody") == []
    await clock.advance(timedelta(hours=2))
    assert [row["name"] for row in await operate.list_workers(conn)] == ["bob"]  # it still holds something


async def test_limits_with_what_is_in_use(conn: Connection) -> None:
    await limits.put_limit(conn, limits.Limit(name="each", queue="q", per_key=True, max_running=2))
    for key in ("a", "b", "b", "b"):
        await submit(conn, limit_key=key)
    assert len(await Hand(conn).take(9)) == 3
    (found,) = await operate.list_limits(conn)
    assert (found["name"], found["running"], found["keys"], found["fullest"]) == ("each", 3, 2, ["b", "a"])


async def test_an_id_by_its_beginning(conn: Connection) -> None:
    first, second = await submit(conn), await submit(conn)
    await Hand(conn).finish(await Hand(conn).one())
    assert await operate.jobs_like(conn, str(first)) == [first]
    assert await operate.jobs_like(conn, str(second)[:-1].upper()) == [second]
    assert await operate.jobs_like(conn, str(first)[:8]) == sorted([first, second])
    for wrong in ("", "abc", "zzzzzz", "'; --", str(first) + "0"):
        assert await operate.jobs_like(conn, wrong) == []


async def test_a_job_again_as_it_was_submitted(conn: Connection) -> None:
    given: dict[str, Any] = {
        "args": {"url": "x", "nothing": None}, "priority": 3, "limit_key": "k", "attempts": 2,
        "owner": "ann", "labels": {"a": "b"}, "type": "t", "queue": "q",
    }  # fmt: skip
    made = await jobs.submit(conn, {**given, "key": "once"})
    assert await operate.submission(conn, made.id) == given
    await Hand(conn).finish(await Hand(conn).one())
    assert await operate.submission(conn, made.id) == given
    with refused("HF002"):
        await operate.submission(conn, UUID(int=1))


async def test_a_graph_again_without_what_its_tasks_added(conn: Connection) -> None:
    made = await graph(
        conn,
        {"name": "a", "type": "t", "args": {"n": 1}, "weight": 2},
        {"name": "b", "type": "t", "after": [{"name": "a", "on_failure": "skip"}]},
        type="pair", params={"p": 1},
    )  # fmt: skip
    task = await Hand(conn).one()
    await conn.fetchval(
        "select holdfast.add_tasks($1, $2, $3, $4)",
        task.id,
        task.attempt,
        task.nonce,
        '[{"name":"c","type":"t"}]',
    )
    body = await operate.submission(conn, made.id)
    assert [(t["name"], t["args"], t.get("after")) for t in body["tasks"]] == [
        ("a", {"n": 1}, None),
        ("b", None, [{"name": "a", "on_failure": "skip"}]),
    ]
    assert (body["type"], body["params"]) == ("pair", {"p": 1})
    again = await jobs.submit(conn, body)
    assert [t["name"] for t in (await job(conn, again.id))["tasks"]] == ["a", "b"]


async def test_a_count_of_what_is_ready_stops_in_each_queue_and_says_so(conn: Connection) -> None:
    for kind in ("a", "b", "c"):  # a lane each
        await jobs.submit_many(conn, [{"type": kind, "queue": "full"} for _ in range(10)])
    await jobs.submit(conn, {"type": "a", "queue": "short"})
    asked = await conn.fetch("select q from holdfast.task_queues(null, 25) as q")
    found = {row["queue"]: row for row in (msgspec.json.decode(each["q"]) for each in asked)}
    assert (found["full"]["ready"], found["full"]["ready_exact"]) == (25, False)
    assert (found["short"]["ready"], found["short"]["ready_exact"]) == (1, True)
    assert found["full"]["oldest_s"] >= found["short"]["oldest_s"] >= 0
