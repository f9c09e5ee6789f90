"""Bulk submits with an array of arguments have the same result as those with JSON."""

from __future__ import annotations

import uuid
from typing import Any
from uuid import UUID

import msgspec
import pytest
from manual_worker import QUEUE, ManualWorker, expect_error, read_task_row

from holdfast.engine import jobs, quotas, schema
from holdfast.engine.connection import Connection

OPTIONS: list[dict[str, Any]] = [
    {},
    {"priority": 7, "limit_key": "k"},
    {"labels": {"a": "b"}, "owner": "ann", "name": "first"},
    {"delay_s": 60, "expires_at": "2999-01-01T00:00:00Z"},
    {"attempts": 3, "timeout_s": 5},
    {"labels": None, "priority": None},
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"type": None}, "type"),
    ({"priority": 101}, "priority"),
    ({"delay_s": -1}, "delay_s"),
    ({"queue": "q" * 300}, "queue"),
]
# They differ between two submits of the same jobs.
OWN_COLUMNS = {"id", "pos", "due_at", "event_seq"}


def build_jobs(options: dict[str, Any]) -> list[dict[str, Any]]:
    args: list[Any] = [{"n": 1, "text": 'ä"\\{}'}, None, {}, {"n": [1, None]}]
    return [{"type": "t", "queue": QUEUE, **options, "args": each} for each in args]


async def read_rows(conn: Connection, ids: list[UUID]) -> list[dict[str, Any]]:
    query = (
        "select t.* from unnest($1::uuid[]) with ordinality as u (id, n) "
        "join holdfast.tasks t using (id) order by n"
    )
    rows = await conn.fetch(query, ids)
    assert len(rows) == len(ids)
    return [{name: value for name, value in row.items() if name not in OWN_COLUMNS} for row in rows]


@pytest.mark.parametrize("options", OPTIONS)
async def test_rows_are_those_of_a_submit_with_json(conn: Connection, options: dict[str, Any]) -> None:
    requests = build_jobs(options)
    by_array = await jobs.submit_many(conn, requests)
    by_json = await jobs.submit_many(conn, msgspec.json.encode(requests))
    assert [(s.status, s.created) for s in by_array] == [(s.status, s.created) for s in by_json]
    rows = await read_rows(conn, [s.id for s in by_array])
    assert rows == await read_rows(conn, [s.id for s in by_json])
    one_by_one = [(await jobs.submit(conn, request)).id for request in requests]
    assert rows == await read_rows(conn, one_by_one)


async def test_ids_are_those_of_the_arguments_in_their_order(conn: Connection) -> None:
    submitted = await jobs.submit_many(
        conn, [{"type": "t", "queue": QUEUE, "args": {"n": n}} for n in range(300)]
    )
    tasks = await ManualWorker(conn).claim_tasks(300)
    assert [(task.id, task.args["n"]) for task in tasks] == [(s.id, n) for n, s in enumerate(submitted)]
    assert len({s.id for s in submitted}) == 300


async def test_jobs_without_arguments(conn: Connection) -> None:
    (job,) = await jobs.submit_many(conn, [{"type": "t", "queue": QUEUE}])
    assert (await read_task_row(conn, job.id))["args"] is None
    assert await jobs.submit_many(conn, []) == []
    assert await conn.fetchval("select holdfast.submit_uniform($1, '{}')", '{"type": "t"}') == []


@pytest.mark.parametrize(("options", "field"), WRONG)
async def test_wrong_options_are_refused_by_name(
    conn: Connection, options: dict[str, Any], field: str
) -> None:
    with expect_error("HF004", field):
        await jobs.submit_many(conn, build_jobs(options))
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 0


async def test_too_long_arguments_refuse_all_jobs(conn: Connection) -> None:
    huge = {"x": [str(n) * 3 for n in range(100_000)]}
    with expect_error("HF004", "args"):
        await jobs.submit_many(conn, [{"type": "t", "args": args} for args in ({}, huge)])
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 0


async def test_values_that_python_finds_equal_stay_apart(conn: Connection) -> None:
    labels: list[dict[str, Any]] = [{"a": 1}, {"a": True}]
    submitted = await jobs.submit_many(
        conn, [{"type": "t", "queue": QUEUE, "labels": each} for each in labels]
    )
    rows = [await read_task_row(conn, s.id) for s in submitted]
    assert [row["labels"] for row in rows] == ['{"a": 1}', '{"a": true}']


async def test_keys_checks_and_quotas_hold(conn: Connection) -> None:
    call = "select holdfast.submit_uniform($1, array['{}', '{}']::jsonb[])"
    first, second = await conn.fetchval(call, '{"type": "t", "key": "k"}')
    assert first == second
    await quotas.put_quota(conn, "ann", operations=1)
    with expect_error("HF006", "quota"):
        await conn.fetchval(call, '{"type": "t", "owner": "ann"}')
    with expect_error("HF004", "job"):
        await conn.fetchval(call, "[]")


async def test_users_submit_only_for_themselves_and_public_types(conn: Connection) -> None:
    await conn.execute("""insert into holdfast.options (name, value) values ('public_types', '["open"]')""")
    call = "select holdfast.submit_uniform($1, array['{}', '{}']::jsonb[])"
    for job in ('{"type": "closed"}', '{"type": "open", "owner": "bob"}', '{"type": "open", "priority": 9}'):
        with expect_error("HF005"):
            await submit_as_user(conn, "ann", call, job)
    ids = await submit_as_user(conn, "ann", call, '{"type": "open"}')
    assert [row["owner"] for row in await read_rows(conn, ids)] == ["ann", "ann"]


async def submit_as_user(conn: Connection, user: str, call: str, options: str) -> list[UUID]:
    claims = msgspec.json.encode({"sub": user}).decode()
    async with conn.transaction():
        await conn.execute("select set_config('request.jwt.claims', $1, true)", claims)
        await conn.execute("set local role authenticated")
        ids: list[UUID] = await conn.fetchval(call, options)
    return ids


async def test_role_with_rights_from_before_gets_the_new_function(conn: Connection) -> None:
    """An application whose role was granted `submit_many` by an older release works after the upgrade."""
    role = f"hf_uniform_{uuid.uuid4().hex[:12]}"
    await conn.execute(f"create role {role}; grant execute on function holdfast.submit_many to {role}")
    try:
        (file,) = (f for f in schema.load_packaged_schema().functions if f.path == "jobs/submit_many.sql")
        await conn.execute(file.sql)
        question = "select has_function_privilege($1, 'holdfast.submit_uniform(jsonb, jsonb[])', 'execute')"
        assert await conn.fetchval(question, role)
    finally:
        await conn.execute(f"drop owned by {role}; drop role {role}")
