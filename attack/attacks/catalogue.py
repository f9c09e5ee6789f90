"""The database catalogue with every system installed: row security, functions, and what users may write.

The tests of the engine check the same rules for the engine alone; here they hold for whatever is mounted.
"""

from __future__ import annotations

from typing import Any

from attack.attacks.attack import Attack
from attack.findings import AttackLog
from attack.target import Product

USER_ROLES = ("anon", "authenticated")
# What users may write directly, as docs/operate/security.md says. Everything else is written by functions.
WRITABLE_BY_USERS: dict[str, set[str]] = {
    "clipnest_videos": {"INSERT", "DELETE"},  # only user_id, video_url and title
    "documents": {"INSERT", "UPDATE", "DELETE"},
    "export_history": {"INSERT", "DELETE"},  # without the columns that name a file
}
OUR_RELATIONS = """
select c.oid, c.oid::regclass::text as name, c.relname::text as short, c.relkind::text as kind,
  n.nspname::text as schema, c.relrowsecurity as enabled, c.relforcerowsecurity as forced,
  coalesce(c.reloptions::text, '') as options
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = any ($1::text[]) and c.relkind in ('r', 'p', 'v', 'm', 'S')
"""
OUR_FUNCTIONS = """
select p.oid::regprocedure::text as name, n.nspname::text as schema, p.prosecdef as definer,
  coalesce(array_to_string(p.proconfig, ' '), '') as config,
  exists (select from pg_catalog.aclexplode(coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) a
    where a.grantee = 0 and a.privilege_type = 'EXECUTE') as public
from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
where n.nspname = any ($1::text[])
"""


async def attack_catalogue(product: Product, log: AttackLog) -> None:
    schemas = ["holdfast", "pgmq", "pgmq_public", product.settings.systems_schema]
    await product.connection.execute("select pgmq.create('attack_catalogue')")  # its tables are checked too
    relations = await product.connection.fetch(OUR_RELATIONS, schemas)
    for relation in relations:
        check_row_security(log, relation)
        await check_rights(product, log, relation)
    for function in await product.connection.fetch(OUR_FUNCTIONS, schemas):
        pinned = not function["definer"] or "search_path=" in function["config"]
        log.check(pinned, f"{function['name']} runs as its owner without a search_path", "\\df+")
        closed = not function["public"] or function["schema"] == "pgmq"  # the contract of pgmq
        log.check(closed, f"{function['name']} may be called by PUBLIC", "\\df+")
    await check_roles(product, log, schemas)


def check_row_security(log: AttackLog, relation: Any) -> None:
    name, kind = relation["name"], relation["kind"]
    if kind in ("r", "p") and relation["schema"] != "pgmq":
        problem = f"row security of {name} is not enabled and forced"
        log.check(relation["enabled"] and relation["forced"], problem, f"\\d+ {name}")
    if kind == "v" and relation["schema"] != "pgmq":
        invoker = "security_invoker=true" in relation["options"].replace("=on", "=true")
        log.check(invoker, f"view {name} runs with the rights of its owner", f"\\d+ {name}")
    log.check(kind != "m", f"{name} is a materialized view, which has no row security", f"\\d+ {name}")


async def check_rights(product: Product, log: AttackLog, relation: Any) -> None:
    """Check that users may write only what is documented. Rights on single columns count too."""
    privileges: tuple[str, ...] = ("UPDATE", "USAGE")
    if relation["kind"] == "S":
        function = "has_sequence_privilege"
    else:
        privileges = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
        function = "has_table_privilege"
    allowed = WRITABLE_BY_USERS.get(relation["short"], set[str]()) if relation["schema"] != "pgmq" else set()
    for role in USER_ROLES:
        for privilege in privileges:
            held = await product.connection.fetchval(
                f"select {function}($1, $2::oid, $3)", role, relation["oid"], privilege
            )
            if not held and privilege in ("INSERT", "UPDATE"):
                held = relation["kind"] != "S" and await product.connection.fetchval(
                    "select has_any_column_privilege($1, $2::oid, $3)", role, relation["oid"], privilege
                )
            documented = role == "authenticated" and privilege in allowed
            problem = f"{role} has {privilege} on {relation['name']}, which is not documented"
            log.check(not held or documented, problem, f"\\dp {relation['name']}", role)


async def check_roles(product: Product, log: AttackLog, schemas: list[str]) -> None:
    for role in (*USER_ROLES, "holdfast_worker"):
        row = await product.connection.fetchrow(
            """select rolsuper or rolbypassrls or rolcreaterole or rolcreatedb as strong,
                 pg_has_role($1, 'service_role', 'member') as service
               from pg_catalog.pg_roles where rolname = $1""",
            role,
        )
        log.check(row is None or not row["strong"], f"role {role} may do everything", "\\du", role)
        log.check(row is None or not row["service"], f"role {role} is a service", "\\du", role)
        for schema in schemas:
            creates = await product.connection.fetchval(
                "select has_schema_privilege($1, $2, 'create')", role, schema
            )
            log.check(not creates, f"{role} may create objects in schema {schema}", "\\dn+", role)


ATTACK = Attack("catalogue", "row security, pinned functions and rights in the catalogue", attack_catalogue)
