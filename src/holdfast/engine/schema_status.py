"""Read the schema that is installed in a database and compare it with the SQL files of this code."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal

from holdfast import errors
from holdfast.engine.connection import Connection
from holdfast.engine.schema import SchemaFiles, SchemaMigration
from holdfast.version import __version__

SCHEMA_ROLES = ("holdfast_owner", "holdfast_worker", "anon", "authenticated", "service_role")

UNRELEASED_SCHEMA_MESSAGE = (
    "An unreleased version of Holdfast created this schema, and it cannot be upgraded."
)
UNRELEASED_SCHEMA_FIX = (
    "Export the data you need, run: drop schema holdfast, pgmq, pgmq_public cascade, "
    "then run: holdfast migrate"
)

FunctionSetState = Literal["missing", "outdated", "current", "newer"]

# Names are looked up in the catalog, because to_regclass() raises if the role may not use the schema.
_READ_ACCESS = """
select
  pg_catalog.pg_get_userbyid(n.nspowner) as owner,
  exists (select from pg_catalog.pg_class c
    where c.relnamespace = n.oid and c.relname = 'function_set') as has_tables,
  coalesce(pg_catalog.has_schema_privilege(n.oid, 'usage') and (
    select pg_catalog.bool_or(pg_catalog.has_function_privilege(p.oid, 'execute')) from pg_catalog.pg_proc p
    where p.pronamespace = n.oid and p.proname = 'get_installed_schema'), false) as may_call,
  coalesce(pg_catalog.has_schema_privilege(n.oid, 'usage') and (
    select pg_catalog.has_table_privilege(c.oid, 'select') from pg_catalog.pg_class c
    where c.relnamespace = n.oid and c.relname = 'function_set'), false) as may_read,
  array(select rolname::text from pg_catalog.pg_roles where rolname = any($1::text[]) order by 1) as roles
from (select 1) one left join pg_catalog.pg_namespace n on n.nspname = 'holdfast'
"""
_READ_TABLES = """
select pg_catalog.jsonb_build_object(
  'migrations', (
    select pg_catalog.jsonb_agg(pg_catalog.to_jsonb(m) order by version) from holdfast.migrations m),
  'functions', (select pg_catalog.to_jsonb(f) from holdfast.function_set f))
"""
_LIST_PROVIDED_EXTENSIONS = (
    "select coalesce(array_agg(e), '{}') from unnest($1::text[]) e where holdfast.is_provided_by_extension(e)"
)


@dataclass(frozen=True)
class AppliedMigration:
    """A migration that was applied to the database: a row of holdfast.migrations."""

    version: int
    name: str
    checksum: str
    breaking: bool
    applied_at: datetime
    applied_by: str


@dataclass(frozen=True)
class AppliedFunctionSet:
    """The installed SQL functions: their checksum, skipped files and roles."""

    checksum: str
    skipped: tuple[str, ...]
    roles: tuple[str, ...]
    applied_by: str


@dataclass(frozen=True)
class InstalledSchema:
    """The installed schema of a database: owner, migrations, functions and roles."""

    owner: str | None
    migrations: tuple[AppliedMigration, ...]
    functions: AppliedFunctionSet | None
    roles: tuple[str, ...]  # our roles that exist on the server
    provided: frozenset[str]  # extensions that somebody else provides

    @property
    def versions(self) -> frozenset[int]:
        return frozenset(migration.version for migration in self.migrations)

    @property
    def latest_version(self) -> int:
        return max(self.versions, default=0)


async def read_installed_schema(connection: Connection, files: SchemaFiles) -> InstalledSchema:
    """Read the installed schema with `holdfast.get_installed_schema()`, or from its tables."""
    row = await connection.fetchrow(_READ_ACCESS, list(SCHEMA_ROLES))
    assert row is not None  # noqa: S101  (one row always)
    content: dict[str, Any] = {}
    provided: list[str] = []
    if row["may_call"]:
        content = json.loads(await connection.fetchval("select holdfast.get_installed_schema()"))
        provided = await connection.fetchval(_LIST_PROVIDED_EXTENSIONS, list(files.replaceable_extensions))
    elif row["may_read"]:
        content = json.loads(await connection.fetchval(_READ_TABLES))
    elif row["has_tables"]:
        raise _build_no_access_error(await connection.fetchval("select current_user::text"))
    return InstalledSchema(
        row["owner"],
        tuple(_decode_migration(entry) for entry in content.get("migrations") or ()),
        _decode_function_set(content.get("functions")),
        tuple(sorted(row["roles"])),
        frozenset(provided),
    )


def _build_no_access_error(role: str) -> errors.DatabasePermissionError:
    return errors.DatabasePermissionError(
        f"Role {role} may not use the schema holdfast.",
        fix=f"Let its owner run: holdfast migrate grants --role {role}.",
    )


def _decode_migration(entry: dict[str, Any]) -> AppliedMigration:
    # A newer schema may have more columns than this code knows.
    known = {field.name: entry[field.name] for field in fields(AppliedMigration)}
    known["applied_at"] = datetime.fromisoformat(entry["applied_at"])
    return AppliedMigration(**known)


def _decode_function_set(entry: dict[str, Any] | None) -> AppliedFunctionSet | None:
    if entry is None:
        return None
    return AppliedFunctionSet(
        entry["checksum"], tuple(sorted(entry["skipped"])), tuple(sorted(entry["roles"])), entry["applied_by"]
    )


@dataclass(frozen=True)
class SchemaStatus:
    """The installed schema compared with the SQL files of this code."""

    installed: InstalledSchema
    files: SchemaFiles

    @property
    def pending_migrations(self) -> tuple[SchemaMigration, ...]:
        return tuple(m for m in self.files.migrations if m.version not in self.installed.versions)

    @property
    def unknown_migrations(self) -> tuple[AppliedMigration, ...]:
        """Applied migrations that this code does not have, because a newer version applied them."""
        known = {migration.version for migration in self.files.migrations}
        return tuple(m for m in self.installed.migrations if m.version not in known)

    @property
    def changed_migrations(self) -> tuple[str, ...]:
        """File names of migrations whose text differs from the applied text."""
        applied = {migration.version: migration.checksum for migration in self.installed.migrations}
        return tuple(
            m.file_name
            for m in self.files.migrations
            if not m.accepts_checksum(applied.get(m.version, m.checksum))
        )

    @property
    def is_unreleased(self) -> bool:
        """Whether development migrations from before the first release created this schema.

        They used the same numbers as the released migrations, under other names.
        """
        names = {migration.version: migration.name for migration in self.files.migrations}
        return any(names.get(m.version, m.name) != m.name for m in self.installed.migrations)

    @property
    def skipped_files(self) -> tuple[str, ...]:
        """The function files that are not installed, because an extension provides their functions."""
        return self.files.list_skipped_files(self.installed.provided)

    @property
    def function_set_state(self) -> FunctionSetState:
        """Whether the installed SQL functions are missing, outdated, current or newer than this code."""
        installed = self.installed.functions
        if installed is None:
            return "missing"
        if installed.checksum != self.files.checksum:
            # Whoever applied migrations that this code does not have also installed their functions. Builds
            # of one development version differ in nothing else.
            is_newer = version_sort_key(installed.applied_by) > version_sort_key(__version__)
            return "newer" if is_newer or self.unknown_migrations else "outdated"
        same = (installed.skipped, installed.roles) == (self.skipped_files, self.installed.roles)
        return "current" if same else "outdated"

    @property
    def is_current(self) -> bool:
        return (
            not self.pending_migrations
            and not self.changed_migrations
            and self.function_set_state in {"current", "newer"}
        )

    def raise_if_unreleased(self) -> None:
        if self.is_unreleased:
            raise errors.SchemaChangedError(UNRELEASED_SCHEMA_MESSAGE, fix=UNRELEASED_SCHEMA_FIX)

    def raise_if_newer(self) -> None:
        """Raise if newer code installed this schema or its functions: older code must not change them."""
        newest = max((m.applied_by for m in self.unknown_migrations), key=version_sort_key, default=None)
        if newest is None and self.function_set_state == "newer" and self.installed.functions:
            newest = self.installed.functions.applied_by
        if newest is not None:
            raise errors.SchemaTooNewError(
                f"The schema is newer than this code: it is at version {self.installed.latest_version}, "
                f"installed by Holdfast {newest}; this is Holdfast {__version__} with version "
                f"{self.files.latest_version}. Nothing was changed.",
                fix=f"Upgrade the package: pip install 'holdfast>={newest}'.",
            )

    def raise_if_changed(self) -> None:
        if self.changed_migrations:
            raise errors.SchemaChangedError(
                f"Released migrations differ from what was applied: {', '.join(self.changed_migrations)}. "
                "Nothing was changed.",
                fix="Reinstall the package to restore the files; put new changes into a new migration.",
            )


_VERSION_PATTERN = re.compile(r"v?(\d+(?:\.\d+)*)(?:(a|b|rc)(\d+))?(?:\.post(\d+))?(?:\.dev(\d+))?")


def version_sort_key(version: str) -> tuple[tuple[int, ...], str, int, int, float]:
    """Return the sort key of a version number: `1.0.dev0 < 1.0a1 < 1.0rc1 < 1.0 < 1.0.post1`."""
    match = _VERSION_PATTERN.match(version)
    if not match:
        return ((), "", 0, 0, 0.0)
    numbers, stage, stage_number, post, dev = match.groups()
    parts = tuple(int(part) for part in numbers.split("."))
    while parts and parts[-1] == 0:
        parts = parts[:-1]
    if stage is None:
        stage = "" if dev is not None and post is None else "z"
    return (
        parts,
        stage,
        int(stage_number or 0),
        int(post or 0),
        float(dev) if dev is not None else float("inf"),
    )
