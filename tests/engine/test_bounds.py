"""Queries and actions by filter read a bounded number of rows, report that there is more, and continue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from manual_worker import ManualWorker, expect_error, read_job, run_ticks, submit_graph, submit_job

from holdfast.engine import jobs
from holdfast.engine.connection import Connection

INSERT_FAILED_JOBS = """
insert into holdfast.history (id, policy_id, due_at, finished_at, keep_until, attempt, failures, crashes,
  priority, status, error)
select holdfast.new_id(), k.id, h.at, h.at + n * interval '1 millisecond', h.at + interval '1 day', 1, 0, 0,
  0, 'failed', jsonb_build_object('type', $3::text, 'message', repeat('x', 400))
from generate_series(1, $1::int) as n, (select holdfast.now() - interval '1 hour' as at) as h,
  (select id from holdfast.task_policies where type = $2 limit 1) as k
"""


async def count_read_pages(conn: Connection) -> int:
    """Pages of all our tables and their indexes that were looked at so far."""
    await conn.execute("select pg_stat_force_next_flush()")
    return int(
        await conn.fetchval(
            "select sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0)) "
            "from pg_statio_user_tables where schemaname = 'holdfast'"
        )
    )


async def measure_read_pages(conn: Connection, ask: Callable[[], Awaitable[object]]) -> int:
    before = await count_read_pages(conn)
    await ask()
    return await count_read_pages(conn) - before


@pytest.fixture(autouse=True)
def counting(conn: Connection) -> None:
    if conn.get_server_version().major < 15:
        pytest.skip("pg_stat_force_next_flush came with 15")


async def count_redrivable_jobs(conn: Connection, limit: int = 100, **where: Any) -> dict[str, Any]:
    text = msgspec.json.encode(where).decode()
    return dict(
        msgspec.json.decode(await conn.fetchval("select holdfast.redrive($1, $2, true)", text, limit))
    )


async def submit_rejected_jobs(conn: Connection, *kinds: str) -> None:
    """Jobs of these types that were rejected, one of each."""
    for kind in kinds:
        await submit_job(conn, type=kind)
    manual_worker = ManualWorker(conn)
    for task in await manual_worker.claim_tasks(50):
        await manual_worker.finish_task(
            task, "reject", {"type": "ValueError", "message": "no", "fingerprint": "here"}
        )


@pytest.mark.parametrize("analysed", [False, True], ids=["no statistics", "statistics"])
async def test_a_redrive_reads_what_it_restarts(conn: Connection, analysed: bool) -> None:
    await submit_rejected_jobs(conn, "many", "rare")
    await run_ticks(conn)
    await conn.execute(INSERT_FAILED_JOBS, 20_000, "many", "Other")
    if analysed:
        await conn.execute("analyze holdfast.history, holdfast.attempts")
    requested: list[tuple[dict[str, Any], int]] = [
        ({}, 100),
        ({"type": "rare"}, 1),
        ({"type": "rare", "error_type": "ValueError"}, 1),
        ({"fingerprint": "here"}, 2),
    ]
    for where, result in requested:
        assert (await count_redrivable_jobs(conn, **where))["matched"] == result, where
        cost = await measure_read_pages(conn, partial(count_redrivable_jobs, conn, **where))
        assert cost < 500, (where, cost)
    cost = await measure_read_pages(conn, lambda: count_redrivable_jobs(conn, error_type="None"))
    assert cost < 1200, cost


async def test_a_redrive_that_stops_early_reports_it_and_continues(conn: Connection) -> None:
    await submit_rejected_jobs(conn, "many")
    await conn.execute(INSERT_FAILED_JOBS, 5000, "many", "Other")
    await submit_rejected_jobs(conn, "rare")
    first = await count_redrivable_jobs(conn, error_type="ValueError")
    assert first["matched"] == 0
    assert first["more"]
    rest = await count_redrivable_jobs(conn, 10_000, error_type="ValueError", **{"from": first["next"]})
    assert rest == {"matched": 2, "restarted": 0}
    where = {"error_type": "ValueError"}
    assert (await jobs.redrive_failed_jobs(conn, where, dry_run=True)).matched == 2
    assert (await jobs.redrive_failed_jobs(conn, {}, limit=10_000, dry_run=True)).matched == 5002
    for limit in (1, 7, 1000):
        step: dict[str, Any] = {"next": None}
        result = 0
        while result < 5002 and "next" in step and result < 30 * limit:
            step = await count_redrivable_jobs(
                conn, limit, **({"from": step["next"]} if step["next"] else {})
            )
            result += step["matched"]
        assert result == min(30 * limit, 5002)
    assert await jobs.redrive_failed_jobs(conn, where) == jobs.RedriveResult(matched=2, restarted=2)
    assert len(await ManualWorker(conn).claim_tasks(10)) == 2


LABELS_SQL = """'{"x": "1"}'::jsonb"""
INSERT_HISTORY = f"""
insert into holdfast.history (id, policy_id, due_at, finished_at, keep_until, attempt, failures, crashes,
  priority, status, labels)
select holdfast.new_id(), k.id, h.at, h.at, h.at + interval '1 day', 1, 0, 0, 0, 'succeeded',
  case when $2::text = 'rare' then {LABELS_SQL} end
from generate_series(1, $1::int) as n, (select holdfast.now() as at) as h,
  (select id from holdfast.task_policies where type = $2 limit 1) as k
"""


async def fetch_job_page(
    conn: Connection, before: str | None = None, scan: int = 100, **where: Any
) -> dict[str, Any]:
    text = msgspec.json.encode(where).decode()
    return dict(
        msgspec.json.decode(
            await conn.fetchval("select holdfast.list_jobs_page($1, $2, 5, $3)", text, before, scan)
        )
    )


async def list_all_job_pages(conn: Connection, **where: Any) -> list[str]:
    """All pages; that a page is short does not end it."""
    rows: list[str] = []
    before = None
    while True:
        result = await fetch_job_page(conn, before, **where)
        rows += [row["id"] for row in result["rows"]]
        before = result["next"]
        if before is None:
            return rows


async def test_pages_by_type_queue_and_labels_continue_to_the_end(conn: Connection) -> None:
    created: list[str] = []
    for number in range(4):
        created.append(str(await submit_job(conn, type="rare", queue="few", labels={"x": "1"})))
        several = await submit_graph(
            conn, {"name": "a"}, {"name": "b"}, type="rare", queue="few", labels={"x": "1"}
        )
        created.append(str(several.id))
        await submit_graph(conn, {"name": "a"}, type="many", queue="q")
        await submit_job(conn, type="many")
        await conn.execute(INSERT_HISTORY, 3, "rare")
        await conn.execute(INSERT_HISTORY, 150 * number, "many")
        await conn.fetch(
            "select holdfast.submit_many((select jsonb_agg(jsonb_build_object('type', 'many', 'queue', 'q')) "
            "from generate_series(1, $1::int)))",
            1 + 90 * number,
        )
    rows = await conn.fetch(
        "select id from holdfast.history where labels is not null union all "
        "select i from unnest($1::uuid[]) as i order by id desc",
        created,
    )
    expected = [str(row["id"]) for row in rows]
    assert len(expected) == 20
    for where in (
        {"type": "rare"},
        {"queue": "few"},
        {"labels": {"x": "1"}},
        {"type": "rare", "queue": "few"},
    ):
        assert await list_all_job_pages(conn, **where) == expected, where
    assert (await fetch_job_page(conn, type="nothing"))["truncated"]
    assert await list_all_job_pages(conn, type="nothing") == []
    everything = int(
        await conn.fetchval(
            "select (select count(*) from holdfast.jobs) + (select count(*) from holdfast.history) "
            "+ (select count(*) from holdfast.tasks where job_id is null)"
        )
    )
    assert len(set(await list_all_job_pages(conn))) == everything
    assert len(await list_all_job_pages(conn, type="many")) == everything - 20


async def test_a_list_that_stops_early_reports_it(conn: Connection) -> None:
    rare = await submit_job(conn, type="rare")
    await submit_job(conn, type="many")
    await conn.execute(INSERT_HISTORY, 100_001, "many")
    response: list[str] = []
    conn.add_log_listener(lambda _, notice: response.append(str(notice)))
    assert await conn.fetch("""select holdfast.list_jobs('{"type": "rare"}')""") == []
    assert len(response) == 1
    assert [row["id"] for row in await jobs.list_jobs(conn, {"type": "rare"})] == [str(rare)]


INSERT_OTHER_TASKS = """
insert into holdfast.tasks (id, lane_id, pos, due_at, status, args, labels)
select holdfast.new_id(), l.id, nextval('holdfast.task_positions'), holdfast.now() + n * interval '1 second',
  $3::text, '{}', '{"y": "2"}'
from generate_series(1, $1::int) as n, (select id from holdfast.lanes where type = $2 limit 1) as l
"""


async def cancel_job_chunk(
    conn: Connection, start: Any = None, scan: int = 100_000, **where: Any
) -> dict[str, Any]:
    text, at = msgspec.json.encode(where).decode(), msgspec.json.encode(start).decode()
    return dict(
        msgspec.json.decode(
            await conn.fetchval("select holdfast.cancel_jobs_chunk($1, null, 1000, $2, $3)", text, at, scan)
        )
    )


@pytest.mark.parametrize("analysed", [False, True], ids=["no statistics", "statistics"])
async def test_a_cancel_reads_only_jobs_of_its_filter(conn: Connection, analysed: bool) -> None:
    await submit_job(conn, type="many")
    await conn.execute(INSERT_OTHER_TASKS, 50_000, "many", "ready")
    requested: list[dict[str, Any]] = [
        {"type": "rare"},
        {"queue": "few"},
        {"type": "rare", "labels": {"x": "1"}},
    ]
    for where in requested:
        created = [await submit_job(conn, type="rare", queue="few", labels={"x": "1"}) for _ in range(3)]
        later = await submit_job(conn, type="rare", queue="few", labels={"x": "1"}, delay_s=60)
        await ManualWorker(conn, queues=["few"]).claim_one_task()
        if analysed:
            await conn.execute("analyze holdfast.tasks, holdfast.jobs")
        cost = await measure_read_pages(conn, partial(jobs.cancel_jobs, conn, where))
        for each in (*created, later):
            assert (await read_job(conn, each))["status"] == "cancelled"
        assert cost < 700, (where, cost)
        text = msgspec.json.encode(where).decode()
        for _ in range(2):
            assert await conn.fetchval("select holdfast.cancel_jobs($1)", text) == 0
        cost = await measure_read_pages(conn, partial(conn.fetchval, "select holdfast.cancel_jobs($1)", text))
        assert cost < 60, (where, cost)


async def test_a_cancel_by_labels_goes_on_in_steps(conn: Connection) -> None:
    await submit_job(conn, type="many")
    for status in ("ready", "scheduled"):
        await conn.execute(INSERT_OTHER_TASKS, 3000, "many", status)
    created = [await submit_job(conn, type="rare", labels={"x": "1"}) for _ in range(3)]
    several = await submit_graph(conn, {"name": "a"}, {"name": "b", "after": ["a"]}, labels={"x": "1"})
    first = await cancel_job_chunk(conn, scan=1000, labels={"x": "1"})
    assert first["cancelled"] == 0
    assert first["next"]["source"] == "tasks"
    cost = await measure_read_pages(conn, lambda: cancel_job_chunk(conn, scan=1000, labels={"x": "1"}))
    assert cost < 1500, cost
    steps, result, start = 0, 0, None
    while steps == 0 or start is not None:
        step = await cancel_job_chunk(conn, start, 1000, labels={"x": "1"})
        steps, result, start = steps + 1, result + step["cancelled"], step["next"]
    assert (result, steps) == (4, 7)
    for each in (*created, several.id):
        assert (await read_job(conn, each))["status"] == "cancelled"
    assert await conn.fetchval('select count(*) from holdfast.tasks where labels @> \'{"y": "2"}\'') == 6000


@pytest.mark.parametrize(
    "where",
    [
        {"queue": "few"},
        {"type": "rare"},
        {"labels": {"x": "1"}},
        {"owner": "ann"},
        {"batch": ""},
        {"ids": []},
    ],
    ids=lambda where: next(iter(where)),
)
async def test_all_matching_jobs_are_cancelled_a_few_at_a_time(
    conn: Connection, where: dict[str, Any]
) -> None:
    batch = str(await jobs.open_batch(conn, owner="ann"))
    others = [
        await submit_job(conn, type="many", owner="bob"),
        (await submit_graph(conn, {"name": "a"}, type="many")).id,
    ]
    created: list[Any] = []
    body = {"queue": "few", "type": "rare", "labels": {"x": "1"}, "owner": "ann", "batch": batch}
    for number in range(40):
        created.append(await submit_job(conn, **body, delay_s=60 * (number % 3), limit_key=f"k{number % 5}"))
        if number % 10 == 0:
            created.append(
                (await submit_graph(conn, {"name": "a"}, {"name": "b", "after": ["a"]}, **body)).id
            )
            others.append(await submit_job(conn, type="many", delay_s=10, labels={"x": "2"}))
    await ManualWorker(conn, queues=["few"]).claim_tasks(7)
    filled: dict[str, Any] = where
    if "batch" in where:
        filled = {"batch": batch}
    elif "ids" in where:
        filled = {"ids": [str(each) for each in created]}
    result, start, first = 0, None, True
    while first or start is not None:
        text, at = msgspec.json.encode(filled).decode(), msgspec.json.encode(start).decode()
        answer = await conn.fetchval("select holdfast.cancel_jobs_chunk($1, 'stop', 3, $2, 10)", text, at)
        step = msgspec.json.decode(answer)
        assert step["cancelled"] <= 3
        result, start, first = result + step["cancelled"], step["next"], False
    assert result == len(created) == 44
    for each in created:
        assert (await read_job(conn, each))["status"] == "cancelled"
    for each in others:
        assert (await read_job(conn, each))["status"] == "queued"
    assert await jobs.cancel_all_jobs(conn, filled) == 0
    assert await jobs.cancel_all_jobs(conn, {"labels": {"x": "2"}}) == 4


async def test_a_cancel_that_would_read_too_many_rows_is_refused(conn: Connection) -> None:
    await submit_job(conn, type="many")
    await conn.execute(INSERT_OTHER_TASKS, 30, "many", "scheduled")
    source = str(await conn.fetchval("select prosrc from pg_proc where proname = 'cancel_jobs_chunk'"))
    definition = str(
        await conn.fetchval("select pg_get_functiondef(oid) from pg_proc where proname = 'cancel_jobs_chunk'")
    )
    assert "p_max_scanned, 100000)" in source
    await conn.execute(definition.replace("p_max_scanned, 100000)", "null, 2)"))
    with expect_error("HF004", "filter"):
        await conn.fetchval("""select holdfast.cancel_jobs('{"type": "rare"}')""")
    assert await jobs.cancel_jobs(conn, {"type": "rare"}) == 0
    assert await conn.fetchval("""select holdfast.cancel_jobs('{"type": "many"}')""") == 2
    assert await jobs.cancel_all_jobs(conn, {"type": "many"}) == 29
