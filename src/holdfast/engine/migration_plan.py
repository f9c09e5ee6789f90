"""Rehearse pending migrations in a transaction that is rolled back, and measure their locks and time.

The rehearsal waits for a table no longer than the setting `lock_timeout`, as the migration itself does, and
holds its locks as long as the migration would. Indexes that are built concurrently cannot be rehearsed: they
are listed with the size of their table. Nothing is changed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import asyncpg

from holdfast import errors
from holdfast.engine import migration_script, preflight, schema, schema_status
from holdfast.engine.connection import Connection, open_connection
from holdfast.engine.schema import SchemaFiles, SchemaMigration
from holdfast.engine.schema_status import SchemaStatus
from holdfast.settings import Secret, Settings

# Weaker locks do not stop reads or writes of other sessions.
BLOCKING_LOCK_MODES: Final = (
    "ShareLock",
    "ShareRowExclusiveLock",
    "ExclusiveLock",
    "AccessExclusiveLock",
)
_INDEXED_TABLE = re.compile(r"\son\s+(?:only\s+)?([a-z_.]+)", re.IGNORECASE)

_READ_TABLES = """
select c.oid, n.nspname || '.' || c.relname as name, greatest(c.reltuples, 0)::bigint as rows,
       pg_catalog.pg_total_relation_size(c.oid) as bytes
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname in ('holdfast', 'pgmq') and c.relkind in ('r', 'p', 'v')
"""
# A new file means that the whole table was written again. The counters are those of this transaction.
_READ_TABLE_FILES = """
select c.oid, pg_catalog.pg_relation_filenode(c.oid) as file, coalesce(s.seq_scan, 0) as scans
from pg_catalog.pg_class c left join pg_catalog.pg_stat_xact_all_tables s on s.relid = c.oid
where c.oid = any($1::oid[])
"""
_READ_OWN_LOCKS = """
select l.relation, l.mode from pg_catalog.pg_locks l
where l.pid = pg_catalog.pg_backend_pid() and l.locktype = 'relation' and l.granted
  and l.mode = any($1::text[])
"""


@dataclass(frozen=True)
class TableLock:
    """A lock of a migration on a table that exists already."""

    table: str
    mode: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class PlannedStep:
    """One pending migration. `seconds` is None if it was not rehearsed."""

    name: str
    seconds: float | None
    locks: tuple[TableLock, ...]
    breaking: bool = False
    # Work that grows with the table while it is locked against reads or writes.
    rewritten: tuple[str, ...] = ()
    scanned: tuple[str, ...] = ()


class _RollBackError(Exception):
    """Ends the transaction of the rehearsal."""


async def plan_migration(
    url: Secret, settings: Settings, *, files: SchemaFiles | None = None
) -> list[PlannedStep]:
    """Return what a migration would do now, in its order. The list is empty if nothing is pending."""
    files = files or schema.load_packaged_schema()
    steps: list[PlannedStep] = []
    async with open_connection(url, settings) as connection:
        try:
            async with connection.transaction():
                await connection.execute(migration_script.build_session_limits_sql(settings.lock_timeout))
                if not await connection.fetchval(
                    "select pg_catalog.pg_try_advisory_xact_lock($1)", migration_script.MIGRATION_LOCK_ID
                ):
                    raise errors.SchemaBusyError(
                        "A migration is running.", fix="Try again when it has ended."
                    )
                await _rehearse(connection, files, steps)
                raise _RollBackError
        except _RollBackError:
            pass
        except asyncpg.LockNotAvailableError as error:
            raise errors.SchemaBusyError(
                f"After {len(steps)} of the pending migrations, running work holds a table.",
                fix="Try again, or look for long transactions with holdfast doctor.",
            ) from error
    return steps


async def _rehearse(connection: Connection, files: SchemaFiles, steps: list[PlannedStep]) -> None:
    status = SchemaStatus(await schema_status.read_installed_schema(connection, files), files)
    status.raise_if_newer()
    status.raise_if_changed()
    if status.is_current:
        return
    preflight.require_owner_rights(await preflight.read_server_info(connection))
    rehearsal = _Rehearsal(connection, await _read_tables(connection), steps)
    await connection.execute(schema.read_setup_sql("schemas"))
    for migration in status.pending_migrations:
        if migration.concurrently and status.installed.versions:
            rehearsal.add_concurrent_index(migration)
        else:
            await rehearsal.run(
                migration.file_name,
                [file.sql for file in migration.files_in_transaction],
                breaking=migration.breaking,
            )
    parts = [part.sql for part in migration_script.list_function_parts(files)]
    await rehearsal.run("functions", parts)


async def _read_tables(connection: Connection) -> dict[int, TableLock]:
    rows = await connection.fetch(_READ_TABLES)
    return {row["oid"]: TableLock(row["name"], "", row["rows"], row["bytes"]) for row in rows}


class _Rehearsal:
    """Runs migrations and adds what they locked, beyond the migrations before, to a list of steps."""

    def __init__(
        self, connection: Connection, tables: dict[int, TableLock], steps: list[PlannedStep]
    ) -> None:
        self._connection = connection
        self._tables = tables
        self._steps = steps
        self._known_locks: set[tuple[int, str]] = set()

    async def run(self, name: str, statements: list[str], *, breaking: bool = False) -> None:
        before = await self._read_table_files()
        started_at = time.monotonic()
        for sql in statements:
            await self._connection.execute(sql)
        seconds = time.monotonic() - started_at
        after = await self._read_table_files()
        held = await self._connection.fetch(_READ_OWN_LOCKS, list(BLOCKING_LOCK_MODES))
        new = {(row["relation"], row["mode"]) for row in held} - self._known_locks
        self._known_locks |= new
        locks = [self._describe_lock(oid, mode) for oid, mode in new if oid in self._tables]
        locked = [oid for oid in {oid for oid, _ in self._known_locks} if oid in before and oid in after]
        self._steps.append(
            PlannedStep(
                name,
                seconds,
                tuple(sorted(locks, key=lambda lock: lock.table)),
                breaking,
                rewritten=self._list_names(oid for oid in locked if after[oid][0] != before[oid][0]),
                scanned=self._list_names(oid for oid in locked if after[oid][1] > before[oid][1]),
            )
        )

    async def _read_table_files(self) -> dict[int, tuple[int | None, int]]:
        """Return the file of each table, and how often this transaction has read all of it."""
        rows = await self._connection.fetch(_READ_TABLE_FILES, list(self._tables))
        return {row["oid"]: (row["file"], row["scans"]) for row in rows}

    def _list_names(self, oids: Iterable[int]) -> tuple[str, ...]:
        return tuple(sorted(self._tables[oid].table for oid in oids))

    def add_concurrent_index(self, migration: SchemaMigration) -> None:
        """List an index that is built without blocking writes."""
        match = _INDEXED_TABLE.search(migration.sql)
        name = match[1] if match else ""
        locks = [
            TableLock(table.table, "ShareUpdateExclusiveLock", table.rows, table.bytes)
            for table in self._tables.values()
            if table.table == name
        ]
        self._steps.append(PlannedStep(migration.file_name, None, tuple(locks), migration.breaking))

    def _describe_lock(self, oid: int, mode: str) -> TableLock:
        table = self._tables[oid]
        return TableLock(table.table, mode, table.rows, table.bytes)
