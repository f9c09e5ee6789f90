"""Rules about rights that the catalog can check: no role sees a row or calls a function without a grant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.engine import install, schema
from holdfast.engine.schema import FunctionFile, SchemaFiles
from holdfast.settings import Secret, Settings

GIVEN = """
  select 'reclaim' from pg_proc, aclexplode(proacl) a where proname = 'reclaim' and a.grantee <> proowner
  union all select 'keys' from pg_class, aclexplode(relacl) a
    where oid = 'holdfast.idempotency_keys'::regclass and a.grantee in (0, 'authenticated'::regrole)
  union all select 'schema' from pg_namespace, aclexplode(nspacl) a
    where nspname = 'holdfast' and a.grantee = 0"""
OURS = "'holdfast'::regnamespace"
# Each question lists the breaches of one rule in schema holdfast.
RULES = {
    "row security is enabled and forced on every table": """
        select relname from pg_class where relnamespace = HOLDFAST
          and relkind in ('r', 'p')
          and not (relrowsecurity and relforcerowsecurity)""",
    "every table has a policy for its owner": """
        select relname from pg_class c where relnamespace = HOLDFAST
          and relkind in ('r', 'p')
          and not relispartition
          and not exists (
            select from pg_policy p where p.polrelid = c.oid and c.relowner = any (p.polroles))""",
    "definer functions have a pinned search_path": """
        select oid::regprocedure from pg_proc where pronamespace = HOLDFAST and prosecdef
          and not exists (select from unnest(proconfig) s where s in ('search_path=', 'search_path=""'))""",
    "PUBLIC may execute nothing": """
        select p.oid::regprocedure from pg_proc p, aclexplode(coalesce(proacl, acldefault('f', proowner))) a
        where pronamespace = HOLDFAST and a.grantee = 0""",
    "PUBLIC has no right on a table or sequence": """
        select relname from pg_class, aclexplode(relacl) a
        where relnamespace = HOLDFAST and a.grantee = 0""",
    "PUBLIC may not enter the schema": """
        select nspname from pg_namespace, aclexplode(nspacl) a
        where nspname = 'holdfast' and a.grantee = 0""",
    "views run with the rights of their reader": """
        select relname from pg_class where relnamespace = HOLDFAST and (relkind = 'm'
          or (relkind = 'v' and current_setting('server_version_num')::int >= 150000
              and 'security_invoker=true' <> all (coalesce(reloptions, '{}'))))""",
    "before 15, no view is open to users": """
        select relname from pg_class, aclexplode(relacl) a join pg_roles r on r.oid = a.grantee
        where relnamespace = HOLDFAST and relkind = 'v' and rolname in ('anon', 'authenticated')
          and current_setting('server_version_num')::int < 150000""",
    "everything belongs to the owner of the schema": """
        select relname::text from pg_class, pg_namespace n
        where relnamespace = n.oid and nspname = 'holdfast' and relowner <> nspowner
        union all select proname::text from pg_proc, pg_namespace n
        where pronamespace = n.oid and nspname = 'holdfast' and proowner <> nspowner""",
    "the owner cannot log in and is no superuser": """
        select rolname from pg_roles where rolname = 'holdfast_owner'
          and (rolsuper or rolcanlogin or rolbypassrls or rolcreaterole or rolcreatedb)""",
    "workers have no right on tables": """
        select relname, privilege_type
        from pg_class, aclexplode(relacl) a join pg_roles r on r.oid = a.grantee
        where relnamespace = HOLDFAST and rolname = 'holdfast_worker'""",
    "users may at most read tables": """
        select relname, privilege_type
        from pg_class, aclexplode(relacl) a join pg_roles r on r.oid = a.grantee
        where relnamespace = HOLDFAST and rolname in ('anon', 'authenticated')
          and (privilege_type <> 'SELECT' or rolname = 'anon')""",
    "anon may call nothing": """
        select p.oid::regprocedure from pg_proc p where pronamespace = HOLDFAST
          and has_function_privilege('anon', p.oid, 'execute')""",
    "no overload is ambiguous by defaults": """
        select a.oid::regprocedure from pg_proc a join pg_proc b using (pronamespace, proname)
        where pronamespace = HOLDFAST and a.oid <> b.oid
          and a.pronargs - a.pronargdefaults <= b.pronargs - b.pronargdefaults and a.pronargs >= b.pronargs
          and a.proargtypes[0:greatest(b.pronargs - b.pronargdefaults - 1, 0)]
            = b.proargtypes[0:greatest(b.pronargs - b.pronargdefaults - 1, 0)]
          and a.pronargdefaults > 0""",
}

SEEDS = {
    "row security is enabled and forced on every table": "create table holdfast.bad ()",
    "every table has a policy for its owner": "create table holdfast.bad ()",
    "definer functions have a pinned search_path": """
        create function holdfast.bad() returns int language sql security definer as 'select 1'""",
    "PUBLIC may execute nothing": "create function holdfast.bad() returns int language sql as 'select 1'",
    "PUBLIC has no right on a table or sequence": "grant select on holdfast.migrations to public",
    "PUBLIC may not enter the schema": "grant usage on schema holdfast to public",
    "views run with the rights of their reader": "create materialized view holdfast.bad as select 1",
    "everything belongs to the owner of the schema": "create table holdfast.bad ()",
    "workers have no right on tables": "grant insert on holdfast.migrations to holdfast_worker",
    "users may at most read tables": "grant select on holdfast.migrations to anon",
    "anon may call nothing": "grant execute on function holdfast.now() to anon",
    "no overload is ambiguous by defaults": """
        create function holdfast.bad(a int) returns int language sql as 'select 1';
        create function holdfast.bad(a int, b int default 1) returns int language sql as 'select 1'""",
}


@pytest.mark.parametrize("rule", RULES)
async def test_rule(rule: str, conn: Any) -> None:
    assert [tuple(row) for row in await conn.fetch(RULES[rule].replace("HOLDFAST", OURS))] == []


@pytest.mark.parametrize("rule", SEEDS)
async def test_the_rule_finds_a_breach(rule: str, conn: Any) -> None:
    await conn.execute(SEEDS[rule])
    assert await conn.fetch(RULES[rule].replace("HOLDFAST", OURS))


async def test_a_name_that_does_not_exist_cannot_be_allowed(conn: Any) -> None:
    with pytest.raises(Exception, match=r"function holdfast\.no_such does not exist"):
        await conn.execute("call holdfast.grant_execute('holdfast_worker', 'no_such')")
    with pytest.raises(Exception, match=r'column "no_such" of relation "jobs" does not exist'):
        await conn.execute("call holdfast.grant_select_columns('authenticated', 'jobs', 'no_such')")


async def test_a_role_that_does_not_exist_is_passed_over(conn: Any) -> None:
    await conn.execute("call holdfast.grant_execute('hf_nobody_has_this_name', 'now')")
    await conn.execute("call holdfast.grant_select_columns('hf_nobody_has_this_name', 'migrations', 'name')")


async def test_rights_that_are_not_in_the_files_are_taken_back_with_the_next_functions(
    conn: Any, url: Secret, settings: Settings
) -> None:
    await conn.execute(
        "grant execute on function holdfast.reclaim_expired_leases to public, authenticated;"
        "grant select, delete on holdfast.idempotency_keys to authenticated; "
        "grant usage on schema holdfast to public"
    )
    packaged = schema.load_packaged_schema()
    another = (*packaged.functions, FunctionFile("zz_another.sql", "select 1;"))
    assert (
        await install.migrate_database(url, settings, files=SchemaFiles(packaged.migrations, another))
    ).functions_replaced
    assert [tuple(row) for row in await conn.fetch(GIVEN)] == []


async def test_the_clock_can_search_an_index_and_names_everything_in_full(conn: Any) -> None:
    volatility, body = await conn.fetchrow(
        "select provolatile, prosrc from pg_proc where oid = 'holdfast.now()'::regprocedure"
    )
    assert volatility == b"s"
    assert "pg_catalog.clock_timestamp()" in body


async def test_shadows_of_a_low_role_change_nothing(conn: Any) -> None:
    """What a caller puts in front of the search path must not be run by functions of the owner."""
    await conn.execute(
        "create function pg_temp.jsonb_agg(jsonb) returns jsonb language sql as $$ select '0'::jsonb $$;"
        "create temp table migrations (version int); set search_path = pg_temp, pg_catalog, holdfast"
    )
    rows = await conn.fetchval("select jsonb_array_length(holdfast.get_installed_schema() -> 'migrations')")
    assert rows == await conn.fetchval("select count(*) from holdfast.migrations")


async def test_every_function_that_a_role_may_call_is_documented(conn: Any) -> None:
    """The page is generated from the files; the database has the grants that count."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "sql-functions.md").read_text()
    rows = await conn.fetch(
        "select distinct p.proname from pg_proc p, unnest(array['anon', 'authenticated', 'service_role',"
        " 'holdfast_worker']) as r where p.pronamespace = 'holdfast'::regnamespace"
        " and has_function_privilege(r, p.oid, 'execute')"
    )
    assert rows
    assert [row["proname"] for row in rows if f"| `{row['proname']}(" not in page] == []
