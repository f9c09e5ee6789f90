"""Migrate the schema of a database to the version of this code, and check its version.

Protocol: one advisory lock, held by a transaction, lets one process migrate a database at a time. A process
tries to take the lock and does not wait for it, because a waiting statement holds a snapshot, and the lock
holder could not build an index concurrently. Under the lock the state is read again. Everything that can run
in a transaction runs in this one: schemas, migrations, functions, grants, version rows. So a killed or
cancelled run leaves either the old or the new state and never a lock. Migrations marked `concurrently` run
alone on a second connection while the first one keeps the lock; what an aborted one left behind is removed
before the next try. No session state is used, so all of this works through a transaction pooler.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import takewhile
from typing import TypeVar

import asyncpg

from holdfast import errors, telemetry
from holdfast.engine import migration_script, preflight, roles, schema, schema_status
from holdfast.engine.connection import Connection, open_connection, translate_error
from holdfast.engine.schema import SchemaFiles, SchemaMigration
from holdfast.engine.schema_status import SchemaStatus
from holdfast.settings import Secret, Settings
from holdfast.version import __version__

T = TypeVar("T")

MAX_MIGRATION_LOCK_WAIT = timedelta(minutes=10)  # how long to wait for another migration
MAX_TABLE_LOCK_ATTEMPTS = 12  # for locks that running work holds; each waits up to the setting lock_timeout
MIGRATION_TIMEOUT = timedelta(days=1)  # practically none: only waiting for locks is bounded
MIGRATION_LOCK_RETRY_INTERVAL_S = 0.3
MAX_TABLE_LOCK_RETRY_DELAY_S = 3.0

_READ_INDEX_STATE = """
select case when i.indisvalid and i.indisready then 'valid' else 'invalid' end
from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indexrelid
where c.relname = $1 and c.relnamespace = (select oid from pg_catalog.pg_namespace where nspname = 'holdfast')
"""

MIGRATION_LOCK_ID = migration_script.MIGRATION_LOCK_ID
build_migration_script = migration_script.build_migration_script


@dataclass(frozen=True)
class MigrationReport:
    """Result of a migration: the applied versions, and whether the functions were replaced."""

    versions: tuple[int, ...]
    functions_replaced: bool
    version: int
    missing_roles: tuple[str, ...]
    seconds: float


@dataclass
class _MigrationRun:
    url: Secret
    settings: Settings
    files: SchemaFiles
    connection: Connection
    versions: list[int] = field(default_factory=list[int])
    functions_replaced: bool = False


async def migrate_database(
    url: Secret, settings: Settings, *, files: SchemaFiles | None = None
) -> MigrationReport:
    """Apply pending migrations and replace outdated functions. Concurrent calls are safe."""
    began = time.monotonic()
    settings = replace(settings, call_timeout=MIGRATION_TIMEOUT, statement_cache="off")
    async with open_connection(url, settings) as connection:
        run = _MigrationRun(url, settings, files or schema.load_packaged_schema(), connection)
        async with connection.transaction():
            server = await preflight.read_server_info(connection)
            preflight.require_writable_server(server)
            status = await _read_and_check_schema_status(run)
            if not status.is_current:
                preflight.require_create_right(server)
        missing = roles.find_missing_roles(status.installed.roles)
        if not status.is_current or (missing and server.may_create_roles):
            missing = await _retry_transient_errors(lambda: roles.create_missing_roles(connection))
        while await _retry_transient_errors(lambda: _run_migration_step(run)):
            pass
    report = MigrationReport(
        tuple(run.versions),
        run.functions_replaced,
        run.files.latest_version,
        missing,
        time.monotonic() - began,
    )
    if report.versions or report.functions_replaced:
        telemetry.emit("schema.migrated", versions=report.versions, seconds=report.seconds)
    return report


async def read_schema_status(
    url: Secret, settings: Settings, *, files: SchemaFiles | None = None
) -> SchemaStatus:
    """Compare the schema in the database with the SQL files of this code."""
    async with open_connection(url, settings) as connection, connection.transaction():
        preflight.require_supported_version(await preflight.read_server_info(connection))
        files = files or schema.load_packaged_schema()
        return SchemaStatus(await schema_status.read_installed_schema(connection, files), files)


async def verify_schema(connection: Connection, *, files: SchemaFiles | None = None) -> None:
    """Raise SchemaError unless this code can use the installed schema. Every process calls it at start."""
    files = files or schema.load_packaged_schema()
    async with connection.transaction():
        preflight.require_supported_version(await preflight.read_server_info(connection))
        status = SchemaStatus(await schema_status.read_installed_schema(connection, files), files)
    if not status.installed.migrations:
        raise errors.SchemaMissingError(
            "Holdfast is not installed in this database.", fix="Run: holdfast migrate"
        )
    status.raise_if_unreleased()
    breaking = [m for m in status.unknown_migrations if m.breaking]
    if breaking:
        raise errors.SchemaTooNewError(
            f"The schema has the breaking migration {breaking[0].version} ({breaking[0].name}), which this "
            f"code (Holdfast {__version__}) does not know.",
            fix=f"Upgrade the package: pip install 'holdfast>={breaking[0].applied_by}'.",
        )
    if status.pending_migrations or status.function_set_state in {"missing", "outdated"}:
        raise errors.SchemaOutdatedError(
            f"The schema is at version {status.installed.latest_version} and this code needs "
            f"{files.latest_version}{'' if status.pending_migrations else ' with newer functions'}.",
            fix="Run: holdfast migrate",
        )


async def _read_and_check_schema_status(run: _MigrationRun) -> SchemaStatus:
    status = SchemaStatus(await schema_status.read_installed_schema(run.connection, run.files), run.files)
    status.raise_if_unreleased()
    status.raise_if_newer()
    status.raise_if_changed()
    return status


async def _run_migration_step(run: _MigrationRun) -> bool:
    """Apply the next migrations that fit into one transaction. Return False if none are left."""
    async with run.connection.transaction():
        await _set_session_limits(run)
        await _take_migration_lock(run.connection)
        status = await _read_and_check_schema_status(run)
        if status.is_current:
            return False
        # Nobody uses a schema that is being created, so there everything fits.
        is_new = not status.installed.versions
        migrations = list(takewhile(lambda m: is_new or not m.concurrently, status.pending_migrations))
        later = status.pending_migrations[len(migrations) :]
        # Functions may use what any migration creates, so they follow the last one in a transaction.
        with_functions = all(m.concurrently for m in later) and (
            bool(migrations) or status.function_set_state != "current"
        )
        if migrations or with_functions:
            await _apply_migrations(run, migrations, with_functions=with_functions)
        else:
            await _build_index_concurrently(run, later[0])
    run.versions += [m.version for m in migrations] or ([] if with_functions else [later[0].version])
    run.functions_replaced = run.functions_replaced or with_functions
    return True


async def _set_session_limits(run: _MigrationRun) -> None:
    """Set the timeouts of the migration's transaction, which override those of the role and database."""
    await run.connection.execute(migration_script.build_session_limits_sql(run.settings.lock_timeout))


async def _take_migration_lock(connection: Connection) -> None:
    if not await connection.fetchval("select pg_catalog.pg_try_advisory_xact_lock($1)", MIGRATION_LOCK_ID):
        raise _MigrationBusyError


async def _apply_migrations(
    run: _MigrationRun, migrations: list[SchemaMigration], *, with_functions: bool
) -> None:
    await _set_owner_role(run)
    for migration in migrations:
        for file in migration.files_in_transaction:
            await _execute_sql_file(run, run.connection, file.path, file.sql)
        await run.connection.execute(migration_script.build_version_row_sql(migration))
    if with_functions:
        for part in migration_script.list_function_parts(run.files):
            await _execute_sql_file(run, run.connection, part.title, part.sql)


async def _set_owner_role(run: _MigrationRun) -> None:
    preflight.require_owner_rights(await preflight.read_server_info(run.connection))
    await _execute_sql_file(run, run.connection, "setup/schemas.sql", schema.read_setup_sql("schemas"))


async def _build_index_concurrently(run: _MigrationRun, migration: SchemaMigration) -> None:
    """Build an index on a second connection, while the first connection keeps the migration lock."""
    # The driver leaves the portal of a single-row query open, with its snapshot. This statement closes it.
    await run.connection.execute("select 1")
    async with open_connection(run.url, run.settings) as builder:
        index = migration.index_name
        state_of_index = await _read_index_state(builder, index) if index else None
        if state_of_index == "invalid":
            await builder.execute(f"drop index concurrently if exists holdfast.{index}")
        if state_of_index != "valid":
            await _execute_sql_file(run, builder, migration.path, migration.sql)
    await _set_owner_role(run)
    await run.connection.execute(migration_script.build_version_row_sql(migration))


async def _read_index_state(connection: Connection, index: str) -> str | None:
    async with connection.transaction():
        index_state: str | None = await connection.fetchval(_READ_INDEX_STATE, index)
    return index_state


async def _execute_sql_file(run: _MigrationRun, connection: Connection, file: str, sql: str) -> None:
    try:
        await connection.execute(sql)
    except asyncpg.PostgresError as error:
        if _is_transient_error(error):
            raise
        raise _build_located_error(error, run.url, file, sql) from error


def _build_located_error(
    error: asyncpg.PostgresError, url: Secret, file: str, sql: str
) -> errors.HoldfastError:
    translated = translate_error(error, url)
    if isinstance(translated, errors.ConflictError | errors.InvalidError):  # not caused by a caller here
        translated = errors.DatabaseError(f"The database answered {error.sqlstate}: {error}.")
    line = _find_error_line(error, sql)
    place = f"{file}, line {line}" if line else file
    translated.message = f"{place}: {translated.message} Nothing was changed."
    return translated


def _find_error_line(error: asyncpg.PostgresError, sql: str) -> int | None:
    """Return the line number of a PostgreSQL error in a SQL file, or None if it is unknown."""
    inner: str | None = getattr(error, "internal_query", None)
    if inner and inner.startswith("\n") and inner in sql:
        return inner.count("\n", 0, int(getattr(error, "internal_position", None) or 0)) or None
    position = getattr(error, "position", None)
    return sql.count("\n", 0, int(position)) + 1 if position else None


class _MigrationBusyError(Exception):
    """Another migration holds the lock."""


def _is_transient_error(error: BaseException | None) -> bool:
    """Return whether a retry can help: a lock timeout, a deadlock or a concurrent role change."""
    if isinstance(error, errors.DatabaseError):  # translated by the context manager of the second connection
        error = error.__cause__
    if not isinstance(error, asyncpg.PostgresError):
        return False
    code = error.sqlstate
    if code == "23505":
        return str(getattr(error, "table_name", "")).startswith("pg_")
    return code in {"55P03", "40P01", "40001"} or (code == "XX000" and "concurrently" in str(error))


async def _retry_transient_errors(attempt: Callable[[], Awaitable[T]]) -> T:
    until = time.monotonic() + MAX_MIGRATION_LOCK_WAIT.total_seconds()
    attempts = failures = 0
    while True:
        try:
            return await attempt()
        except _MigrationBusyError as busy:
            if time.monotonic() > until:
                raise errors.SchemaBusyError(
                    f"Another migration has held the lock for {MAX_MIGRATION_LOCK_WAIT}.",
                    fix="Find it in pg_stat_activity (application_name holdfast), or wait and try again.",
                ) from busy
            delay_s = MIGRATION_LOCK_RETRY_INTERVAL_S
        except (asyncpg.PostgresError, errors.DatabaseError) as error:
            failures += 1
            if not _is_transient_error(error):
                raise
            if failures >= MAX_TABLE_LOCK_ATTEMPTS:
                raise errors.SchemaBusyError(
                    f"A lock was not available in {MAX_TABLE_LOCK_ATTEMPTS} attempts: {error}."
                    " Nothing was changed.",
                    fix="Look for long transactions in pg_stat_activity, or raise HOLDFAST_LOCK_TIMEOUT.",
                ) from error
            delay_s = min(0.1 * 2**failures, MAX_TABLE_LOCK_RETRY_DELAY_S)
        attempts += 1
        telemetry.emit("schema.lock_waited", attempt=attempts)
        await asyncio.sleep(random.uniform(0.1, 1.0) * delay_s)  # noqa: S311
