"""Check, before a migration, that the server is supported and that the role may install the schema."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import errors
from holdfast.engine.connection import MIN_POSTGRES_MAJOR, Connection

_READ_SERVER_INFO = """
select
  pg_catalog.current_setting('server_version_num')::integer as version_number,
  pg_catalog.current_setting('server_version') as version,
  pg_catalog.pg_is_in_recovery() as is_standby,
  pg_catalog.current_setting('transaction_read_only')::boolean as read_only,
  pg_catalog.current_database()::text as database,
  current_user::text as role,
  pg_catalog.has_database_privilege(pg_catalog.current_database(), 'create') as may_create_schemas,
  (select rolsuper or rolcreaterole from pg_catalog.pg_roles
    where rolname = current_user) as may_create_roles,
  (select pg_catalog.count(*)::integer from pg_catalog.pg_namespace
    where nspname in ('holdfast', 'pgmq', 'pgmq_public')) as schemas,
  (select pg_catalog.pg_get_userbyid(nspowner)::text from pg_catalog.pg_namespace
    where nspname = 'holdfast') as owner,
  coalesce((select pg_catalog.pg_has_role(nspowner, case
    when pg_catalog.current_setting('server_version_num')::integer >= 160000 then 'SET' else 'MEMBER' end)
    from pg_catalog.pg_namespace where nspname = 'holdfast'), true) as may_own
"""


@dataclass(frozen=True)
class ServerInfo:
    """The version and state of a PostgreSQL server, and the rights of the current role."""

    version_number: int
    version: str
    is_standby: bool
    read_only: bool
    database: str
    role: str
    may_create_schemas: bool
    may_create_roles: bool
    schemas: int
    owner: str | None
    may_own: bool


async def read_server_info(connection: Connection) -> ServerInfo:
    row = await connection.fetchrow(_READ_SERVER_INFO)
    assert row is not None  # noqa: S101  (one row always)
    return ServerInfo(**dict(row))


def require_supported_version(server: ServerInfo) -> None:
    if server.version_number < MIN_POSTGRES_MAJOR * 10000:
        raise errors.DatabaseTooOldError(
            f"This is PostgreSQL {server.version}; Holdfast needs {MIN_POSTGRES_MAJOR} or newer.",
            fix="Upgrade the server, or unset DATABASE_URL to use the embedded one.",
        )


def require_writable_server(server: ServerInfo) -> None:
    require_supported_version(server)
    if server.is_standby:
        raise errors.DatabaseReadOnlyError(
            f"The database {server.database} is on a standby, which cannot be written to.",
            fix="Point DATABASE_URL at the primary.",
        )
    if server.read_only:
        raise errors.DatabaseReadOnlyError(
            f"Transactions of {server.role} in the database {server.database} are read-only by default.",
            fix=f'Run: alter database "{server.database}" reset default_transaction_read_only '
            "(or the same for the role).",
        )


def require_owner_rights(server: ServerInfo) -> None:
    if not server.may_own:
        raise errors.DatabasePermissionError(
            f"The schema holdfast belongs to {server.owner}, and {server.role} may not act as that role.",
            fix=f'Migrate as {server.owner}, or run: grant "{server.owner}" to "{server.role}"',
        )
    require_create_right(server)


def require_create_right(server: ServerInfo) -> None:
    if server.schemas < 3 and not server.may_create_schemas:
        raise errors.DatabasePermissionError(
            f"The role {server.role} may not create a schema in the database {server.database}.",
            fix=f'Let its owner run: grant create on database "{server.database}" to "{server.role}"',
        )
