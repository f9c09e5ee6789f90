"""Dependencies: children released once, failure policies, outputs, added children, batches."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from manual_worker import (
    QUEUE,
    ManualWorker,
    build_outcome,
    expect_error,
    read_job,
    read_task_statuses,
    run_ticks,
    submit_graph,
    submit_job,
    wait_until_blocked_or_done,
)

from holdfast.engine import jobs
from holdfast.engine.connection import Connection
from holdfast.settings import Secret


async def test_a_child_runs_after_its_parents_with_their_outputs(conn: Connection) -> None:
    created = await submit_graph(conn, {"name": "a"}, {"name": "b"}, {"name": "c", "after": ["a", "b"]})
    manual_worker = ManualWorker(conn)
    tasks = await manual_worker.claim_tasks(5)
    assert [task.name for task in tasks] == ["a", "b"]
    await manual_worker.finish_task(tasks[0], "succeed", {"n": 1})
    assert await manual_worker.claim_tasks(5) == []
    await manual_worker.finish_task(tasks[1], "succeed", 2)
    child = await manual_worker.claim_one_task()
    assert child.parents == {"a": {"n": 1}, "b": 2}
    await manual_worker.finish_task(child, "succeed", "done")
    ended = await read_job(conn, created.id)
    assert (ended["status"], ended["output"], ended["progress"]["percent"]) == ("succeeded", "done", 100)


async def test_finish_and_claim_in_one_trip_release_the_child(conn: Connection) -> None:
    await submit_graph(conn, {"name": "a"}, {"name": "b", "after": ["a"]})
    manual_worker = ManualWorker(conn)
    task = await manual_worker.claim_one_task()
    answer = await manual_worker.finish_and_claim([build_outcome(task)], slots=1)
    assert [t.name for t in answer.tasks] == ["b"]


@pytest.mark.parametrize(
    ("on_failure", "child", "grandchild", "whole"),
    [
        ("fail", "failed", "failed", "failed"),
        ("skip", "cancelled", "cancelled", "failed"),
        ("run", "ready", "waiting", "running"),
    ],
)
async def test_children_of_a_failed_task_follow_their_policy(
    conn: Connection, on_failure: str, child: str, grandchild: str, whole: str
) -> None:
    created = await submit_graph(
        conn,
        {"name": "a", "attempts": 1},
        {"name": "b", "after": [{"name": "a", "on_failure": on_failure}]},
        {"name": "c", "after": ["b"]},
    )
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(
        await manual_worker.claim_one_task(), "fail", {"type": "E", "message": "m"}
    )
    assert await read_task_statuses(conn, created.id) == {"a": "failed", "b": child, "c": grandchild}
    ended = await read_job(conn, created.id)
    assert ended["status"] == whole
    if on_failure == "skip":
        assert ended["counts"]["skipped"] == 2


async def test_a_job_that_allows_it_ends_as_partial(conn: Connection) -> None:
    created = await submit_graph(conn, {"name": "a"}, {"name": "b"}, partial=True)
    manual_worker = ManualWorker(conn)
    one, two = await manual_worker.claim_tasks(2)
    await manual_worker.finish_task(one)
    await manual_worker.finish_task(two, "reject", {"type": "E", "message": "m"})
    ended = await read_job(conn, created.id)
    assert ended["status"] == "partial"
    assert ended["error"]["task"] == "b"


async def test_the_last_two_parents_at_once_release_the_child_once(
    conn: Connection, second: Connection, url: Secret
) -> None:
    watch = await asyncpg.connect(url.reveal())
    created = await submit_graph(conn, {"name": "a"}, {"name": "b"}, {"name": "c", "after": ["a", "b"]})
    one, two = await ManualWorker(conn).claim_tasks(2)
    transaction = conn.transaction()
    await transaction.start()
    await ManualWorker(conn).finish_task(one)
    other = asyncio.create_task(ManualWorker(second).finish_task(two))
    await wait_until_blocked_or_done(watch, second.get_server_pid(), other)
    await transaction.commit()
    assert await other == "ok"
    assert await read_task_statuses(conn, created.id) == {"a": "succeeded", "b": "succeeded", "c": "ready"}
    assert len(await ManualWorker(conn).claim_tasks(5)) == 1
    await watch.close()


async def _finish_tasks_at_random(
    manual_worker: ManualWorker, chance: random.Random, fails: float, seen: list[tuple[str, str]]
) -> None:
    empty = 0
    while empty < 3:
        tasks = await manual_worker.claim_tasks(3)
        empty = 0 if tasks else empty + 1
        for task in tasks:
            assert task.name is not None
            bad = chance.random() < fails
            seen.append((str(task.job_id), task.name))
            await manual_worker.finish_task(
                task, "reject" if bad else "succeed", {"type": "E", "message": "m"}
            )


def _compute_expected_statuses(
    nodes: list[dict[str, Any]], failed: set[str], ran: set[str]
) -> dict[str, str]:
    """The rules of dependencies.sql, said once more in Python."""
    ends: dict[str, str] = {}
    for node in nodes:
        outcome = 0
        for edge in node["after"]:
            parent = ends[edge["name"]]
            if parent == "succeeded" or edge["on_failure"] == "run":
                continue
            outcome = max(outcome, 1 if edge["on_failure"] == "skip" or parent == "skipped" else 3)
        if outcome:
            ends[node["name"]] = "skipped" if outcome == 1 else "failed"
            assert node["name"] not in ran
        else:
            assert node["name"] in ran
            ends[node["name"]] = "failed" if node["name"] in failed else "succeeded"
    return ends


@pytest.mark.parametrize("seed", range(6))
async def test_random_graphs_end_as_the_rules_say(conn: Connection, url: Secret, seed: int) -> None:
    chance = random.Random(seed)
    created: dict[str, list[dict[str, Any]]] = {}
    for _ in range(8):
        size = chance.randint(2, 25)
        nodes: list[dict[str, Any]] = [
            {
                "name": f"n{n}",
                "after": [
                    {"name": f"n{p}", "on_failure": chance.choice(["fail", "skip", "run"])}
                    for p in sorted(chance.sample(range(n), min(n, chance.randint(0, 3))))
                ],
            }
            for n in range(size)
        ]
        created[str((await submit_graph(conn, *nodes)).id)] = nodes
    seen: list[tuple[str, str]] = []
    connections = [await asyncpg.connect(url.reveal()) for _ in range(3)]
    await asyncio.gather(
        *(
            _finish_tasks_at_random(ManualWorker(c, f"w{n}"), random.Random(seed * 10 + n), 0.25, seen)
            for n, c in enumerate(connections)
        )
    )
    assert len(seen) == len(set(seen)), "a task ran twice"
    for job_id, nodes in created.items():
        rows = await read_job(conn, job_id)  # type: ignore[arg-type]
        ran = {name for each, name in seen if each == job_id}
        ends = {
            t["name"]: "skipped" if (t["error"] or {}).get("type") == "Skipped" else t["status"]
            for t in rows["tasks"]
        }
        failed = {name for name in ran if ends[name] == "failed"}
        expected = _compute_expected_statuses(nodes, failed, ran)
        assert {n: e for n, e in ends.items() if e != "succeeded"} == {
            n: e for n, e in expected.items() if e != "succeeded"
        }
        assert rows["status"] == ("failed" if "failed" in expected.values() else "succeeded")
    for connection in connections:
        await connection.close()


async def add_child_tasks(conn: Connection, task: Any, *children: dict[str, Any]) -> dict[str, Any]:
    text = await conn.fetchval(
        "select holdfast.add_tasks($1, $2, $3, $4)",
        task.id,
        task.attempt,
        task.nonce,
        msgspec.json.encode([{"type": "t", "queue": QUEUE, **child} for child in children]).decode(),
    )
    return dict(msgspec.json.decode(text))


async def test_a_running_task_adds_children_to_its_job(conn: Connection) -> None:
    created = await submit_job(conn, owner="ann", labels={"a": "b"})
    manual_worker = ManualWorker(conn)
    parent = await manual_worker.claim_one_task()
    await add_child_tasks(conn, parent, {"name": "now"}, {"name": "then", "after": ["now", "t"]})
    again = await add_child_tasks(conn, parent, {"name": "now"}, {"name": "more", "after": ["then"]})
    assert set(again) == {"now", "more"}
    assert (await read_job(conn, created))["counts"]["total"] == 4
    child = await manual_worker.claim_one_task()
    assert (child.name, child.job_id) == ("now", created)
    await manual_worker.finish_task(child, "succeed", 1)
    assert await manual_worker.claim_tasks(5) == []
    await manual_worker.finish_task(parent, "succeed", 2)
    last = await manual_worker.claim_one_task()
    assert last.parents == {"now": 1, "t": 2}
    await manual_worker.finish_task(last)
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    ended = await read_job(conn, created)
    assert (ended["status"], ended["owner"], ended["labels"]) == ("succeeded", "ann", {"a": "b"})


async def test_children_of_a_parent_that_has_ended_are_decided_at_once(conn: Connection) -> None:
    created = await submit_graph(conn, {"name": "bad"}, {"name": "b"})
    manual_worker = ManualWorker(conn)
    bad, b = await manual_worker.claim_tasks(2)
    await manual_worker.finish_task(bad, "reject", {"type": "E", "message": "m"})
    await add_child_tasks(
        conn,
        b,
        {"name": "x", "after": ["bad"]},
        {"name": "y", "after": [{"name": "bad", "on_failure": "run"}]},
    )
    assert await read_task_statuses(conn, created.id) == {
        "bad": "failed",
        "b": "running",
        "x": "failed",
        "y": "ready",
    }


async def test_a_dependency_is_counted_once(conn: Connection) -> None:
    """A late child makes the ended parent decide again; its other children must not notice."""
    created = await submit_graph(conn, {"name": "a"}, {"name": "q"}, {"name": "c", "after": ["a", "q"]})
    manual_worker = ManualWorker(conn)
    a, q = await manual_worker.claim_tasks(2)
    await manual_worker.finish_task(a)
    await add_child_tasks(conn, q, {"name": "x", "after": ["a"]})
    assert await read_task_statuses(conn, created.id) == {
        "a": "succeeded",
        "q": "running",
        "c": "waiting",
        "x": "ready",
    }


async def test_invalid_children_are_refused(conn: Connection) -> None:
    await submit_job(conn)
    parent = await ManualWorker(conn).claim_one_task()
    with expect_error("HF004", "after"):
        await add_child_tasks(conn, parent, {"name": "x", "after": ["nobody"]})
    with expect_error("HF004", "after"):
        await add_child_tasks(conn, parent, {"name": "x", "after": ["y"]}, {"name": "y", "after": ["x"]})
    assert await ManualWorker(conn).finish_task(parent) == "ok"


async def test_a_job_is_run_again_from_where_it_failed(conn: Connection) -> None:
    created = await submit_graph(
        conn, {"name": "a"}, {"name": "b", "after": ["a"]}, {"name": "c", "after": ["b"]}
    )
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(await manual_worker.claim_one_task(), "succeed", 1)
    failed = await manual_worker.claim_one_task()
    await manual_worker.finish_task(failed, "reject", {"type": "E", "message": "m"})
    assert (await read_job(conn, created.id))["status"] == "failed"
    response = msgspec.json.decode(await conn.fetchval("select holdfast.retry_job($1)", created.id))
    assert response == {"restarted": 2, "status": "running"}
    again = await manual_worker.claim_one_task()
    assert (again.name, again.parents) == ("b", {"a": 1})
    assert again.attempt == failed.attempt + 1
    assert await manual_worker.finish_task(failed) == "stale"
    await manual_worker.finish_task(again)
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    ended = await read_job(conn, created.id)
    assert (ended["status"], ended["counts"]["succeeded"]) == ("succeeded", 3)


async def test_a_job_is_run_again_from_a_chosen_task_also_after_it_was_archived(
    conn: Connection, clock: Any
) -> None:
    created = await submit_graph(
        conn, {"name": "a"}, {"name": "b", "after": ["a"]}, {"name": "c", "after": ["b"]}, {"name": "d"}
    )
    manual_worker = ManualWorker(conn)
    for _ in range(4):
        for task in await manual_worker.claim_tasks(5):
            await manual_worker.finish_task(task, "succeed", 1)
    await clock.advance(timedelta(minutes=5))
    await run_ticks(conn)
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 0
    assert (await read_job(conn, created.id))["status"] == "succeeded"
    await conn.execute("select holdfast.retry_job($1, array['b'])", created.id)
    assert await read_task_statuses(conn, created.id) == {
        "a": "succeeded",
        "b": "ready",
        "c": "waiting",
        "d": "succeeded",
    }
    for _ in range(2):
        for task in await manual_worker.claim_tasks(5):
            await manual_worker.finish_task(task, "succeed", 2)
    assert (await read_job(conn, created.id))["output"] is None  # two tasks have nothing after them
    assert (await read_job(conn, created.id))["status"] == "succeeded"


async def test_a_batch_calls_back_once_after_its_last_member(
    conn: Connection, second: Connection, url: Secret
) -> None:
    watch = await asyncpg.connect(url.reveal())
    batch = await conn.fetchval(
        "select holdfast.open_batch('b', $1)", '{"type": "callback", "queue": "later", "args": {"x": 1}}'
    )
    one = await submit_job(conn, batch=str(batch))
    await submit_graph(conn, {"name": "a"}, {"name": "b", "after": ["a"]}, batch=str(batch))
    manual_worker = ManualWorker(conn)
    tasks = await manual_worker.claim_tasks(5)
    await conn.execute("select holdfast.close_batch($1)", batch)
    with expect_error("HF003", "batch"):
        await submit_job(conn, batch=str(batch))
    single = next(task for task in tasks if task.id == one)
    await manual_worker.finish_task(next(task for task in tasks if task.name == "a"))
    last = await manual_worker.claim_one_task()
    transaction = conn.transaction()
    await transaction.start()
    await manual_worker.finish_task(single)
    other = asyncio.create_task(
        ManualWorker(second).finish_task(last, "reject", {"type": "E", "message": "m"})
    )
    await wait_until_blocked_or_done(watch, second.get_server_pid(), other)
    await transaction.commit()
    await other
    assert [t.type for t in await ManualWorker(conn, queues=["later"]).claim_tasks(5)] == ["callback"]
    response = msgspec.json.decode(await conn.fetchval("select holdfast.get_batch($1)", batch))
    assert (response["total"], response["ended"], response["failed"]) == (2, 2, 1)
    await watch.close()


async def test_a_batch_whose_members_have_ended_calls_back_when_it_is_closed(conn: Connection) -> None:
    batch = await conn.fetchval(
        "select holdfast.open_batch('b', $1)", '{"type": "callback", "queue": "later"}'
    )
    await submit_job(conn, batch=str(batch))
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    later = ManualWorker(conn, queues=["later"])
    assert await later.claim_tasks(5) == []
    await conn.execute("select holdfast.close_batch($1)", batch)
    await conn.execute("select holdfast.close_batch($1)", batch)
    assert len(await later.claim_tasks(5)) == 1


async def read_batch_counts(conn: Connection, batch: UUID) -> tuple[str, int, int, int]:
    response = msgspec.json.decode(await conn.fetchval("select holdfast.get_batch($1)", batch))
    return response["status"], response["total"], response["ended"], response["failed"]


async def test_a_member_that_runs_again_is_not_counted_and_there_is_no_second_callback(
    conn: Connection,
) -> None:
    batch = await conn.fetchval(
        "select holdfast.open_batch('b', $1)", '{"type": "callback", "queue": "later"}'
    )
    created = await submit_job(conn, batch=str(batch))
    await conn.execute("select holdfast.close_batch($1)", batch)
    manual_worker, later = ManualWorker(conn), ManualWorker(conn, queues=["later"])
    await manual_worker.finish_task(
        await manual_worker.claim_one_task(), "reject", {"type": "E", "message": "m"}
    )
    assert await read_batch_counts(conn, batch) == ("failed", 1, 1, 1)
    assert len(await later.claim_tasks(5)) == 1
    assert await jobs.retry_job(conn, created) == 1
    assert await read_batch_counts(conn, batch) == ("running", 1, 0, 0)
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    assert await read_batch_counts(conn, batch) == ("succeeded", 1, 1, 0)
    assert await later.claim_tasks(5) == []


async def test_a_batch_waits_for_a_member_that_runs_again(conn: Connection) -> None:
    batch = await conn.fetchval(
        "select holdfast.open_batch('b', $1)", '{"type": "callback", "queue": "later"}'
    )
    created = await submit_graph(conn, {"name": "a"}, {"name": "b", "after": ["a"]}, batch=str(batch))
    await submit_job(conn, batch=str(batch))
    await conn.execute("select holdfast.close_batch($1)", batch)
    manual_worker, later = ManualWorker(conn), ManualWorker(conn, queues=["later"])
    first = await manual_worker.claim_tasks(5)
    await manual_worker.finish_task(
        next(task for task in first if task.name == "a"), "reject", {"type": "E", "message": "m"}
    )
    assert await read_batch_counts(conn, batch) == ("running", 2, 1, 1)
    await jobs.retry_job(conn, created.id)
    again = await manual_worker.claim_one_task()
    await manual_worker.finish_task(next(task for task in first if task.name != "a"))
    assert await read_batch_counts(conn, batch) == ("running", 2, 1, 0)
    assert await later.claim_tasks(5) == []
    await manual_worker.finish_task(again)
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    assert await read_batch_counts(conn, batch) == ("succeeded", 2, 2, 0)
    assert len(await later.claim_tasks(5)) == 1


async def test_cancelled_members_count(conn: Connection) -> None:
    batch = await conn.fetchval(
        "select holdfast.open_batch('b', $1)", '{"type": "callback", "queue": "later"}'
    )
    await submit_job(conn, batch=str(batch))
    await conn.execute("select holdfast.close_batch($1)", batch)
    assert (
        await conn.fetchval("select holdfast.cancel_jobs(jsonb_build_object('batch', $1::text))", str(batch))
        == 1
    )
    assert len(await ManualWorker(conn, queues=["later"]).claim_tasks(5)) == 1
    assert await read_batch_counts(conn, batch) == ("cancelled", 1, 1, 0)


async def test_graphs_and_single_tasks_are_listed_together(conn: Connection) -> None:
    created = await submit_graph(conn, {"name": "a"}, {"name": "b"}, owner="ann")
    single = await submit_job(conn, owner="ann")
    listed = await jobs.list_jobs(conn, {"owner": "ann"})
    assert [each["id"] for each in listed] == [str(single), str(created.id)]
    assert await jobs.list_jobs(conn, {"owner": "bob"}) == []
    rest = await jobs.list_jobs(conn, {"owner": "ann"}, before=single)
    assert [each["id"] for each in rest] == [str(created.id)]
