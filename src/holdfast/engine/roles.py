"""The roles that our rights are given to. They belong to the server and are shared by all its databases."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import asyncpg

from holdfast import errors, telemetry
from holdfast.engine import preflight, schema
from holdfast.engine.connection import Connection, connected
from holdfast.engine.state import ROLES
from holdfast.settings import Secret, Settings

Purpose = Literal["worker", "submit"]

_THERE = "select rolname::text from pg_catalog.pg_roles where rolname = any($1::text[])"
# What a signed-in user may call is what an application needs that only submits and looks.
_SUBMITTING = """
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


def missing(there: Collection[str]) -> tuple[str, ...]:
    return tuple(role for role in ROLES if role not in there)


async def ensure(connection: Connection) -> tuple[str, ...]:
    """Make what is missing as far as this login may, and answer with what is missing still."""
    async with connection.transaction():
        await connection.execute(schema.setup("roles"))
        found = [record["rolname"] for record in await connection.fetch(_THERE, list(ROLES))]
    skipped = missing(found)
    for role in skipped:
        telemetry.emit("schema.role_skipped", role=role, error="this login may not create roles")
    return skipped


async def grants(url: Secret, settings: Settings, role: str, purpose: Purpose) -> list[str]:
    """The statements that let an application's role work, or submit, with Holdfast."""
    async with connected(url, settings) as connection, connection.transaction():
        server = await preflight.server(connection)
        await _refuse_unknown(connection, role)
        if purpose == "worker":
            return [await _membership(connection, server, role)]
        signatures = await connection.fetchval(_SUBMITTING)
    if not signatures:
        raise errors.SchemaMissingError(
            "There is no function yet that an application could be let to.", fix="Run: holdfast migrate"
        )
    return [
        f"grant usage on schema holdfast to {quoted(role)}",
        *(f"grant execute on routine {signature} to {quoted(role)}" for signature in signatures),
    ]


async def grant(url: Secret, settings: Settings, statements: Collection[str]) -> None:
    """Run them as the login of `url`, or as the owner of the schema where it may act as that."""
    async with connected(url, settings) as connection, connection.transaction():
        server = await preflight.server(connection)
        preflight.refuse_server(server)
        for statement in statements:
            if statement.startswith("grant usage") and server.owner and server.may_own:
                await connection.execute(f"set local role {quoted(server.owner)}")
            try:
                await connection.execute(statement)
            except asyncpg.InsufficientPrivilegeError as problem:
                raise errors.DatabaseRightsError(
                    f"The role {server.role} may not do this: {problem}.",
                    fix=f"Let an administrator run: {statement};",
                ) from problem


async def _refuse_unknown(connection: Connection, role: str) -> None:
    if not await connection.fetchval(
        "select exists (select from pg_catalog.pg_roles where rolname = $1)", role
    ):
        raise errors.NotFoundError(
            f"There is no role {role}.",
            fix=f"Create it first: create role {quoted(role)} login password '...'",
        )


async def _membership(connection: Connection, server: preflight.Server, role: str) -> str:
    found = [record["rolname"] for record in await connection.fetch(_THERE, ["holdfast_worker"])]
    if not found:
        raise errors.NotFoundError(
            "The role holdfast_worker does not exist; whoever migrated was not allowed to create it.",
            fix="Let an administrator run: create role holdfast_worker nologin; then run: holdfast migrate",
        )
    # Since PostgreSQL 16 this works for roles that are marked noinherit, too.
    inherit = " with inherit true" if server.version_number >= 160000 else ""
    return f"grant holdfast_worker to {quoted(role)}{inherit}"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
