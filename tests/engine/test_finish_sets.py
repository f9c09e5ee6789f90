"""Outcomes of many tasks that are recorded at once leave the same rows as if recorded one by one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import pytest
from manual_worker import (
    QUEUE,
    ManualWorker,
    build_outcome,
    read_job,
    read_task_row,
    read_task_statuses,
    submit_graph,
    submit_job,
)

from holdfast.engine.connection import Connection
from holdfast.engine.leases import LeasedTask, OutcomeKind

ERROR = {"type": "ValueError", "message": "no", "traceback": "Traceback ...", "fingerprint": "ValueError x"}
OUTCOMES: list[tuple[OutcomeKind, Any]] = [
    ("succeed", {"answer": 42}),
    ("succeed", None),
    ("fail", ERROR),
    ("fail", {**ERROR, "retry": False}),
    ("fail", {**ERROR, "retry_after_s": 3600}),
    (
        "fail",
        {"type": 7, "message": ["x"], "traceback": {"a": 1}, "fingerprint": [1], "retry_after_s": "soon"},
    ),
    ("fail", {"message": "m" * 9000, "traceback": "t" * 40_000}),
    ("fail", None),
    ("reject", ERROR),
    ("reject", {"reason": "not today"}),
    ("snooze", {"delay_s": 30}),
    ("snooze", {}),
]
JOBS: list[dict[str, Any]] = [
    {},
    {"attempts": 1},
    {"owner": "ann", "labels": {"a": "b"}},
    {"owner": "ann", "attempts": 1, "limit_key": "k", "priority": 5},
    {"base_s": 0},
    {"name": "named", "attempts": 1},
]
# Columns that differ between two tasks of the same sort.
OWN_COLUMNS = "{id,job_id,task_id,nonce,pos,args,unique_key,batch_id,lane_id,seq}"
FINISH_AT_ONCE = "select holdfast.finish_tasks($1, $2, $3, $4, $5, $6)"
FINISH_ONE_BY_ONE = """
select holdfast.apply_task_end_effects(r.lanes, r.effects || holdfast.resolve_dependencies(r.ended, $6), $6)
from holdfast.record_remaining_outcomes($1, $2, $3, $4, $5, '{}', $6) as r
"""


async def finish_tasks(
    conn: Connection, call: str, pairs: Sequence[tuple[LeasedTask, tuple[OutcomeKind, Any]]], now: datetime
) -> None:
    await conn.fetchval(
        call,
        [task.id for task, _ in pairs],
        [task.attempt for task, _ in pairs],
        [task.nonce for task, _ in pairs],
        [kind for _, (kind, _) in pairs],
        [None if body is None else msgspec.json.encode(body).decode() for _, (_, body) in pairs],
        now,
    )


async def read_rows(conn: Connection, table: str, task: LeasedTask, now: datetime) -> list[Any]:
    """Return the rows of a task without what is its own, and `keep_until` as minutes from now."""
    key = {"events": "job_id", "attempts": "task_id"}.get(table, "id")
    rows = await conn.fetch(
        "select to_jsonb(r) - $2::text[] || case when to_jsonb(r) ? 'keep_until' then jsonb_build_object("
        "'keep_until', round(extract(epoch from (to_jsonb(r) ->> 'keep_until')::timestamptz - $3) / 60)) "
        f"else '{{}}' end from holdfast.{table} as r where r.{key} = $1 order by 1",
        task.id,
        OWN_COLUMNS.strip("{}").split(","),
        now,
    )
    values = [msgspec.json.decode(row[0]) for row in rows]
    for value in values:
        if value.get("status") in ("succeeded", "failed"):  # it is still the time of the submit
            value.pop("due_at")
    return values


async def assert_same_rows(
    conn: Connection, at_once: LeasedTask, alone: LeasedTask, now: datetime, what: object
) -> None:
    for table in ("tasks", "history", "attempts", "events"):
        rows = [await read_rows(conn, table, task, now) for task in (at_once, alone)]
        assert rows[0] == rows[1], (table, what)


@pytest.mark.parametrize("job", JOBS, ids=str)
async def test_jobs_of_one_task(conn: Connection, job: dict[str, Any]) -> None:
    worker = ManualWorker(conn)
    for _ in range(2 * len(OUTCOMES)):
        await submit_job(conn, jitter=0, **job)
    tasks = await worker.claim_tasks(2 * len(OUTCOMES))
    now = await conn.fetchval("select holdfast.now()")
    half = len(OUTCOMES)
    await finish_tasks(conn, FINISH_AT_ONCE, list(zip(tasks[:half], OUTCOMES, strict=True)), now)
    await finish_tasks(conn, FINISH_ONE_BY_ONE, list(zip(tasks[half:], OUTCOMES, strict=True)), now)
    for at_once, alone, outcome in zip(tasks[:half], tasks[half:], OUTCOMES, strict=True):
        await assert_same_rows(conn, at_once, alone, now, outcome)


@pytest.mark.parametrize("attempts", [1, 5])
async def test_tasks_of_graphs(conn: Connection, attempts: int) -> None:
    worker = ManualWorker(conn)
    for number, outcome in enumerate(OUTCOMES):
        task_type = f"t{number}"
        options = {"type": task_type, "jitter": 0, "attempts": attempts}
        graphs = [
            await submit_graph(
                conn,
                {**options, "name": "a"},
                {**options, "name": "b"},
                {**options, "name": "c", "after": ["a", {"name": "b", "on_failure": "run"}]},
                owner="ann",
                partial=True,
            )
            for _ in range(2)
        ]
        tasks = await worker.claim_tasks(4, types=[task_type])
        first, second = ([task for task in tasks if task.job_id == graph.id] for graph in graphs)
        now = await conn.fetchval("select holdfast.now()")
        await finish_tasks(conn, FINISH_AT_ONCE, [(task, outcome) for task in first], now)
        await finish_tasks(conn, FINISH_ONE_BY_ONE, [(task, outcome) for task in second], now)
        for at_once, alone in zip(first, second, strict=True):
            await assert_same_rows(conn, at_once, alone, now, outcome)
        views = [await read_job(conn, graph.id) for graph in graphs]
        for field in ("counts", "status", "progress"):
            assert views[0][field] == views[1][field]
        statuses = [await read_task_statuses(conn, graph.id) for graph in graphs]
        assert statuses[0] == statuses[1]


async def test_a_lease_that_is_reported_twice_in_one_call_counts_once(conn: Connection) -> None:
    worker = ManualWorker(conn)
    await submit_job(conn)
    await submit_graph(conn, {"name": "a"}, {"name": "b"})
    tasks = await worker.claim_tasks(3)
    response = await worker.finish_and_claim(
        [build_outcome(task, "fail", ERROR) for task in [*tasks, *tasks]]
    )
    assert list(response.answers) == ["ok"] * 6
    assert await conn.fetchval("select count(*) from holdfast.attempts") == 3
    for task in tasks:
        assert (await read_task_row(conn, task.id))["failures"] == 1


async def test_the_last_of_ten_thousand_snoozes_fails_the_task(conn: Connection) -> None:
    worker = ManualWorker(conn)
    job = await submit_job(conn)
    task = await worker.claim_one_task()
    await conn.execute("update holdfast.tasks set snoozes = 10000")
    await worker.finish_task(task, "snooze", {"delay_s": 1})
    assert (await read_job(conn, job))["error"]["type"] == "TooManySnoozes"


async def test_a_retry_of_a_returned_task_goes_back_to_the_lane_of_its_submit(conn: Connection) -> None:
    worker = ManualWorker(conn)
    await submit_job(conn, base_s=0)
    await worker.finish_task(await worker.claim_one_task(), "release")
    returned = await worker.claim_one_task()
    lane = "select l.returned from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id"
    assert await conn.fetchval(lane) is True
    await worker.finish_task(returned, "fail", ERROR)
    assert await conn.fetchval(lane) is False
    assert (await worker.claim_one_task()).attempt == 3


async def test_failures_lower_the_counters_of_limits(conn: Connection) -> None:
    await conn.execute("select holdfast.put_limit('one', p_queue => $1, p_max_running => 1)", QUEUE)
    worker = ManualWorker(conn)
    for attempts in (1, 5, 1):
        await submit_job(conn, attempts=attempts)
    await submit_graph(conn, {"name": "a", "attempts": 1}, {"name": "b"})
    for _ in range(5):
        (task,) = await worker.claim_tasks(5)
        assert await worker.claim_tasks(5) == []
        assert await worker.finish_task(task, "fail", ERROR) == "ok"


async def test_the_traceback_of_a_failed_task_is_stored_once_and_shown(conn: Connection) -> None:
    worker = ManualWorker(conn)
    single = await submit_job(conn, attempts=1)
    graph = await submit_graph(conn, {"name": "a", "attempts": 1}, {"name": "b", "after": ["a"]})
    for task in await worker.claim_tasks(2):
        await worker.finish_task(task, "fail", ERROR)
    assert (await read_job(conn, single))["error"]["traceback"] == "Traceback ..."
    tasks = {task["name"]: task for task in (await read_job(conn, graph.id))["tasks"]}
    assert tasks["a"]["error"]["traceback"] == "Traceback ..."
    assert "traceback" not in tasks["b"]["error"]
    assert await conn.fetchval("select count(*) from holdfast.history where error ? 'traceback'") == 0


@pytest.mark.parametrize("jobs", [10, 10_000])
async def test_failures_read_only_their_own_rows(conn: Connection, jobs: int) -> None:
    """The plans go from the outcomes to the tasks, whatever else there is and whatever the statistics say."""
    worker = ManualWorker(conn)
    await worker.finish_task((await submit_and_claim(conn, worker, 1))[0], "fail", ERROR)  # plans are cached
    body = msgspec.json.encode([{"type": "other", "queue": "other", "args": {}}] * 1000).decode()
    for _ in range(jobs // 1000):
        await conn.execute("select holdfast.submit_many($1)", body)
    tasks = await submit_and_claim(conn, worker, 10)
    before = await count_read_rows(conn)
    await worker.finish_and_claim([build_outcome(task, "fail", ERROR) for task in tasks])
    assert await count_read_rows(conn) - before < 200


async def submit_and_claim(conn: Connection, worker: ManualWorker, count: int) -> list[LeasedTask]:
    for _ in range(count):
        await submit_job(conn)
    return await worker.claim_tasks(count)


async def count_read_rows(conn: Connection) -> int:
    await conn.execute("select pg_stat_force_next_flush()")
    return int(
        await conn.fetchval(
            "select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) from pg_stat_user_tables "
            "where relname in ('tasks', 'jobs', 'dependencies')"
        )
    )
