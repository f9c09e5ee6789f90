"""Security rules for tables, functions, views and rights, like the lints of Supabase."""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec
import pytest

from holdfast.engine.connection import Connection

OUR_SCHEMAS = "('holdfast'::regnamespace, 'pgmq'::regnamespace, 'pgmq_public'::regnamespace)"


async def list_names(conn: Connection, query: str, *arguments: Any) -> list[str]:
    return [row[0] for row in await conn.fetch(query, *arguments)]


async def test_every_table_has_row_security_enabled_and_forced(conn: Connection) -> None:
    await conn.execute("select holdfast.tick()")  # makes the partitions of coming days
    tables = "from pg_class where relnamespace = 'holdfast'::regnamespace and relkind in ('r', 'p')"
    assert await conn.fetchval(f"select count(*) {tables}") > 30
    loose = await list_names(
        conn,
        f"select relname {tables} and not (relrowsecurity and relforcerowsecurity)",
    )
    assert loose == []


async def test_tables_with_policies_have_them_for_what_is_granted_and_no_more(conn: Connection) -> None:
    granted = await conn.fetch(
        """select distinct table_name, privilege_type from information_schema.column_privileges
           where table_schema = 'holdfast' and grantee in ('anon', 'authenticated', 'PUBLIC')"""
    )
    assert {row["privilege_type"] for row in granted} == {"SELECT"}
    for row in granted:
        policies = await conn.fetch(
            """select cmd, qual from pg_policies where schemaname = 'holdfast' and tablename = $1
                 and 'authenticated' = any (roles)""",
            row["table_name"],
        )
        kind = await conn.fetchval(
            "select relkind from pg_class where oid = ('holdfast.' || quote_ident($1))::regclass",
            row["table_name"],
        )
        if kind == b"v":
            continue
        assert [p["cmd"] for p in policies] == ["SELECT"], row["table_name"]
        assert "get_user_id_from_jwt_claims" in policies[0]["qual"]


async def test_the_user_is_looked_up_once_a_query_and_owners_are_indexed(conn: Connection) -> None:
    tables = await list_names(
        conn,
        # The case keeps the planner from asking about relations of other schemas, which would be an error.
        """select tablename from pg_policies where case
             when schemaname = 'holdfast' and policyname = 'own_rows'
             then has_column_privilege('authenticated', 'holdfast.' || tablename, 'owner', 'select') end""",
    )
    assert len(tables) >= 6
    for table in tables:
        async with conn.transaction():
            await conn.execute("""select set_config('request.jwt.claims', '{"sub": "ann"}', true)""")
            await conn.execute("set local role authenticated")
            plan = "\n".join(await list_names(conn, f"explain select owner from holdfast.{table}"))
        assert "InitPlan" in plan, table


async def test_definers_are_pinned_and_nothing_is_for_the_public(conn: Connection) -> None:
    rows = await conn.fetch(
        f"""
        select p.oid::regprocedure::text as name, p.prosecdef, p.pronamespace::regnamespace::text as schema,
          coalesce(array_to_string(p.proconfig, ' '), '') as config,
          exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
            where a.grantee = 0 and a.privilege_type = 'EXECUTE') as public
        from pg_proc p where p.pronamespace in {OUR_SCHEMAS}
        """
    )
    assert [row["name"] for row in rows if row["prosecdef"] and "search_path=" not in row["config"]] == []
    loose = [row["name"] for row in rows if row["public"] and row["schema"] != "pgmq"]
    assert loose == []  # pgmq keeps its contract: whoever is let into the schema may call


async def test_nothing_reads_another_clock(conn: Connection) -> None:
    """Lists of who watches or was woken are about this moment, and the status page shows both clocks."""
    clocks = r"(clock_timestamp|(transaction|statement|current|local)_?timestamp|(?<![.\w])now\()"
    reading = await list_names(
        conn,
        f"""select proname from pg_proc where pronamespace = 'holdfast'::regnamespace and prosrc ~ '{clocks}'
              and proname !~ '(message|queue|receipt|dead)'""",
    )
    assert set(reading) == {
        "now",
        "watch_jobs",
        "register_job_waiter",
        "register_sleeping_reader",
        "count_sleeping_workers",
        "notify_sleeping_workers",
        "send_wakeup",
        "broadcast_wakeup",
        "notify_event_watchers",
        "notify_job_waiters",
        "get_database_health",
        "observe_old_snapshot",  # transactions of the server
    }


async def test_views_run_with_the_rights_of_their_reader(conn: Connection) -> None:
    if conn.get_server_version().major < 15:
        pytest.skip("PostgreSQL 14 has no such option; there views are granted to service_role only")
    loose = await list_names(
        conn,
        """select relname from pg_class where relnamespace = 'holdfast'::regnamespace and relkind = 'v'
             and not coalesce(reloptions @> '{security_invoker=true}', false)""",
    )
    assert loose == []
    stored = "select count(*) from pg_class where relnamespace = 'holdfast'::regnamespace and relkind = 'm'"
    assert await conn.fetchval(stored) == 0


@pytest.mark.parametrize("role", ["anon", "authenticated"])
async def test_queue_tables_are_closed_to_users_until_opened(conn: Connection, role: str) -> None:
    await conn.execute("select pgmq.create('letters')")
    await conn.execute("""select pgmq.send('letters', '{"secret": 1}')""")
    tables = ("pgmq.q_letters", "pgmq.a_letters")
    statements = [
        f"{verb} {table}" for table in tables for verb in ("select from", "delete from", "truncate")
    ]
    statements += ["select pgmq_public.read('letters', 0, 1)", "select pgmq_public.pop('letters')"]
    for statement in statements:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await run_as(conn, role, statement)


async def run_as(conn: Connection, role: str, statement: str) -> None:
    async with conn.transaction():
        await conn.execute(f"set local role {role}")
        await conn.execute(statement)


async def test_anonymous_may_call_nothing_of_ours(conn: Connection) -> None:
    allowed = await list_names(
        conn,
        """select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'holdfast'::regnamespace
             and has_function_privilege('anon', p.oid, 'execute')""",
    )
    assert allowed == []
    assert not await conn.fetchval("select has_schema_privilege('anon', 'holdfast', 'usage')")


async def test_objects_earlier_in_the_search_path_are_not_used(conn: Connection) -> None:
    """A low role makes its own tables, functions and operators; ours do not look at them."""
    await conn.execute("""insert into holdfast.options values ('public_types', '["t"]')""")
    await conn.execute("grant create on schema public to authenticated")
    async with conn.transaction():
        await conn.execute("select set_config('request.jwt.claims', $1, true)", _build_claims("eve"))
        await conn.execute("set local role authenticated")
        await conn.execute("create temp table jobs (id uuid, owner text); create temp table tasks (id uuid)")
        await conn.execute(
            """create function public.now() returns timestamptz language sql
               as $$ select '-infinity'::timestamptz $$"""
        )
        await conn.execute(
            """create function public.always(text, text) returns boolean language sql as 'select true';
               create operator public.= (leftarg = text, rightarg = text, function = public.always)"""
        )
        await conn.execute("set local search_path = pg_temp, public, holdfast, pg_catalog")
        job_id = await conn.fetchval("""select holdfast.submit('{"type": "t"}') ->> 'id'""")
        assert await conn.fetchval("select count(*) from holdfast.list_jobs()") == 1
        with pytest.raises(asyncpg.PostgresError):
            async with conn.transaction():
                await conn.fetchval("""select holdfast.submit('{"type": "not open"}')""")
    assert await conn.fetchval("select owner from holdfast.tasks where id = $1::text::uuid", job_id) == "eve"


def _build_claims(user: str) -> str:
    return msgspec.json.encode({"sub": user, "role": "authenticated"}).decode()
