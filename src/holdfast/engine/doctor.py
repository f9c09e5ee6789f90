"""The checks of `holdfast doctor`. Each check is one function that returns one finding.

A check that cannot run because the role lacks rights returns a warning. No check changes anything.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

import asyncpg

from holdfast import errors
from holdfast.engine import doctor_operations, doctor_standby, preflight, roles, schema, schema_status
from holdfast.engine import doctor_queries as queries
from holdfast.engine.connection import Connection, open_connection
from holdfast.engine.schema import SchemaFiles
from holdfast.engine.schema_status import SchemaStatus
from holdfast.settings import Secret, Settings

DoctorFindingLevel = Literal["ok", "warn", "fail"]

SLOW_ROUND_TRIP = timedelta(milliseconds=50)
MAX_CLOCK_SKEW = timedelta(seconds=2)
OLD_SNAPSHOT_AGE = timedelta(minutes=15)


@dataclass(frozen=True)
class DoctorFinding:
    """The result of one doctor check. `unreachable` is true if the database could not be reached."""

    check: str
    level: DoctorFindingLevel
    text: str
    fix: str | None = None
    unreachable: bool = False  # has an exit code of its own


@dataclass(frozen=True)
class DoctorCheckContext:
    """Input of a doctor check: an open connection, and the URL and settings to open more."""

    connection: Connection
    url: Secret
    settings: Settings
    files: SchemaFiles


Check = Callable[[DoctorCheckContext], Awaitable[DoctorFinding]]


async def run_doctor_checks(
    url: Secret, settings: Settings, *, files: SchemaFiles | None = None
) -> list[DoctorFinding]:
    """Run all doctor checks and return one finding per check, in a fixed order."""
    settings = replace(settings, statement_cache="off")
    try:
        async with open_connection(url, settings) as connection:
            context = DoctorCheckContext(connection, url, settings, files or schema.load_packaged_schema())
            findings = [
                await _run_doctor_check(name, check, context) for name, check in DOCTOR_CHECKS.items()
            ]
    except errors.DatabaseError as error:
        findings = [
            DoctorFinding(
                "database",
                "fail",
                error.message,
                error.fix,
                unreachable=error.exit_code == errors.DatabaseError.exit_code,
            )
        ]
    return [*findings, check_storage_folder(settings)]


async def _run_doctor_check(name: str, check: Check, context: DoctorCheckContext) -> DoctorFinding:
    try:
        return await check(context)
    except errors.DatabasePermissionError as error:
        return DoctorFinding(name, "fail", error.message, error.fix)
    except asyncpg.PostgresError as error:
        return DoctorFinding(
            name, "warn", f"could not run: {error}", "Run the check as the owner of the schema."
        )


async def check_round_trip(context: DoctorCheckContext) -> DoctorFinding:
    """Measure the round-trip time to the database. Warn if it is slow."""
    durations_s: list[float] = []
    for _ in range(5):
        started = time.monotonic()
        await context.connection.execute("select 1")
        durations_s.append(time.monotonic() - started)
    round_trip_s = statistics.median(durations_s)
    text = f"round trip {round_trip_s * 1000:.1f} ms"
    if round_trip_s > SLOW_ROUND_TRIP.total_seconds():
        return DoctorFinding(
            "database",
            "warn",
            text,
            "Run workers closer to the database: every batch of tasks is one round trip.",
        )
    return DoctorFinding("database", "ok", text)


async def check_server_version(context: DoctorCheckContext) -> DoctorFinding:
    """Check that the server version is supported."""
    async with context.connection.transaction():
        server = await preflight.read_server_info(context.connection)
    try:
        preflight.require_writable_server(server)
    except errors.DatabaseError as error:
        return DoctorFinding("version", "fail", error.message, error.fix)
    return DoctorFinding("version", "ok", f"PostgreSQL {server.version}")


async def check_pooler(context: DoctorCheckContext) -> DoctorFinding:
    """Detect a transaction pooler and check that the settings suit it."""
    if not await _pooler_shares_server_processes(context):
        return DoctorFinding("pooler", "ok", "each connection has its own server process")
    text = "connected through a transaction pooler"
    if "on" in {context.settings.listen, context.settings.statement_cache}:
        return DoctorFinding(
            "pooler",
            "fail",
            text,
            "Set HOLDFAST_LISTEN=off and HOLDFAST_STATEMENT_CACHE=off, or connect directly.",
        )
    return DoctorFinding(
        "pooler",
        "warn",
        f"{text}: workers poll instead of listening for notifications",
        "Set HOLDFAST_STATEMENT_CACHE=off and HOLDFAST_LISTEN=off, or connect directly for faster wakeups.",
    )


async def _pooler_shares_server_processes(context: DoctorCheckContext) -> bool:
    """Return whether a pooler shares server processes between connections."""
    async with AsyncExitStack() as stack:
        others = [
            await stack.enter_async_context(open_connection(context.url, context.settings)) for _ in range(2)
        ]
        connection_by_process: dict[int, int] = {}
        for _ in range(3):
            for number, connection in enumerate((context.connection, *others)):
                async with connection.transaction():
                    process = await connection.fetchval("select pg_catalog.pg_backend_pid()")
                if connection_by_process.setdefault(process, number) != number:
                    return True
        return len(connection_by_process) > len(others) + 1


async def check_durability(context: DoctorCheckContext) -> DoctorFinding:
    """Check the PostgreSQL settings (such as fsync) without which a crash can lose data."""
    names = ("fsync", "full_page_writes", "synchronous_commit")
    values = {name: await _get_server_setting(context, name) for name in names}
    unsafe = [name for name in names[:2] if values[name] == "off"]
    if unsafe:
        return DoctorFinding(
            "durability",
            "fail",
            f"{' and '.join(unsafe)} off: a crash of the machine can corrupt the database",
            f"Set {' and '.join(f'{name} = on' for name in unsafe)} in postgresql.conf.",
        )
    if values["synchronous_commit"] == "off":
        return DoctorFinding(
            "durability",
            "warn",
            "synchronous_commit is off: a crash can lose committed transactions",
            "Set synchronous_commit = on for this database or role.",
        )
    return DoctorFinding("durability", "ok", f"fsync on, synchronous_commit {values['synchronous_commit']}")


async def check_standby(context: DoctorCheckContext) -> DoctorFinding:
    """Report whether a synchronous standby is connected, and what a failover would lose without one."""
    finding = await doctor_standby.check_standbys(context.connection)
    return DoctorFinding("standby", finding.level, finding.text, finding.fix)


async def check_clock_skew(context: DoctorCheckContext) -> DoctorFinding:
    """Compare the clock of the database server with the clock of this machine."""
    before = datetime.now(UTC)
    async with context.connection.transaction():
        database_time: datetime = await context.connection.fetchval("select pg_catalog.clock_timestamp()")
    local_time = before + (datetime.now(UTC) - before) / 2
    skew = abs(database_time - local_time)
    text = f"differs from this machine by {skew.total_seconds():.3f} s"
    if skew > MAX_CLOCK_SKEW:
        return DoctorFinding(
            "clock", "warn", text, "Run NTP on both machines; schedules use the clock of the database."
        )
    return DoctorFinding("clock", "ok", text)


async def check_schema(context: DoctorCheckContext) -> DoctorFinding:
    """Compare the version of the installed schema with the version that this code needs."""
    status = await _get_schema_status(context)
    at = f"version {status.installed.latest_version} of {status.files.latest_version}"
    name = "schema"
    if not status.installed.migrations:
        return DoctorFinding(name, "fail", "the schema is not installed", "Run: holdfast migrate")
    if status.is_unreleased:
        return DoctorFinding(
            name, "fail", schema_status.UNRELEASED_SCHEMA_MESSAGE, schema_status.UNRELEASED_SCHEMA_FIX
        )
    if any(migration.breaking for migration in status.unknown_migrations):
        return DoctorFinding(
            name, "fail", f"{at}: newer than this package, with a breaking change", "Upgrade the package."
        )
    if status.changed_migrations:
        return DoctorFinding(
            name,
            "fail",
            f"{at}: applied migrations differ from the package: {', '.join(status.changed_migrations)}",
            "Reinstall the package.",
        )
    if status.pending_migrations or status.function_set_state in {"missing", "outdated"}:
        return DoctorFinding(
            name, "fail", f"{at}, functions {status.function_set_state}", "Run: holdfast migrate"
        )
    if status.unknown_migrations or status.function_set_state == "newer":
        return DoctorFinding(
            name, "warn", f"{at}: newer than this package", "Upgrade the package when convenient."
        )
    return DoctorFinding(name, "ok", f"{at}, functions current")


async def check_roles(context: DoctorCheckContext) -> DoctorFinding:
    """Check that the roles exist and that this role can call the SQL functions."""
    async with context.connection.transaction():
        row = await context.connection.fetchrow(queries.READ_RIGHTS, list(schema_status.SCHEMA_ROLES))
    assert row is not None  # noqa: S101  (one row always)
    role, owner, missing = row["role"], row["owner"], roles.find_missing_roles(row["roles"])
    if owner and not row["may_enter"]:
        fix = f"Run as {owner}: holdfast migrate grants --role {role}"
        return DoctorFinding("roles", "fail", f"{role} may not call the functions of Holdfast", fix)
    if row["owner_is_superuser"]:
        fix = "Give the schema its own owner: dump it, drop it, migrate as another role, restore the rows."
        return DoctorFinding("roles", "warn", f"the owner of the schema is the superuser {owner}", fix)
    if missing:
        fix = "Create them as an administrator (create role NAME nologin), then run: holdfast migrate"
        return DoctorFinding("roles", "warn", f"these roles are missing: {', '.join(missing)}", fix)
    if not owner:
        return DoctorFinding("roles", "ok", "all roles exist; the schema is not installed yet")
    rights = "run workers" if row["may_work"] else "submit and read, but not run workers"
    return DoctorFinding("roles", "ok", f"{role} may {rights}; the owner of the schema is {owner}")


async def check_extensions(context: DoctorCheckContext) -> DoctorFinding:
    """Report whether Holdfast or the extension pgmq provides the message queues."""
    status = await _get_schema_status(context)
    if status.skipped_files:
        names = sorted(status.installed.provided)
        rows = await context.connection.fetch(queries.READ_EXTENSION_VERSIONS, names)
        versions = {row["extname"]: f" {row['extversion']}" for row in rows}
        by = ", ".join(name + versions.get(name, "") for name in names)
        return DoctorFinding("extensions", "ok", f"{by} provides the message queues, not Holdfast")
    return DoctorFinding("extensions", "ok", "no extension is needed: Holdfast provides the message queues")


async def check_old_snapshots(context: DoctorCheckContext) -> DoctorFinding:
    """Find old transactions and replication slots that stop vacuum from removing dead rows."""
    async with context.connection.transaction():
        rows = await context.connection.fetch(queries.LIST_OLD_SNAPSHOTS, OLD_SNAPSHOT_AGE)
    if rows:
        return DoctorFinding(
            "snapshots",
            "warn",
            "vacuum cannot remove dead rows because of " + "; ".join(row["what"] for row in rows),
            rows[0]["fix"],
        )
    return DoctorFinding(
        "snapshots", "ok", f"no snapshot is older than {int(OLD_SNAPSHOT_AGE.total_seconds() // 60)} min"
    )


async def check_autovacuum(context: DoctorCheckContext) -> DoctorFinding:
    """Check that autovacuum is on."""
    if "off" in {
        await _get_server_setting(context, "autovacuum"),
        await _get_server_setting(context, "track_counts"),
    }:
        return DoctorFinding(
            "autovacuum",
            "fail",
            "autovacuum is off: queues get slower every day",
            "Set autovacuum = on and track_counts = on.",
        )
    return DoctorFinding("autovacuum", "ok", "on")


async def check_free_connections(context: DoctorCheckContext) -> DoctorFinding:
    """Check that enough connections are free for one more process."""
    async with context.connection.transaction():
        row = await context.connection.fetchrow(queries.COUNT_FREE_CONNECTIONS)
    assert row is not None  # noqa: S101  (one row always)
    free = row["allowed"] - row["used"]
    text = f"{row['used']} of {row['allowed']} in use"
    needed = context.settings.pool_size + 1
    if free < needed:
        return DoctorFinding(
            "connections",
            "warn",
            f"{text}; one process of Holdfast opens up to {needed}",
            "Raise max_connections, lower HOLDFAST_POOL_SIZE, or put PgBouncer in front.",
        )
    return DoctorFinding("connections", "ok", text)


async def check_maintenance_problems(context: DoctorCheckContext) -> DoctorFinding:
    """Report rows that maintenance had to set aside, such as a batch whose callback cannot be submitted."""
    async with context.connection.transaction():
        if await context.connection.fetchval(queries.FIND_PROBLEM_LIST) is None:
            return DoctorFinding("maintenance", "ok", "not installed yet")
        rows = await context.connection.fetch(queries.LIST_MAINTENANCE_PROBLEMS)
    if not rows:
        return DoctorFinding("maintenance", "ok", "no row is set aside")
    text = "; ".join(f"{row['kind']} {row['subject']}: {row['message']}" for row in rows[:3])
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return DoctorFinding(
        "maintenance",
        "warn",
        f"set aside because they fail: {text}{more}",
        "Repair or delete the rows; maintenance tries them again within an hour.",
    )


def check_storage_folder(settings: Settings) -> DoctorFinding:
    """Check that the folder for local files, or its nearest existing parent, is writable."""
    folder = settings.home.absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return DoctorFinding(
            "storage",
            "fail",
            f"cannot write to {folder}: {error.strerror or error}",
            "Make the folder writable, free disk space, or choose another folder with HOLDFAST_HOME.",
        )
    return DoctorFinding("storage", "ok", f"{settings.home} is writable")


async def _get_server_setting(context: DoctorCheckContext, name: str) -> str:
    async with context.connection.transaction():
        value: str = await context.connection.fetchval("select pg_catalog.current_setting($1)", name)
    return value


async def _get_schema_status(context: DoctorCheckContext) -> SchemaStatus:
    async with context.connection.transaction():
        installed = await schema_status.read_installed_schema(context.connection, context.files)
    return SchemaStatus(installed, context.files)


def _build_operations_check(
    name: str, check: Callable[[Connection], Awaitable[doctor_operations.OperationsFinding]]
) -> Check:
    async def check_operations(context: DoctorCheckContext) -> DoctorFinding:
        async with context.connection.transaction():
            if not await doctor_operations.is_installed(context.connection):
                return DoctorFinding(name, "ok", "not installed yet")
            return DoctorFinding(name, *await check(context.connection))

    return check_operations


DOCTOR_CHECKS: dict[str, Check] = {
    "database": check_round_trip,
    "version": check_server_version,
    "pooler": check_pooler,
    "durability": check_durability,
    "standby": check_standby,
    "clock": check_clock_skew,
    "schema": check_schema,
    "roles": check_roles,
    "extensions": check_extensions,
    "snapshots": check_old_snapshots,
    "autovacuum": check_autovacuum,
    "connections": check_free_connections,
    "maintenance": check_maintenance_problems,
    "queues": _build_operations_check("queues", doctor_operations.check_unserved_queues),
    "workers": _build_operations_check("workers", doctor_operations.check_lost_workers),
    "alerts": _build_operations_check("alerts", doctor_operations.check_alerts),
}
