"""What `holdfast doctor` asks: one small function per question, each answered by one finding.

A check that cannot be asked (the role may not look) says so as a warning; none of them changes anything.
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
from holdfast.engine import preflight, roles, schema, state
from holdfast.engine.connection import Connection, connected
from holdfast.engine.schema import SchemaFiles
from holdfast.engine.state import Status
from holdfast.settings import Secret, Settings

Level = Literal["ok", "warn", "fail"]

SLOW_TRIP = timedelta(milliseconds=50)
SKEW = timedelta(seconds=2)
OLD_SNAPSHOT = timedelta(minutes=15)


@dataclass(frozen=True)
class Finding:
    check: str
    level: Level
    text: str
    fix: str | None = None
    away: bool = False  # the database could not be reached, which has an exit code of its own


@dataclass(frozen=True)
class Patient:
    """What a check may look at."""

    connection: Connection
    url: Secret
    settings: Settings
    files: SchemaFiles


Check = Callable[[Patient], Awaitable[Finding]]


async def examine(url: Secret, settings: Settings, *, files: SchemaFiles | None = None) -> list[Finding]:
    settings = replace(settings, statement_cache="off")
    try:
        async with connected(url, settings) as connection:
            patient = Patient(connection, url, settings, files or schema.packaged())
            findings = [await _asked(name, check, patient) for name, check in CHECKS.items()]
    except errors.DatabaseError as problem:
        findings = [Finding("database", "fail", problem.message, problem.fix, away=problem.exit_code == 6)]
    return [*findings, storage(settings)]


async def _asked(name: str, check: Check, patient: Patient) -> Finding:
    try:
        return await check(patient)
    except errors.DatabaseRightsError as problem:
        return Finding(name, "fail", problem.message, problem.fix)
    except asyncpg.PostgresError as problem:
        return Finding(
            name, "warn", f"could not be asked: {problem}", "Ask again as the owner of the schema."
        )


async def database(patient: Patient) -> Finding:
    trips: list[float] = []
    for _ in range(5):
        began = time.monotonic()
        await patient.connection.execute("select 1")
        trips.append(time.monotonic() - began)
    trip = statistics.median(trips)
    text = f"answers in {trip * 1000:.1f} ms"
    if trip > SLOW_TRIP.total_seconds():
        return Finding(
            "database", "warn", text, "Run workers nearer to the database: every batch is one trip."
        )
    return Finding("database", "ok", text)


async def version(patient: Patient) -> Finding:
    async with patient.connection.transaction():
        server = await preflight.server(patient.connection)
    try:
        preflight.refuse_server(server)
    except errors.DatabaseError as problem:
        return Finding("version", "fail", problem.message, problem.fix)
    return Finding("version", "ok", f"PostgreSQL {server.version}")


async def pooler(patient: Patient) -> Finding:
    if not await _shares_backends(patient):
        return Finding("pooler", "ok", "every connection keeps its own server process")
    text = "a transaction pooler is in between"
    if "on" in {patient.settings.listen, patient.settings.statement_cache}:
        return Finding(
            "pooler",
            "fail",
            text,
            "Set HOLDFAST_LISTEN=off and HOLDFAST_STATEMENT_CACHE=off, or connect directly.",
        )
    return Finding(
        "pooler",
        "warn",
        f"{text}: workers poll instead of being woken",
        "Set HOLDFAST_STATEMENT_CACHE=off and HOLDFAST_LISTEN=off, or connect directly for faster wake-up.",
    )


async def _shares_backends(patient: Patient) -> bool:
    """Two open connections with one server process, or one with two, is what only a pooler can do."""
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(connected(patient.url, patient.settings)) for _ in range(2)]
        seen: dict[int, int] = {}
        for _ in range(3):
            for number, connection in enumerate((patient.connection, *others)):
                async with connection.transaction():
                    process = await connection.fetchval("select pg_catalog.pg_backend_pid()")
                if seen.setdefault(process, number) != number:
                    return True
        return len(seen) > len(others) + 1


async def durability(patient: Patient) -> Finding:
    wanted = ("fsync", "full_page_writes", "synchronous_commit")
    found = {name: await _setting(patient, name) for name in wanted}
    bad = [name for name in wanted[:2] if found[name] == "off"]
    if bad:
        return Finding(
            "durability",
            "fail",
            f"{' and '.join(bad)} off: a crash of the machine can destroy the database",
            f"Set {' and '.join(f'{name} = on' for name in bad)} in postgresql.conf.",
        )
    if found["synchronous_commit"] == "off":
        return Finding(
            "durability",
            "warn",
            "synchronous_commit is off: a crash can lose work that was already confirmed",
            "Set synchronous_commit = on for this database or role.",
        )
    return Finding("durability", "ok", f"fsync on, synchronous_commit {found['synchronous_commit']}")


async def clock(patient: Patient) -> Finding:
    before = datetime.now(UTC)
    async with patient.connection.transaction():
        theirs: datetime = await patient.connection.fetchval("select pg_catalog.clock_timestamp()")
    ours = before + (datetime.now(UTC) - before) / 2
    skew = abs(theirs - ours)
    text = f"differs from this machine by {skew.total_seconds():.3f} s"
    if skew > SKEW:
        return Finding("clock", "warn", text, "Run NTP on both; schedules follow the database's clock.")
    return Finding("clock", "ok", text)


async def installation(patient: Patient) -> Finding:
    status = await _status(patient)
    at = f"version {status.installed.latest} of {status.files.latest}"
    name = "schema"
    if not status.installed.migrations:
        return Finding(name, "fail", "not installed", "Run: holdfast migrate")
    if status.unreleased:
        return Finding(name, "fail", state.UNRELEASED_SCHEMA, state.UNRELEASED_SCHEMA_FIX)
    if any(migration.breaking for migration in status.unknown):
        return Finding(name, "fail", f"{at}: newer, with a breaking change", "Upgrade the package.")
    if status.changed:
        return Finding(
            name, "fail", f"{at}: applied files differ: {', '.join(status.changed)}", "Reinstall the package."
        )
    if status.pending or status.functions in {"missing", "outdated"}:
        return Finding(name, "fail", f"{at}, functions {status.functions}", "Run: holdfast migrate")
    if status.unknown or status.functions == "newer":
        return Finding(name, "warn", f"{at}: newer than this code", "Upgrade the package when convenient.")
    return Finding(name, "ok", f"{at}, functions current")


async def rights(patient: Patient) -> Finding:
    async with patient.connection.transaction():
        row = await patient.connection.fetchrow(_RIGHTS, list(state.ROLES))
    assert row is not None  # noqa: S101  (one row always)
    role, owner, missing = row["role"], row["owner"], roles.missing(row["roles"])
    if owner and not row["may_enter"]:
        fix = f"Let {owner} run: holdfast migrate grants --role {role}"
        return Finding("roles", "fail", f"{role} may not call Holdfast's functions", fix)
    if row["owner_is_superuser"]:
        fix = (
            "Let it belong to a role of its own: dump it, drop it, migrate as another role, restore the rows."
        )
        return Finding("roles", "warn", f"the schema belongs to the superuser {owner}", fix)
    if missing:
        fix = "Let an administrator create them (create role NAME nologin), then run: holdfast migrate"
        return Finding("roles", "warn", f"not there: {', '.join(missing)}", fix)
    if not owner:
        return Finding("roles", "ok", "all there; nothing is installed for them yet")
    what = "work" if row["may_work"] else "submit and look, not run workers"
    return Finding("roles", "ok", f"{role} may {what}; the schema belongs to {owner}")


_VERSIONS = "select extname, extversion from pg_catalog.pg_extension where extname = any ($1::text[])"


async def extensions(patient: Patient) -> Finding:
    status = await _status(patient)
    if status.skipped:
        names = sorted(status.installed.provided)
        rows = await patient.connection.fetch(_VERSIONS, names)
        versions = {row["extname"]: f" {row['extversion']}" for row in rows}
        by = ", ".join(name + versions.get(name, "") for name in names)
        return Finding("extensions", "ok", f"message queues by {by}, not ours")
    return Finding("extensions", "ok", "none needed; message queues are ours")


async def snapshots(patient: Patient) -> Finding:
    async with patient.connection.transaction():
        rows = await patient.connection.fetch(_SNAPSHOTS, OLD_SNAPSHOT)
    if rows:
        return Finding(
            "snapshots",
            "warn",
            "dead rows cannot be removed because of " + "; ".join(row["what"] for row in rows),
            rows[0]["fix"],
        )
    return Finding(
        "snapshots", "ok", f"nothing seen that is older than {int(OLD_SNAPSHOT.total_seconds() // 60)} min"
    )


async def autovacuum(patient: Patient) -> Finding:
    if "off" in {await _setting(patient, "autovacuum"), await _setting(patient, "track_counts")}:
        return Finding(
            "autovacuum",
            "fail",
            "off: queues grow slower every day",
            "Set autovacuum = on and track_counts = on.",
        )
    return Finding("autovacuum", "ok", "on")


async def connections(patient: Patient) -> Finding:
    async with patient.connection.transaction():
        row = await patient.connection.fetchrow(_CONNECTIONS)
    assert row is not None  # noqa: S101  (one row always)
    free = row["allowed"] - row["used"]
    text = f"{row['used']} of {row['allowed']} in use"
    needed = patient.settings.pool_size + 1
    if free < needed:
        return Finding(
            "connections",
            "warn",
            f"{text}; one process of ours opens up to {needed}",
            "Raise max_connections, lower HOLDFAST_POOL_SIZE, or put PgBouncer in front.",
        )
    return Finding("connections", "ok", text)


def storage(settings: Settings) -> Finding:
    """The folder for local files; made on first use, so its nearest existing parent must let us."""
    place = settings.home.absolute()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as problem:
        return Finding(
            "storage",
            "fail",
            f"cannot write to {place}: {problem.strerror or problem}",
            "Give this user the folder, free space there, or choose another with HOLDFAST_HOME.",
        )
    return Finding("storage", "ok", f"{settings.home} can be written to")


async def _setting(patient: Patient, name: str) -> str:
    async with patient.connection.transaction():
        found: str = await patient.connection.fetchval("select pg_catalog.current_setting($1)", name)
    return found


async def _status(patient: Patient) -> Status:
    async with patient.connection.transaction():
        return Status(await state.look(patient.connection, patient.files), patient.files)


_RIGHTS = """
select
  current_user::text as role,
  o.rolname::text as owner,
  coalesce(o.rolsuper, false) as owner_is_superuser,
  coalesce(pg_catalog.has_schema_privilege(n.oid, 'usage'), false) as may_enter,
  coalesce(pg_catalog.pg_has_role(o.oid, 'usage'), false)
    or coalesce((select pg_catalog.pg_has_role(r.oid, 'usage') from pg_catalog.pg_roles r
      where r.rolname = 'holdfast_worker'), false) as may_work,
  array(select rolname::text from pg_catalog.pg_roles where rolname = any ($1::text[])) as roles
from (select 1) one
left join pg_catalog.pg_namespace n on n.nspname = 'holdfast'
left join pg_catalog.pg_roles o on o.oid = n.nspowner
"""

_SNAPSHOTS = """
select what, fix from (
  select 1 as rank, pg_catalog.format('process %s (%s), in a transaction for %s', pid, usename,
      pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - xact_start)) as what,
    pg_catalog.format('End that transaction: select pg_terminate_backend(%s)', pid) as fix
  from pg_catalog.pg_stat_activity
  where backend_xmin is not null and xact_start < pg_catalog.clock_timestamp() - $1::interval
    and backend_type = 'client backend'
  union all
  select 2, pg_catalog.format('the prepared transaction %s', gid),
    pg_catalog.format('Finish it: rollback prepared %L', gid)
  from pg_catalog.pg_prepared_xacts where prepared < pg_catalog.clock_timestamp() - $1::interval
  union all
  select 3, pg_catalog.format('the unused replication slot %s', slot_name),
    pg_catalog.format('If nobody needs it: select pg_drop_replication_slot(%L)', slot_name)
  from pg_catalog.pg_replication_slots where not active
) found order by rank limit 5
"""

_CONNECTIONS = """
select
  pg_catalog.current_setting('max_connections')::integer
    - pg_catalog.current_setting('superuser_reserved_connections')::integer
    - coalesce(pg_catalog.current_setting('reserved_connections', true)::integer, 0) as allowed,
  (select pg_catalog.sum(numbackends)::integer from pg_catalog.pg_stat_database) as used
"""

CHECKS: dict[str, Check] = {
    "database": database,
    "version": version,
    "pooler": pooler,
    "durability": durability,
    "clock": clock,
    "schema": installation,
    "roles": rights,
    "extensions": extensions,
    "snapshots": snapshots,
    "autovacuum": autovacuum,
    "connections": connections,
}
