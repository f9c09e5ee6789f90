"""Least privilege in every schema that we create: what users can write, and how systems protect their tables.

The tests read the catalogue and install every system of the package, so that a new table, sequence, function
or system is checked without a change here, unless users may write it.
"""

from __future__ import annotations

from typing import Any

import pytest
from all_systems import SYSTEMS_SCHEMA, install_all_systems, list_systems

from holdfast.engine.connection import Connection
from holdfast.engine.rpc_functions import RPC_FUNCTIONS

# Everything that anon, authenticated or PUBLIC may write, and why. See also docs/operate/security.md.
WRITABLE_TABLES = {
    "apps.clipnest_videos": "DELETE, INSERT: a user's INSERT of a URL starts a clip; no other columns",
    "apps.documents": "DELETE, INSERT, UPDATE: the export contract lets users manage their own documents",
    "apps.export_history": "DELETE, INSERT: the export contract; no columns that name a job or a file",
}
WRITABLE_SEQUENCES: dict[str, str] = {}

OUR_SCHEMAS = "('holdfast', 'pgmq', 'pgmq_public', 'apps')"
USERS = "('anon', 'authenticated')"
_LIST_TABLE_RIGHTS = f"""
select c.oid::regclass::text as name,
  string_agg(distinct a.privilege_type, ', ' order by a.privilege_type) as rights
from pg_class c join pg_namespace n on n.oid = c.relnamespace
cross join lateral (
  select x.grantee, x.privilege_type from aclexplode(c.relacl) x
  union all
  select x.grantee, x.privilege_type from pg_attribute t, aclexplode(t.attacl) x where t.attrelid = c.oid) a
where n.nspname in {OUR_SCHEMAS} and c.relkind in ('r', 'p', 'v', 'm', 'f') and a.privilege_type <> 'SELECT'
  and (a.grantee = 0 or pg_get_userbyid(a.grantee) in {USERS})
group by c.oid
"""
_LIST_SEQUENCE_RIGHTS = f"""
select c.oid::regclass::text as name, string_agg(distinct a.privilege_type, ', ') as rights
from pg_class c join pg_namespace n on n.oid = c.relnamespace, aclexplode(c.relacl) a
where n.nspname in {OUR_SCHEMAS} and c.relkind = 'S' and a.privilege_type <> 'SELECT'
  and (a.grantee = 0 or pg_get_userbyid(a.grantee) in {USERS})
group by c.oid
"""
_LIST_SCHEMA_RIGHTS = f"""
select n.nspname::text as name, a.privilege_type as rights
from pg_namespace n, aclexplode(n.nspacl) a
where n.nspname in {OUR_SCHEMAS} and a.privilege_type <> 'USAGE'
  and (a.grantee = 0 or pg_get_userbyid(a.grantee) in {USERS})
"""
_LIST_DEFAULT_RIGHTS = f"""
select coalesce(n.nspname, '')::text || ' ' || d.defaclobjtype::text as name, a.privilege_type as rights
from pg_default_acl d left join pg_namespace n on n.oid = d.defaclnamespace, aclexplode(d.defaclacl) a
where (a.grantee = 0 or pg_get_userbyid(a.grantee) in {USERS})
  and not (n.nspname is not distinct from 'pgmq' and d.defaclobjtype = 'f')
"""
_LIST_FUNCTIONS = f"""
select n.nspname::text as schema, p.proname::text as name, p.provolatile = 'v' as writes,
  p.prosecdef as definer, p.prorettype = 'trigger'::regtype as trigger,
  coalesce(array_to_string(p.proconfig, ' '), '') as config,
  exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
    where a.grantee = 0 and a.privilege_type = 'EXECUTE') as public,
  has_function_privilege('anon', p.oid, 'execute') as anon,
  has_function_privilege('authenticated', p.oid, 'execute') as authenticated
from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname in {OUR_SCHEMAS}
"""


@pytest.fixture
async def everything(conn: Connection) -> Connection:
    """A database with every system, and a message queue with notifications and wakeups."""
    assert {system.__name__.rpartition(".")[2] for system in list_systems()} >= {"exports", "reports"}
    await install_all_systems(conn)
    await conn.execute("select pgmq.create('letters'), pgmq.create_unlogged('postcards')")
    await conn.execute(
        "select pgmq.enable_notify_insert('letters'), holdfast.enable_message_wakeups('letters')"
    )
    await conn.execute("select holdfast.tick()")  # makes the partitions of coming days
    await conn.execute("set search_path = pg_catalog")  # so that the catalogue shows schemas
    return conn


async def read_rights(conn: Connection, query: str) -> dict[str, str]:
    return {row["name"]: row["rights"] for row in await conn.fetch(query)}


async def test_users_write_only_what_a_contract_needs(everything: Connection) -> None:
    tables = await read_rights(everything, _LIST_TABLE_RIGHTS)
    assert tables == {name: reason.partition(":")[0] for name, reason in WRITABLE_TABLES.items()}
    assert await read_rights(everything, _LIST_SEQUENCE_RIGHTS) == WRITABLE_SEQUENCES
    assert await read_rights(everything, _LIST_SCHEMA_RIGHTS) == {}
    assert await read_rights(everything, _LIST_DEFAULT_RIGHTS) == {}, "for tables and sequences to come"


async def test_users_call_only_documented_functions_that_write(everything: Connection) -> None:
    functions = await everything.fetch(_LIST_FUNCTIONS)
    writing = [row for row in functions if row["writes"] and not row["trigger"]]
    assert [row["name"] for row in writing if row["schema"] == "apps" and row["authenticated"]] == []
    of_users = {row["name"] for row in writing if row["schema"] == "holdfast" and row["authenticated"]}
    documented = {name for name, rule in RPC_FUNCTIONS.items() if rule.users}
    assert of_users <= documented
    assert [row["name"] for row in functions if row["schema"] in ("holdfast", "apps") and row["anon"]] == []


async def test_functions_are_pinned_and_closed_to_the_public(everything: Connection) -> None:
    functions = await everything.fetch(_LIST_FUNCTIONS)
    assert len([row for row in functions if row["schema"] == SYSTEMS_SCHEMA]) > 10
    loose = [row["name"] for row in functions if row["definer"] and "search_path=" not in row["config"]]
    assert loose == []
    # pgmq keeps its contract: whoever may use the schema may call, with the caller's own rights.
    assert [row["name"] for row in functions if row["public"] and row["schema"] != "pgmq"] == []
    definers = {row["name"] for row in functions if row["schema"].startswith("pgmq") and row["definer"]}
    triggers = {row["name"] for row in functions if row["trigger"]}
    assert definers <= triggers, "a function that everybody may call must not have the rights of its owner"


async def test_row_security_is_forced_on_every_table_of_every_system(everything: Connection) -> None:
    rows = await everything.fetch(
        """select c.relname::text as name, c.relrowsecurity and c.relforcerowsecurity as forced,
             exists (select from pg_policy p
               where p.polrelid = c.oid and c.relowner = any (p.polroles)) as owned
           from pg_class c where c.relkind in ('r', 'p')
             and c.relnamespace in ('apps'::regnamespace, 'holdfast'::regnamespace)"""
    )
    assert len(rows) > 35
    assert [row["name"] for row in rows if not row["forced"]] == []
    # A definer function of an owner who is no superuser would see no row without a policy.
    assert [row["name"] for row in rows if not row["owned"]] == []


async def test_views_of_every_system_run_with_the_rights_of_their_reader(everything: Connection) -> None:
    if everything.get_server_version().major < 15:
        pytest.skip("PostgreSQL 14 has no such option")
    rows = await everything.fetch(
        """select relname::text as name, relkind::text as kind,
             coalesce(reloptions @> '{security_invoker=true}', false) as invoker from pg_class
           where relnamespace in ('apps'::regnamespace, 'holdfast'::regnamespace) and relkind in ('v', 'm')"""
    )
    assert {row["name"] for row in rows} >= {"jobs", "job_tasks", "job_artifacts", "export_jobs", "all_tasks"}
    assert [row["name"] for row in rows if not row["invoker"] or row["kind"] == "m"] == []


async def list_user_policies(conn: Connection) -> list[dict[str, Any]]:
    """List the policies of users: the expression, and whether an index begins with one of its columns."""
    rows = await conn.fetch(
        """select p.polrelid::regclass::text as name, p.polcmd::text as command,
             coalesce(pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
               as expression,
             exists (
               select from pg_depend d
               join pg_index i on i.indrelid = p.polrelid and i.indkey[0] = d.refobjsubid
               where d.classid = 'pg_policy'::regclass and d.objid = p.oid and d.refobjid = p.polrelid
                 and i.indpred is null) as indexed
           from pg_policy p join pg_class c on c.oid = p.polrelid
           where c.relnamespace in ('apps'::regnamespace, 'holdfast'::regnamespace)
             and 'authenticated'::regrole = any (p.polroles)"""
    )
    return [dict(row) for row in rows]


async def test_policies_ask_for_the_user_once_and_use_an_index(everything: Connection) -> None:
    policies = await list_user_policies(everything)
    assert len(policies) > 12
    for policy in policies:
        assert "( SELECT holdfast.get_user_" in policy["expression"], policy
        # An insert looks at one row. Large tables of the engine are read by the id of a job, and an index by
        # owner would slow down every submit.
        if policy["command"] != "a" and policy["name"].startswith("apps."):
            assert policy["indexed"], policy


async def test_users_without_a_subject_see_no_row_of_any_system(everything: Connection) -> None:
    """Also with claims of a known user, if the connection did not switch to `authenticated`."""
    names = [policy["name"] for policy in await list_user_policies(everything) if "apps." in policy["name"]]
    user = "00000000-0000-4000-8000-00000000000a"
    await everything.execute(
        "insert into apps.documents (user_id, title, data) values ($1, 'secret', '{}')", user
    )
    spellings = ("", user.upper(), f"{{{user}}}", user.replace("-", ""), "not a uuid", "' or true --")
    for subject, count in [(user, 1), *((text, 0) for text in spellings)]:
        async with everything.transaction():
            await everything.execute("select set_config('request.jwt.claim.sub', $1, true)", subject)
            await everything.execute("set local role authenticated")
            for name in set(names):
                rows = await everything.fetch(f"select user_id from {name}")
                assert len(rows) == (count if name == "apps.documents" else 0), (name, subject)
