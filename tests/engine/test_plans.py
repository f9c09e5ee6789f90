"""Query plans: a claim takes what was requested and reads only what it must, whatever the statistics say."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from manual_worker import QUEUE, ManualWorker, build_outcome

from holdfast.engine import jobs
from holdfast.engine.connection import Connection

PLANNER_SWITCHES = ("enable_nestloop", "enable_hashagg", "enable_material", "enable_sort", "enable_indexscan")


async def submit_ready_tasks(conn: Connection, count: int, keys: int = 0) -> None:
    for start in range(0, count, 1000):
        page = [
            {"type": "t", "queue": QUEUE, "args": {"n": n}, **({"limit_key": f"k{n % keys}"} if keys else {})}
            for n in range(start, min(start + 1000, count))
        ]
        await jobs.submit_many(conn, page)


@pytest.mark.parametrize("analysed", [False, True], ids=["no statistics", "statistics"])
async def test_a_claim_takes_what_was_requested_under_every_plan(conn: Connection, analysed: bool) -> None:
    await submit_ready_tasks(conn, 200)
    if analysed:
        await conn.execute("analyze holdfast.tasks")
    combinations = list(itertools.product(("on", "off"), repeat=len(PLANNER_SWITCHES)))
    assert len(combinations) == 32
    for number, values in enumerate(combinations):
        for switch, value in zip(PLANNER_SWITCHES, values, strict=True):
            await conn.execute(f"set {switch} = {value}")
        await conn.execute("discard plans")
        manual_worker = ManualWorker(conn)
        tasks = await manual_worker.claim_tasks(3)
        assert len(tasks) == 3
        assert await conn.fetchval("select count(*) from holdfast.tasks where status = 'running'") == 3, (
            values
        )
        kinds: list[Any] = (
            ["succeed", "release", "succeed"] if number % 2 else ["release", "succeed", "release"]
        )
        answer = await manual_worker.finish_and_claim(
            [build_outcome(t, k) for t, k in zip(tasks, kinds, strict=True)]
        )
        assert list(answer.answers) == ["ok"] * 3


async def count_read_pages(conn: Connection, *tables: str) -> int:
    """Pages of the tables (without any: of tasks) and their indexes that were looked at so far."""
    await conn.execute("select pg_stat_force_next_flush()")
    return int(
        await conn.fetchval(
            "select sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0)) "
            "from pg_statio_user_tables where relname = any ($1)",
            tables or ("tasks",),
        )
    )


async def claim_and_finish(conn: Connection, manual_worker: ManualWorker, batches: int) -> None:
    outcomes: list[Any] = []
    for _ in range(batches):
        answer = await manual_worker.finish_and_claim(outcomes, slots=50)
        outcomes = [build_outcome(task) for task in answer.tasks]
    await manual_worker.finish_and_claim(outcomes)


async def test_old_snapshots_do_not_make_claims_read_dead_rows(conn: Connection, second: Connection) -> None:
    """With an old snapshot pinned, the tenth thousand of tasks costs about what the first did."""
    if conn.get_server_version().major < 15:
        pytest.skip("pg_stat_force_next_flush came with 15")
    await submit_ready_tasks(conn, 12_000)
    pin = second.transaction(isolation="repeatable_read", readonly=True)
    await pin.start()
    await second.fetchval("select count(*) from holdfast.tasks")
    manual_worker = ManualWorker(conn)
    await claim_and_finish(conn, manual_worker, 20)
    costs: list[int] = []
    for _ in range(10):
        before = await count_read_pages(conn)
        await claim_and_finish(conn, manual_worker, 20)
        costs.append(await count_read_pages(conn) - before)
    await pin.rollback()
    assert max(costs) < 2 * min(costs), costs


async def test_old_snapshots_do_not_make_limits_slow(conn: Connection, second: Connection) -> None:
    """The same with keys and a limit for each, where the rows of lanes and limits have many versions."""
    if conn.get_server_version().major < 15:
        pytest.skip("pg_stat_force_next_flush came with 15")
    await conn.execute("select holdfast.put_limit('each', 'q', p_per_key => true, p_max_running => 10)")
    await submit_ready_tasks(conn, 12_000, keys=50)
    pin = second.transaction(isolation="repeatable_read", readonly=True)
    await pin.start()
    await second.fetchval("select count(*) from holdfast.tasks")
    manual_worker = ManualWorker(conn)
    await claim_and_finish(conn, manual_worker, 20)
    costs: list[int] = []
    for _ in range(10):
        before = await count_read_pages(conn, "tasks", "lanes", "limit_counters")
        await claim_and_finish(conn, manual_worker, 20)
        costs.append(await count_read_pages(conn, "tasks", "lanes", "limit_counters") - before)
    await pin.rollback()
    # Versions of the counters are read until they are pruned, so the pages grow slowly (1.7 to 2.2 times).
    assert max(costs) < 3 * min(costs), costs


async def test_many_keys_do_not_make_claims_walk_all_lanes(conn: Connection) -> None:
    if conn.get_server_version().major < 15:
        pytest.skip("pg_stat_force_next_flush came with 15")
    costs: list[int] = []
    for keys in (100, 3000):
        await submit_ready_tasks(conn, 3000, keys=keys)
        manual_worker = ManualWorker(conn)
        await claim_and_finish(conn, manual_worker, 5)
        before = await count_read_pages(conn, "lanes")
        await claim_and_finish(conn, manual_worker, 20)
        costs.append(await count_read_pages(conn, "lanes") - before)
        while tasks := await manual_worker.claim_tasks(500):
            await manual_worker.finish_and_claim([build_outcome(task) for task in tasks])
    assert costs[1] < 4 * costs[0], costs


INSERT_HISTORY = """
insert into holdfast.history (id, policy_id, due_at, finished_at, keep_until, attempt, failures, crashes,
  priority, status, owner)
select holdfast.new_id(), k.id, h.at, h.at, h.at + interval '1 day', 1, 0, 0, 0, $2, $3
from generate_series(1, $1::int) as n, (select holdfast.now() as at) as h,
  (select id from holdfast.task_policies limit 1) as k
"""
LISTS: list[tuple[dict[str, Any], int]] = [
    ({"status": "cancelled"}, 3),
    ({"status": "failed"}, 3),
    ({"status": "running"}, 1),
    ({"owner": "ada"}, 3),
    ({}, 50),
]


@pytest.mark.parametrize("analysed", [False, True], ids=["no statistics", "statistics"])
async def test_rare_jobs_are_found_without_reading_the_others(conn: Connection, analysed: bool) -> None:
    if conn.get_server_version().major < 15:
        pytest.skip("pg_stat_force_next_flush came with 15")
    await submit_ready_tasks(conn, 500)
    await ManualWorker(conn).claim_tasks(1)
    for status, owner in (("cancelled", None), ("failed", None), ("succeeded", "ada")):
        await conn.execute(INSERT_HISTORY, 3, status, owner)
    await conn.execute(INSERT_HISTORY, 20_000, "succeeded", None)
    if analysed:
        await conn.execute("analyze holdfast.history, holdfast.tasks")
    tables = [
        row["name"]
        for row in await conn.fetch(
            "select relname as name from pg_class where relname ~ '^(history|tasks|jobs)'"
        )
    ]
    for where, count in LISTS:
        before = await count_read_pages(conn, *tables)
        assert len(await jobs.list_jobs(conn, where)) == count, where
        assert await count_read_pages(conn, *tables) - before < 700, where
    before = await count_read_pages(conn, *tables)
    assert await jobs.cancel_jobs(conn, {"owner": "bob"}) == 0
    assert await count_read_pages(conn, *tables) - before < 50


async def test_finishing_uses_the_primary_key_only(conn: Connection) -> None:
    await submit_ready_tasks(conn, 3000)
    manual_worker = ManualWorker(conn)
    await claim_and_finish(conn, manual_worker, 40)
    tasks = await manual_worker.claim_tasks(20)
    before = await _count_table_scans(conn)
    for task in tasks:
        await manual_worker.finish_task(task)
    after = await _count_table_scans(conn)
    assert after["tasks_running"] == before["tasks_running"]
    assert after["tasks_pkey"] > before["tasks_pkey"]
    assert after["tasks"] == before["tasks"], "a sequential scan"


async def _count_table_scans(conn: Connection) -> dict[str, int]:
    await conn.execute("select pg_stat_force_next_flush()")
    rows = await conn.fetch(
        "select indexrelname as name, idx_scan as scans from pg_stat_user_indexes where relname = 'tasks' "
        "union all select relname, seq_scan from pg_stat_user_tables where relname = 'tasks'"
    )
    return {row["name"]: row["scans"] for row in rows}


INSERT_GRAPH_JOBS = """
insert into holdfast.jobs (id, type, owner, status, total, progress_weight, finished_at)
select gen_random_uuid(), 't', $2, $3, 1, 1, case when $3 = 'succeeded' then now() end
from generate_series(1, $1::int)
"""


@pytest.mark.parametrize("analysed", [False, True], ids=["no statistics", "statistics"])
async def test_the_limit_of_unfinished_jobs_reads_only_those_of_its_user(
    conn: Connection, analysed: bool
) -> None:
    await conn.execute("set plan_cache_mode = force_generic_plan")
    await conn.execute("select holdfast.check_unfinished_job_limit('ada', 1000)")  # planned with empty tables
    await conn.execute(INSERT_GRAPH_JOBS, 20_000, "bob", "queued")
    await conn.execute(INSERT_GRAPH_JOBS, 20_000, "ada", "succeeded")
    await conn.execute(INSERT_GRAPH_JOBS, 10, "ada", "queued")
    if analysed:
        await conn.execute("analyze holdfast.jobs")
    before = await count_read_pages(conn, "jobs", "tasks")
    await conn.execute("select holdfast.check_unfinished_job_limit('ada', 1000)")
    assert await count_read_pages(conn, "jobs", "tasks") - before < 50
