"""Create the roles that Holdfast grants rights to, and grant rights to roles of applications.

Roles belong to the server and are shared by all its databases.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import asyncpg

from holdfast import errors, telemetry
from holdfast.engine import preflight, schema
from holdfast.engine.connection import Connection, open_connection
from holdfast.engine.schema_status import SCHEMA_ROLES
from holdfast.settings import Secret, Settings

GrantPurpose = Literal["worker", "submit"]

_LIST_EXISTING_ROLES = "select rolname::text from pg_catalog.pg_roles where rolname = any($1::text[])"
# The functions that a signed-in user may call are those that an application needs to submit and read jobs.
_LIST_END_USER_FUNCTIONS = """
select pg_catalog.array_agg(signature order by signature)
from (
  select pg_catalog.format(
    '%I.%I(%s)', n.nspname, p.proname, pg_catalog.oidvectortypes(p.proargtypes)) as signature
  from pg_catalog.pg_proc p
  join pg_catalog.pg_namespace n on n.oid = p.pronamespace
  cross join pg_catalog.aclexplode(p.proacl) acl
  join pg_catalog.pg_roles r on r.oid = acl.grantee
  where n.nspname = 'holdfast' and r.rolname = 'authenticated' and acl.privilege_type = 'EXECUTE'
) allowed
"""


def find_missing_roles(existing: Collection[str]) -> tuple[str, ...]:
    return tuple(role for role in SCHEMA_ROLES if role not in existing)


async def create_missing_roles(connection: Connection) -> tuple[str, ...]:
    """Create the missing roles that this login may create. Return the roles that are still missing."""
    async with connection.transaction():
        await connection.execute(schema.read_setup_sql("roles"))
        existing = [
            record["rolname"] for record in await connection.fetch(_LIST_EXISTING_ROLES, list(SCHEMA_ROLES))
        ]
    skipped = find_missing_roles(existing)
    for role in skipped:
        telemetry.emit("schema.role_skipped", role=role, error="this login may not create roles")
    return skipped


async def build_grant_statements(
    url: Secret, settings: Settings, role: str, purpose: GrantPurpose, *, check_role: bool = True
) -> list[str]:
    """Build the GRANT statements that let a role run workers, or submit and read jobs."""
    async with open_connection(url, settings) as connection, connection.transaction():
        server = await preflight.read_server_info(connection)
        if check_role:
            await _require_role(connection, role)
        if purpose == "worker":
            return [await _build_membership_grant(connection, server, role)]
        signatures = await connection.fetchval(_LIST_END_USER_FUNCTIONS)
    if not signatures:
        raise errors.SchemaMissingError(
            "Holdfast is not installed in this database, so there is nothing to grant.",
            fix="Run: holdfast migrate",
        )
    return [
        f"grant usage on schema holdfast to {quote_identifier(role)}",
        *(f"grant execute on routine {signature} to {quote_identifier(role)}" for signature in signatures),
    ]


async def execute_grants(url: Secret, settings: Settings, statements: Collection[str]) -> None:
    """Execute GRANT statements, as the owner of the schema if the login may switch to that role."""
    async with open_connection(url, settings) as connection, connection.transaction():
        server = await preflight.read_server_info(connection)
        preflight.require_writable_server(server)
        for statement in statements:
            if statement.startswith("grant usage") and server.owner and server.may_own:
                await connection.execute(f"set local role {quote_identifier(server.owner)}")
            try:
                await connection.execute(statement)
            except asyncpg.InsufficientPrivilegeError as error:
                raise errors.DatabasePermissionError(
                    f"The role {server.role} may not grant this: {error}.",
                    fix=f"Let an administrator run: {statement};",
                ) from error


async def _require_role(connection: Connection, role: str) -> None:
    if not await connection.fetchval(
        "select exists (select from pg_catalog.pg_roles where rolname = $1)", role
    ):
        raise errors.NotFoundError(
            f"Role {role} does not exist.",
            fix=f"Create it first: create role {quote_identifier(role)} login password '...'",
        )


async def _build_membership_grant(connection: Connection, server: preflight.ServerInfo, role: str) -> str:
    existing = await connection.fetch(_LIST_EXISTING_ROLES, ["holdfast_worker"])
    if not existing:
        raise errors.NotFoundError(
            "Role holdfast_worker does not exist; the role that migrated may not create roles.",
            fix="Let an administrator run: create role holdfast_worker nologin; then run: holdfast migrate",
        )
    # Since PostgreSQL 16 this also works for roles that are marked noinherit.
    inherit = " with inherit true" if server.version_number >= 160000 else ""
    return f"grant holdfast_worker to {quote_identifier(role)}{inherit}"


def quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
