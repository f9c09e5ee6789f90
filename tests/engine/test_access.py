"""Access: users read and change their own jobs, workers have no tables, PUBLIC has no rights."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg
import msgspec
import pytest
from manual_worker import ManualWorker, expect_error, submit_graph, submit_job

from holdfast.engine import jobs
from holdfast.engine.connection import Connection

TABLES_WITH_OWNER_ROWS = ("jobs", "tasks", "history", "attempts", "events", "batches")


@asynccontextmanager
async def act_as_role(conn: Connection, role: str, user: str | None = None) -> AsyncGenerator[None]:
    claims = msgspec.json.encode({"sub": user, "role": role}).decode() if user else ""
    async with conn.transaction():
        await conn.execute("select set_config('request.jwt.claims', $1, true)", claims)
        await conn.execute(f"set local role {role}")
        yield


async def submit_jobs_in_each_state(conn: Connection, owner: str) -> tuple[UUID, UUID, UUID]:
    manual_worker = ManualWorker(conn)
    ended = await submit_job(conn, owner=owner)
    await manual_worker.finish_task(
        await manual_worker.claim_one_task(), "reject", {"type": "E", "message": "m"}
    )
    alive = await submit_job(conn, owner=owner)
    several = (await submit_graph(conn, {"name": "a"}, {"name": "b"}, owner=owner)).id
    await conn.execute("select holdfast.open_batch('b', null, $1)", owner)
    return ended, alive, several


async def test_users_see_their_own_rows_and_jobs(conn: Connection) -> None:
    mine = await submit_jobs_in_each_state(conn, "ann")
    theirs = await submit_jobs_in_each_state(conn, "bob")
    await submit_job(conn)
    async with act_as_role(conn, "authenticated", "ann"):
        for table in TABLES_WITH_OWNER_ROWS:
            owners = {row["owner"] for row in await conn.fetch(f"select owner from holdfast.{table}")}
            assert owners == {"ann"}, table
        assert {each["id"] for each in await jobs.list_jobs(conn, {})} == {str(each) for each in mine}
        assert {each["id"] for each in await jobs.list_jobs(conn, {"owner": "bob"})} == {
            str(each) for each in mine
        }
        for each in mine:
            assert await jobs.get_job(conn, each) is not None
        for each in theirs:
            assert await jobs.get_job(conn, each) is None
            assert await jobs.list_job_events(conn, each) == []


async def test_users_change_only_their_own_jobs(conn: Connection) -> None:
    _, alive, several = await submit_jobs_in_each_state(conn, "bob")
    for call in ("cancel_job", "retry_job", "explain_task"):
        for job_id in (alive, several):
            with expect_error("HF002"):
                async with act_as_role(conn, "authenticated", "ann"):
                    await conn.fetchval(f"select holdfast.{call}($1)", job_id)
    async with act_as_role(conn, "authenticated", "ann"):
        assert await conn.fetchval('select holdfast.cancel_jobs(\'{"queue": "q"}\')') == 0
    async with act_as_role(conn, "authenticated", "bob"):
        assert (await jobs.cancel_job(conn, alive))["cancelled"]


async def test_users_submit_public_types_as_themselves(conn: Connection) -> None:
    with expect_error("HF005", "type"):
        async with act_as_role(conn, "authenticated", "ann"):
            await jobs.submit(conn, {"type": "t"})
    await conn.execute("""insert into holdfast.options values ('public_types', '["t", "g"]')""")
    async with act_as_role(conn, "authenticated", "ann"):
        job_id = (await jobs.submit(conn, {"type": "t"})).id
        await jobs.submit(
            conn, {"type": "g", "tasks": [{"type": "t", "name": "a"}, {"type": "t", "name": "b"}]}
        )
        (many,) = await jobs.submit_many(conn, [{"type": "t"}])
    for each in (job_id, many.id):
        assert await conn.fetchval("select owner from holdfast.tasks where id = $1", each) == "ann"
    with expect_error("HF005", "owner"):
        async with act_as_role(conn, "authenticated", "ann"):
            await submit_job(conn, owner="bob")
    with expect_error("HF005", "type"):
        async with act_as_role(conn, "authenticated", "ann"):
            await jobs.submit(
                conn, {"type": "t", "tasks": [{"type": "secret", "name": "x"}, {"type": "t", "name": "y"}]}
            )


async def test_the_limit_of_unfinished_jobs_reaches_users_without_the_api(conn: Connection) -> None:
    """The option user_jobs is for PostgREST and other servers; the API passes its own setting."""
    await conn.execute(
        """insert into holdfast.options values ('public_types', '["t"]'), ('user_jobs', '2')"""
    )
    async with act_as_role(conn, "authenticated", "ann"):
        ended = (await jobs.submit(conn, {"type": "t"})).id
        await jobs.cancel_job(conn, ended)
        for key in ("a", "b", "b"):  # a repeated key returns its job
            await jobs.submit(conn, {"type": "t", "key": key})
    for call, argument in (
        ("submit($1)", '{"type": "t"}'),
        ("submit_many($1)", '[{"type": "t"}]'),
        ("retry_job($1)", ended),
    ):
        with expect_error("HF006"):
            async with act_as_role(conn, "authenticated", "ann"):
                await conn.fetch(f"select holdfast.{call}", argument)
    async with act_as_role(conn, "authenticated", "ann"):
        await conn.execute("select set_config('holdfast.user_jobs', '3', true)")
        await jobs.submit(conn, {"type": "t"})
    async with act_as_role(conn, "authenticated", "bob"):
        await jobs.submit(conn, {"type": "t"})


async def test_users_read_only_the_columns_that_http_shows(conn: Connection) -> None:
    """Row security hides rows of others. The columns hide what is for operators in one's own rows."""
    rows = await conn.fetch(
        """select c.relname::text as name, a.attname::text as attname from pg_class c
           join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
           where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')
             and has_column_privilege('authenticated', c.oid, a.attnum, 'select')"""
    )
    columns: dict[str, set[str]] = {}
    for row in rows:
        columns.setdefault(row["name"], set()).add(row["attname"])
    assert columns.keys() == {"jobs", "tasks", "history", "attempts", "events", "batches", "artifacts"}
    hidden = {
        "error",
        "args",
        "nonce",
        "worker_id",
        "key",
        "callback",
        "traceback",
        "fingerprint",
        "unique_key",
    }
    for table, names in columns.items():
        assert not names & hidden, table
    assert columns["attempts"] == {
        "task_id", "job_id", "attempt", "outcome", "owner", "started_at", "ended_at",
    }  # fmt: skip


@pytest.mark.parametrize("claims", ["", "{}", "not json", '{"sub": ""}', "[]", '{"sub": null}'])
async def test_without_a_subject_there_is_no_user(conn: Connection, claims: str) -> None:
    await submit_jobs_in_each_state(conn, "ann")
    with expect_error("HF005"):
        async with conn.transaction():
            await conn.execute("select set_config('request.jwt.claims', $1, true)", claims)
            await conn.execute("set local role authenticated")
            for table in TABLES_WITH_OWNER_ROWS:
                assert await conn.fetch(f"select owner from holdfast.{table}") == []
            await jobs.list_jobs(conn, {})


@pytest.mark.parametrize("role", ["authenticated", "anon", "holdfast_worker"])
async def test_no_role_may_write_tables_and_users_may_not_claim(conn: Connection, role: str) -> None:
    await submit_jobs_in_each_state(conn, "ann")
    tables = await conn.fetch("select tablename from pg_tables where schemaname = 'holdfast'")
    for row in tables:
        for right in ("insert", "update", "delete", "truncate"):
            held = await conn.fetchval(
                "select has_table_privilege($1, $2, $3)", role, f"holdfast.{row['tablename']}", right
            )
            assert not held, (row["tablename"], right)
    if role == "holdfast_worker":
        for row in tables:
            assert not await conn.fetchval(
                "select has_table_privilege($1, $2, 'select')", role, f"holdfast.{row['tablename']}"
            )
        return
    for call in (
        "holdfast.claim_tasks('w')",
        "holdfast.finish_and_claim('w', p_slots => 1, p_queues => '{q}')",
        "holdfast.reclaim_stale_tasks()",
        "holdfast.tick()",
        "holdfast.redrive('{}')",
        "holdfast.put_limit('x', p_max_running => 0)",
        "holdfast.pause_queue('q')",
        "holdfast.end_job(null, null)",
        "holdfast.submit_for_owner('bob', '{}')",
        "holdfast.metrics()",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with act_as_role(conn, role, "ann"):
                await conn.execute(f"select {call}")


async def test_a_worker_works_with_functions_alone(conn: Connection) -> None:
    job_id = await submit_job(conn)
    async with act_as_role(conn, "holdfast_worker"):
        manual_worker = ManualWorker(conn)
        task = await manual_worker.claim_one_task()
        assert await manual_worker.finish_task(task) == "ok"
        await conn.execute("select holdfast.tick()")
        assert (await jobs.get_job(conn, job_id) or {})["status"] == "succeeded"
        assert await submit_job(conn, owner="anybody")


async def test_every_function_of_the_engine_is_closed_to_the_public_and_pinned(conn: Connection) -> None:
    rows = await conn.fetch(
        """
        select p.oid::regprocedure::text as name,
          exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
            where a.grantee = 0 and a.privilege_type = 'EXECUTE') as public,
          p.prosecdef as definer, coalesce(array_to_string(p.proconfig, ' '), '') as config
        from pg_proc p where p.pronamespace = 'holdfast'::regnamespace
        """
    )
    assert len(rows) > 100
    assert [row["name"] for row in rows if row["public"]] == []
    assert [row["name"] for row in rows if row["definer"] and "search_path" not in row["config"]] == []
