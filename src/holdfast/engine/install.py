"""Bring the schema of a database to the version of this code, and tell whether it is there.

The protocol. One advisory lock, held by a transaction, lets one process migrate a database at a time; it is
tried, not waited for, because a waiting statement holds a snapshot and would stop an index from being built
concurrently by the holder. Under the lock the state is read again, and everything that can be is done in that
one transaction: schemas, migrations, functions, grants, version rows. So a killed or cancelled run leaves
either the old or the new state, never a lock. Migrations marked `concurrently` run alone on a second
connection while the first one keeps the lock; what an aborted one left behind is removed before it is tried
again. No session state is used, so all of this works through a transaction pooler.
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
from holdfast.engine import preflight, roles, schema, state
from holdfast.engine import script as scripts
from holdfast.engine.connection import Connection, connected, translate
from holdfast.engine.schema import Migration, SchemaFiles
from holdfast.engine.state import Status
from holdfast.settings import Secret, Settings
from holdfast.version import __version__

T = TypeVar("T")

PATIENCE = timedelta(minutes=10)  # how long another migration may take before we say so and stop
ATTEMPTS = 12  # for locks that running work holds, each up to the setting lock_timeout
UNLIMITED = timedelta(days=1)  # a migration takes as long as it takes; only waiting for locks is bounded

_INDEX_STATE = """
select case when i.indisvalid and i.indisready then 'valid' else 'invalid' end
from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indexrelid
where c.relname = $1 and c.relnamespace = (select oid from pg_catalog.pg_namespace where nspname = 'holdfast')
"""

LOCK = scripts.LOCK
script = scripts.script


@dataclass(frozen=True)
class Applied:
    """What one run did; nothing, when everything was there."""

    versions: tuple[int, ...]
    functions: bool
    version: int
    missing_roles: tuple[str, ...]
    seconds: float


@dataclass
class _Run:
    url: Secret
    settings: Settings
    files: SchemaFiles
    connection: Connection
    versions: list[int] = field(default_factory=list[int])
    functions: bool = False


async def migrate(url: Secret, settings: Settings, *, files: SchemaFiles | None = None) -> Applied:
    """Apply what is pending. Any number of processes may call this at once."""
    began = time.monotonic()
    settings = replace(settings, call_timeout=UNLIMITED, statement_cache="off")
    async with connected(url, settings) as connection:
        run = _Run(url, settings, files or schema.packaged(), connection)
        async with connection.transaction():
            server = await preflight.server(connection)
            preflight.refuse_server(server)
            status = await _compare(run)
            if not status.current:
                preflight.refuse_create(server)
        missing = roles.missing(status.installed.roles)
        if not status.current or (missing and server.may_make_roles):
            missing = await _retried(lambda: roles.ensure(connection))
        while await _retried(lambda: _step(run)):
            pass
    applied = Applied(tuple(run.versions), run.functions, run.files.latest, missing, time.monotonic() - began)
    if applied.versions or applied.functions:
        telemetry.emit("schema.migrated", versions=applied.versions, seconds=applied.seconds)
    return applied


async def status(url: Secret, settings: Settings, *, files: SchemaFiles | None = None) -> Status:
    async with connected(url, settings) as connection, connection.transaction():
        preflight.refuse_version(await preflight.server(connection))
        files = files or schema.packaged()
        return Status(await state.look(connection, files), files)


async def verify(connection: Connection, *, files: SchemaFiles | None = None) -> None:
    """Whether this code may work on this schema; asked by everything that starts."""
    files = files or schema.packaged()
    async with connection.transaction():
        preflight.refuse_version(await preflight.server(connection))
        status = Status(await state.look(connection, files), files)
    if not status.installed.migrations:
        raise errors.SchemaMissingError(
            "Holdfast is not installed in this database.", fix="Run: holdfast migrate"
        )
    status.refuse_unreleased()
    breaking = [m for m in status.unknown if m.breaking]
    if breaking:
        raise errors.SchemaTooNewError(
            f"The schema has the breaking migration {breaking[0].version} ({breaking[0].name}), which this "
            f"code (Holdfast {__version__}) does not know.",
            fix=f"Upgrade the package: pip install 'holdfast>={breaking[0].applied_by}'.",
        )
    if status.pending or status.functions in {"missing", "outdated"}:
        raise errors.SchemaOutdatedError(
            f"The schema is at version {status.installed.latest} and this code needs {files.latest}"
            f"{'' if status.pending else ' with newer functions'}.",
            fix="Run: holdfast migrate",
        )


async def _compare(run: _Run) -> Status:
    status = Status(await state.look(run.connection, run.files), run.files)
    status.refuse_unreleased()
    status.refuse_newer()
    status.refuse_changed()
    return status


async def _step(run: _Run) -> bool:
    """One transaction's worth of work. False when nothing is left to do."""
    async with run.connection.transaction():
        await _prepare(run)
        await _take_lock(run.connection)
        status = await _compare(run)
        if status.current:
            return False
        now = list(takewhile(lambda m: not m.concurrently, status.pending))
        later = status.pending[len(now) :]
        # Functions may use what any migration makes, so they come with the last one that makes something.
        with_functions = all(m.concurrently for m in later) and (bool(now) or status.functions != "current")
        if now or with_functions:
            await _apply(run, now, with_functions=with_functions)
        else:
            await _apply_concurrently(run, later[0])
    run.versions += [m.version for m in now] or ([] if with_functions else [later[0].version])
    run.functions = run.functions or with_functions
    return True


async def _prepare(run: _Run) -> None:
    """Limits that the role or the database may have set do not apply; one for locks does."""
    await run.connection.execute(scripts.limits(run.settings.lock_timeout))


async def _take_lock(connection: Connection) -> None:
    if not await connection.fetchval("select pg_catalog.pg_try_advisory_xact_lock($1)", LOCK):
        raise _BusyError


async def _apply(run: _Run, migrations: list[Migration], *, with_functions: bool) -> None:
    await _become_owner(run)
    for migration in migrations:
        for file in migration.files:
            await _execute(run, run.connection, file.path, file.sql)
        await run.connection.execute(scripts.version_row(migration))
    if with_functions:
        for part in scripts.function_parts(run.files):
            await _execute(run, run.connection, part.title, part.sql)


async def _become_owner(run: _Run) -> None:
    preflight.refuse_rights(await preflight.server(run.connection))
    await _execute(run, run.connection, "setup/schemas.sql", schema.setup("schemas"))


async def _apply_concurrently(run: _Run, migration: Migration) -> None:
    """The lock stays with the first connection, which must hold no snapshot: the build would wait for it."""
    # The driver leaves the portal of a single-row query half read, snapshot and all; this closes it.
    await run.connection.execute("select 1")
    async with connected(run.url, run.settings) as builder:
        index = migration.index
        built = await _index_state(builder, index) if index else None
        if built == "invalid":
            await builder.execute(f"drop index concurrently if exists holdfast.{index}")
        if built != "valid":
            await _execute(run, builder, migration.path, migration.sql)
    await _become_owner(run)
    await run.connection.execute(scripts.version_row(migration))


async def _index_state(connection: Connection, index: str) -> str | None:
    async with connection.transaction():
        found: str | None = await connection.fetchval(_INDEX_STATE, index)
    return found


async def _execute(run: _Run, connection: Connection, file: str, sql: str) -> None:
    try:
        await connection.execute(sql)
    except asyncpg.PostgresError as problem:
        if _passing(problem):
            raise
        raise _located(problem, run.url, file, sql) from problem


def _located(problem: asyncpg.PostgresError, url: Secret, file: str, sql: str) -> errors.HoldfastError:
    ours = translate(problem, url)
    if isinstance(ours, errors.ConflictError | errors.InvalidError):  # of a caller; here nobody asked
        ours = errors.DatabaseError(f"The database answered {problem.sqlstate}: {problem}.")
    line = _line(problem, sql)
    ours.message = f"{file}{f', line {line}' if line else ''}: {ours.message} Nothing was changed."
    return ours


def _line(problem: asyncpg.PostgresError, sql: str) -> int | None:
    """Where in the file; one that depends on an extension is executed from inside a block."""
    inner: str | None = getattr(problem, "internal_query", None)
    if inner and inner.startswith("\n") and inner in sql:
        return inner.count("\n", 0, int(getattr(problem, "internal_position", None) or 0)) or None
    position = getattr(problem, "position", None)
    return sql.count("\n", 0, int(position)) + 1 if position else None


class _BusyError(Exception):
    """Another migration holds the lock."""


def _passing(problem: BaseException | None) -> bool:
    """Trouble that goes away by itself: locks, deadlocks, and two databases changing the same shared role."""
    if isinstance(problem, errors.DatabaseError):  # translated on its way out of a second connection
        problem = problem.__cause__
    if not isinstance(problem, asyncpg.PostgresError):
        return False
    code = problem.sqlstate
    if code == "23505":
        return str(getattr(problem, "table_name", "")).startswith("pg_")
    return code in {"55P03", "40P01", "40001"} or (code == "XX000" and "concurrently" in str(problem))


async def _retried(attempt: Callable[[], Awaitable[T]]) -> T:
    until = time.monotonic() + PATIENCE.total_seconds()
    tries = refused = 0
    while True:
        try:
            return await attempt()
        except _BusyError as busy:
            if time.monotonic() > until:
                raise errors.SchemaBusyError(
                    f"Another migration has held the lock for {PATIENCE}.",
                    fix="See who in pg_stat_activity (application_name holdfast), or wait and try again.",
                ) from busy
            pause = 0.3
        except (asyncpg.PostgresError, errors.DatabaseError) as problem:
            refused += 1
            if not _passing(problem):
                raise
            if refused >= ATTEMPTS:
                raise errors.SchemaBusyError(
                    f"A lock was not to be had in {ATTEMPTS} attempts: {problem}. Nothing was changed.",
                    fix="Look for long transactions in pg_stat_activity, or raise HOLDFAST_LOCK_TIMEOUT.",
                ) from problem
            pause = min(0.1 * 2**refused, 3.0)
        tries += 1
        telemetry.emit("schema.waiting", attempt=tries)
        await asyncio.sleep(random.uniform(0.1, 1.0) * pause)  # noqa: S311  (so that starters spread out)
