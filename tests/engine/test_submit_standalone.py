"""A submit in a transaction of its own has the same result as `submit`."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from manual_worker import QUEUE, ManualWorker, run_ticks, submit_job, wait_until_blocked_or_done

from holdfast import Client, RetryPolicy, task
from holdfast.engine import jobs, limits, quotas
from holdfast.engine.connection import Connection
from holdfast.settings import Secret
from holdfast.testing import Clock

PLAIN: list[dict[str, Any]] = [
    {},
    {"args": {"x": [1, None, "ä"]}},
    {"args": None},
    {"priority": 7},
    {"priority": -100},
    {"priority": None},
    {"limit_key": "k"},
    {"limit_key": ""},
    {"labels": {"a": "b"}},
    {"labels": None},
    {"owner": "ann"},
    {"attempts": 3, "timeout_s": 5},
    {"queue": None},
    {"queue": 5},
    {"args": {"x": "y" * 200_000}},
    {"delay_s": 60},
    {"delay_s": 0},
    {"run_at": "2999-01-01T00:00:00Z"},
    {"run_at": "1999-01-01T00:00:00Z", "expires_at": "2999-01-01T00:00:00Z"},
    {"name": "first"},
    {"name": None, "delay_s": None, "key": None},
]
NOT_PLAIN: list[dict[str, Any]] = [
    {"priority": 1.0},
    {"priority": 1.5},
    {"tasks": [{"type": "a", "name": "a"}, {"type": "b", "after": ["a"]}]},
]
WRONG: list[Any] = [
    {"priority": 101},
    {"priority": 999},
    {"priority": "5"},
    {"priority": True},
    {"type": None},
    {"type": ""},
    {"queue": "q" * 300},
    {"limit_key": "k" * 2000},
    {"attempts": 0},
    {"args": {"x": [str(n) * 3 for n in range(100_000)]}},
    {"unheard_of": 1, "after": ["x"]},
    {"delay_s": -1},
    {"delay_s": "soon"},
    {"run_at": "tomorrow or so"},
    {"expires_at": 5},
    {"name": "n" * 300},
    {"key": ""},
    {"key": "k" * 2000},
    {"key": "k", "priority": 999},
]


# Jobs of one task with a type or parameters of their own, as job types build them: fields of job and task.
ONE_TASK_GRAPHS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"params": {"n": 1}}, {}),
    ({"params": None}, {"args": {"x": [1, None, "ä"]}}),
    ({"params": {"n": 1}, "type": "t"}, {}),
    ({}, {}),
    ({"labels": {"a": "b"}, "owner": "ann"}, {"name": "page", "after": [], "weight": 1.0}),
    ({"labels": None}, {"priority": 7, "attempts": 3, "limit_key": "k"}),
]
OTHER_ONE_TASK_JOBS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "t"}, {}),  # stored as one task
    ({"params": {"n": 1}, "delay_s": 60}, {}),
    ({"params": {"n": 1}}, {"weight": 3}),
    ({"params": {"n": 1}}, {"delay_s": 60}),
    ({"params": {"n": 1}}, {"name": "n" * 100}),
    ({"params": {"n": 1}, "partial": True}, {}),
    ({"params": {"n": 1}}, {"labels": {"a": "b"}}),
    ({"params": {"n": 1}, "queue": QUEUE}, {}),
]
WRONG_ONE_TASK_JOBS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"params": {}}, {"after": ["nobody"]}),
    ({"params": {}}, {"name": "a\tb"}),
    ({"params": {}}, {"type": None}),
    ({"params": {}}, {"weight": -1}),
    ({"params": {}}, {"priority": 101}),
    ({"params": {}, "type": "p" * 300}, {}),
    ({"params": {}, "type": ""}, {}),
    ({"params": {}, "tasks": {"0": {"type": "t"}}}, {}),
    ({"params": {}, "tasks": []}, {}),
    ({"params": {}, "tasks": ["t"]}, {}),
    ({"params": {}, "tasks": None}, {}),
]


def build_one_task_graph(job: dict[str, Any], task_fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "report", "tasks": [{"type": "t", "queue": QUEUE, **task_fields}], **job}


def build_job(more: dict[str, Any]) -> dict[str, Any]:
    return {"type": "t", "queue": QUEUE, **more}


async def read_job_rows(conn: Connection, new_jobs: UUID) -> dict[str, Any]:
    """All of a job's rows that do not tell when and in which turn it was made."""
    rows = await conn.fetch(
        "select to_jsonb(t) - '{id,job_id,pos,due_at,unique_key}'::text[] as row from holdfast.tasks t"
        " where $1 in (t.id, t.job_id) order by t.name",
        new_jobs,
    )
    return {str(at): msgspec.json.decode(row["row"]) for at, row in enumerate(rows)}


def get_result_shape(new_jobs: jobs.SubmitResult) -> tuple[Any, ...]:
    return new_jobs.created, new_jobs.status, sorted(new_jobs.tasks or {})


async def get_submit_error(conn: Connection, function: str, job: object) -> asyncpg.PostgresError:
    with pytest.raises(asyncpg.PostgresError) as caught:
        await conn.fetchval(f"select holdfast.{function}($1)", msgspec.json.encode(job).decode())
    return caught.value


@pytest.mark.parametrize("more", PLAIN + NOT_PLAIN, ids=lambda more: msgspec.json.encode(more)[:40].decode())
async def test_submit_standalone_inserts_the_same_rows_as_submit(
    conn: Connection, more: dict[str, Any]
) -> None:
    plain = await conn.fetchval(
        "select holdfast.is_plain_single_task_job($1)", msgspec.json.encode(build_job(more)).decode()
    )
    assert plain == (more in PLAIN)
    long = await jobs.submit(conn, build_job(more))
    for _ in range(2):
        short = await jobs.submit_standalone(conn, build_job(more))
        assert get_result_shape(short) == get_result_shape(long)
        assert await read_job_rows(conn, short.id) == await read_job_rows(conn, long.id) != {}


async def read_graph_row(conn: Connection, job: UUID) -> Any:
    row = await conn.fetchval("select to_jsonb(j) - 'id' from holdfast.jobs j where j.id = $1", job)
    return row and msgspec.json.decode(row)


@pytest.mark.parametrize(("job", "of_task"), ONE_TASK_GRAPHS + OTHER_ONE_TASK_JOBS)
async def test_jobs_of_one_task_have_the_same_rows_as_those_of_submit(
    conn: Connection, job: dict[str, Any], of_task: dict[str, Any]
) -> None:
    request = build_one_task_graph(job, of_task)
    text = msgspec.json.encode(request).decode()
    plain = await conn.fetchval("select holdfast.is_plain_one_task_graph($1)", text)
    assert plain == ((job, of_task) in ONE_TASK_GRAPHS)
    long = await jobs.submit(conn, request)
    assert bool(await conn.fetchval("select holdfast.insert_one_task_graph($1)", text)) or not plain
    for _ in range(2):
        short = await jobs.submit_standalone(conn, request)
        assert get_result_shape(short) == get_result_shape(long)
        assert await read_job_rows(conn, short.id) == await read_job_rows(conn, long.id) != {}
        assert await read_graph_row(conn, short.id) == await read_graph_row(conn, long.id)
        assert await conn.fetch("select id from holdfast.tasks where $1 in (id, job_id)", short.id) == [
            (each,) for each in (short.tasks or {}).values()
        ]


@pytest.mark.parametrize(("job", "of_task"), WRONG_ONE_TASK_JOBS)
async def test_jobs_of_one_task_are_refused_as_by_submit(
    conn: Connection, job: dict[str, Any], of_task: dict[str, Any]
) -> None:
    await submit_job(conn, type="t")  # the lane is there
    request = build_one_task_graph(job, of_task)
    long, short = [await get_submit_error(conn, each, request) for each in ("submit", "submit_standalone")]
    assert (long.sqlstate, str(long)) == (short.sqlstate, str(short))
    assert await conn.fetchval("select count(*) from holdfast.jobs") == 0


async def test_job_of_one_task_without_a_lane_takes_the_long_way(conn: Connection) -> None:
    request = build_one_task_graph({"params": {"n": 1}}, {})
    text = msgspec.json.encode(request).decode()
    assert await conn.fetchval("select holdfast.insert_one_task_graph($1)", text) is None
    assert await conn.fetchval("select count(*) from holdfast.jobs") == 0
    assert (await jobs.submit_standalone(conn, request)).created


async def test_job_of_one_task_runs_to_its_end(conn: Connection) -> None:
    request = build_one_task_graph({"params": {"n": 1}, "owner": "ann"}, {"args": {"n": 2}})
    await jobs.submit(conn, request)
    short = await jobs.submit_standalone(conn, request)
    manual_worker = ManualWorker(conn)
    tasks = await manual_worker.claim_tasks(5)
    assert [(each.args, each.job_id == short.id) for each in tasks] == [({"n": 2}, False), ({"n": 2}, True)]
    for each in tasks:
        await manual_worker.finish_task(each)
    job = await jobs.get_job(conn, short.id)
    assert job is not None
    assert (job["status"], job["type"], job["params"], job["owner"]) == (
        "succeeded",
        "report",
        {"n": 1},
        "ann",
    )


async def test_job_of_one_task_of_an_owner_with_a_quota_is_counted(conn: Connection) -> None:
    await quotas.put_quota(conn, "ann", operations=1)
    request = build_one_task_graph({"params": {"n": 1}, "owner": "ann"}, {})
    await jobs.submit_standalone(conn, request)
    assert (await get_submit_error(conn, "submit_standalone", request)).sqlstate == "HF006"


async def test_jobs_of_one_task_of_fair_owners_have_lanes_of_their_own(conn: Connection) -> None:
    request = build_one_task_graph({"params": {"n": 1}, "owner": "ann"}, {})
    await jobs.submit(conn, request)
    await limits.set_fair_queue(conn, QUEUE)
    short = await jobs.submit_standalone(conn, request)
    lane_ids = "select lane_id from holdfast.tasks where job_id = $1"
    share = f"select fair_owner from holdfast.lanes where id = ({lane_ids})"
    assert await conn.fetchval(share, short.id) == "ann"


@pytest.mark.parametrize("key", ["key", "unique_key"])
async def test_keys_are_kept(conn: Connection, key: str) -> None:
    first = await jobs.submit(conn, build_job({key: "a"}))
    again = await jobs.submit_standalone(conn, build_job({key: "a"}))
    assert (again.id, again.created) == (first.id, False)


KEYED: list[dict[str, Any]] = [
    {},
    {"owner": "ann"},
    {"delay_s": 60, "name": "first"},
    {"type": "new", "owner": "ann"},  # has no lane yet
]


@pytest.mark.parametrize("more", KEYED)
@pytest.mark.parametrize("quota", [False, True])
async def test_key_names_one_job_by_either_function(
    conn: Connection, more: dict[str, Any], quota: bool
) -> None:
    await submit_job(conn)  # the lane is there
    if quota:
        await quotas.put_quota(conn, "ann", operations=100)
    first = await jobs.submit_standalone(conn, build_job({"key": "a", **more}))
    long = await jobs.submit(conn, build_job({"key": "b", **more}))
    assert get_result_shape(first) == get_result_shape(long)
    assert await read_job_rows(conn, first.id) == await read_job_rows(conn, long.id) != {}
    for submit in (jobs.submit, jobs.submit_standalone):
        again = await submit(conn, build_job({"key": "a", **more}))
        assert (again.id, again.created, again.tasks) == (first.id, False, first.tasks)
    other = build_job({"key": "a", "args": {"other": 1}, **more})
    assert (await get_submit_error(conn, "submit_standalone", other)).sqlstate == "HF003"
    columns = "scope, key, octet_length(body_hash), active_only, keep_until - now() > interval '6 days'"
    stored = await conn.fetch(f"select {columns} from holdfast.idempotency_keys order by key")
    assert [row["key"] for row in stored] == ["a", "b"]
    assert tuple(stored[0])[2:] == tuple(stored[1])[2:]
    assert stored[0]["scope"] == stored[1]["scope"]


async def test_key_submitted_at_the_same_time_creates_one_job(conn: Connection, url: Secret) -> None:
    await submit_job(conn)
    other = await asyncpg.connect(url.reveal())
    try:
        transaction = conn.transaction()
        await transaction.start()
        first = await jobs.submit_standalone(conn, build_job({"key": "a"}))
        waiting = asyncio.create_task(jobs.submit_standalone(other, build_job({"key": "a"})))
        assert await wait_until_blocked_or_done(conn, other.get_server_pid(), waiting)
        await transaction.commit()
        second = await waiting
    finally:
        await other.close()
    assert (second.id, second.created) == (first.id, False)


async def test_delayed_job_starts_when_it_is_due(conn: Connection, clock: Clock) -> None:
    await submit_job(conn)  # the lane is there
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    delayed = await jobs.submit_standalone(conn, build_job({"delay_s": 7200}))
    for hours, ids in ((1, []), (2, [delayed.id])):
        await clock.advance(timedelta(hours=hours))
        await run_ticks(conn)
        assert [task.id for task in await manual_worker.claim_tasks(5)] == ids


@pytest.mark.parametrize("more", WRONG, ids=lambda more: msgspec.json.encode(more)[:40].decode())
async def test_submit_standalone_refuses_the_same_jobs_as_submit(
    conn: Connection, more: dict[str, Any]
) -> None:
    await submit_job(conn)  # the lane is there
    long, short = [
        await get_submit_error(conn, each, build_job(more)) for each in ("submit", "submit_standalone")
    ]
    assert (long.sqlstate, str(long)) == (short.sqlstate, str(short))
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 1


@pytest.mark.parametrize("job", [None, 1, "x", [], [{"type": "t"}]])
async def test_invalid_jobs_are_refused_the_same_way(conn: Connection, job: object) -> None:
    long, short = [await get_submit_error(conn, each, job) for each in ("submit", "submit_standalone")]
    assert (long.sqlstate, str(long)) == (short.sqlstate, str(short))


async def test_owners_with_quotas_or_fairness_use_plain_submit(conn: Connection) -> None:
    await submit_job(conn, owner="ann")
    await limits.set_fair_queue(conn, QUEUE)
    new_jobs = await jobs.submit_standalone(conn, build_job({"owner": "ann"}))
    share = (
        "select l.fair_owner from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id where t.id = $1"
    )
    assert await conn.fetchval(share, new_jobs.id) == "ann"
    await quotas.put_quota(conn, "bob", operations=1)
    await jobs.submit_standalone(conn, build_job({"owner": "bob", "queue": "other"}))
    assert (
        await get_submit_error(conn, "submit_standalone", build_job({"owner": "bob", "queue": "other"}))
    ).sqlstate == "HF006"


async def test_users_may_not_call_it(conn: Connection) -> None:
    """The fast path skips the rules for users, who call submit."""
    await submit_job(conn)
    async with conn.transaction():
        await conn.execute("select set_config('request.jwt.claims', '{\"sub\": \"ann\"}', true)")
        await conn.execute("set local role authenticated")
        transaction = conn.transaction()
        await transaction.start()
        assert (await get_submit_error(conn, "submit_standalone", build_job({}))).sqlstate == "42501"
        await transaction.rollback()


async def test_an_old_snapshot_uses_plain_submit(conn: Connection) -> None:
    await submit_job(conn)
    async with conn.transaction(isolation="repeatable_read"):
        assert not await conn.fetchval("select holdfast.is_plain_single_task_job($1)", '{"type": "t"}')
        await jobs.submit_standalone(conn, build_job({}))
    assert len(await ManualWorker(conn).claim_tasks(5)) == 2


@task(queue=QUEUE, retry=RetryPolicy(retries=2))
async def send(to: str) -> None:
    pass


async def test_usual_submits_of_a_client_are_plain_tasks(url: Secret, conn: Connection) -> None:
    client = Client(url.reveal())
    for options in (
        {},
        {"owner": "ann"},
        {"priority": 3},
        {"labels": {"a": "b"}},
        {"limit_key": "k"},
        {"key": "k"},
        {"delay": 5},
    ):
        request = client._build_submit_request(send("ann"), options)  # type: ignore[arg-type]
        text = msgspec.json.encode(request).decode()
        assert await conn.fetchval("select holdfast.is_plain_single_task_job($1)", text), text


INSERT_LANES = """
insert into holdfast.lanes (policy_id, queue, type, priority, limit_key, created_at)
select l.policy_id, l.queue, l.type, l.priority, 'k' || n, l.created_at
from holdfast.lanes l, generate_series(1, 10000) as n
"""
COUNT_READ_LANES = """
select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_xact_all_tables where relname = 'lanes'
"""


async def test_one_of_ten_thousand_lanes_is_found_by_its_key(conn: Connection) -> None:
    await submit_job(conn, limit_key="k0")
    await conn.execute(INSERT_LANES)
    await conn.execute("analyze holdfast.lanes")
    async with conn.transaction():
        await jobs.submit_standalone(conn, build_job({"limit_key": "k7777"}))
        assert await conn.fetchval(COUNT_READ_LANES) < 10
