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
# The functions that an application needs to submit, read, cancel and retry jobs of every owner.
SUBMIT_FUNCTIONS = (
    *("act_for_all_owners", "now", "get_installed_schema", "is_provided_by_extension", "validate_task_args"),
    *("submit", "submit_many", "submit_uniform", "submit_standalone"),
    *("submit_within_job_limit", "check_unfinished_job_limit"),
    *("get_job", "list_jobs", "list_jobs_page", "find_jobs_by_id_prefix", "search_jobs", "count_jobs"),
    *("list_job_events", "read_logs", "explain_task", "list_task_attempts", "get_owner_usage"),
    *("cancel_job", "cancel_task", "cancel_jobs", "cancel_jobs_chunk", "retry_job", "build_job_resubmission"),
    *("open_batch", "close_batch", "get_batch"),
    *("get_artifact", "list_artifacts", "increment_artifact_downloads", "delete_artifact"),
    *("regenerate_artifact", "create_webhook", "list_webhooks", "set_webhook_active", "delete_webhook"),
    *("list_schedules", "get_schedule", "preview_schedule", "list_next_run_times"),
)
_LIST_SUBMIT_SIGNATURES = """
select pg_catalog.array_agg(pg_catalog.format(
  '%I.%I(%s)', n.nspname, p.proname, pg_catalog.oidvectortypes(p.proargtypes)) order by p.proname, p.oid)
from pg_catalog.pg_proc p
join pg_catalog.pg_namespace n on n.oid = p.pronamespace
where n.nspname = 'holdfast' and p.proname = any ($1::text[])
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
        signatures = await connection.fetchval(_LIST_SUBMIT_SIGNATURES, list(SUBMIT_FUNCTIONS))
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
