"""What is installed in a database, compared with what this code brings."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal

from holdfast import errors
from holdfast.engine.connection import Connection
from holdfast.engine.schema import Migration, SchemaFiles
from holdfast.version import __version__

ROLES = ("holdfast_owner", "holdfast_worker", "anon", "authenticated", "service_role")

UNRELEASED_SCHEMA = "An unreleased version of Holdfast created this schema, and it cannot be upgraded."
UNRELEASED_SCHEMA_FIX = (
    "Export the data you need, run: drop schema holdfast, pgmq, pgmq_public cascade, "
    "then run: holdfast migrate"
)

Functions = Literal["missing", "outdated", "current", "newer"]

# Names are looked up in the catalogue, because to_regclass() raises where a schema is closed to the asker.
_LOOK = """
select
  pg_catalog.pg_get_userbyid(n.nspowner) as owner,
  exists (select from pg_catalog.pg_class c
    where c.relnamespace = n.oid and c.relname = 'function_set') as has_tables,
  coalesce(pg_catalog.has_schema_privilege(n.oid, 'usage') and (
    select pg_catalog.bool_or(pg_catalog.has_function_privilege(p.oid, 'execute')) from pg_catalog.pg_proc p
    where p.pronamespace = n.oid and p.proname = 'installed'), false) as may_ask,
  coalesce(pg_catalog.has_schema_privilege(n.oid, 'usage') and (
    select pg_catalog.has_table_privilege(c.oid, 'select') from pg_catalog.pg_class c
    where c.relnamespace = n.oid and c.relname = 'function_set'), false) as may_read,
  array(select rolname::text from pg_catalog.pg_roles where rolname = any($1::text[]) order by 1) as roles
from (select 1) one left join pg_catalog.pg_namespace n on n.nspname = 'holdfast'
"""
_READ = """
select pg_catalog.jsonb_build_object(
  'migrations', (
    select pg_catalog.jsonb_agg(pg_catalog.to_jsonb(m) order by version) from holdfast.migrations m),
  'functions', (select pg_catalog.to_jsonb(f) from holdfast.function_set f))
"""
_PROVIDED = "select coalesce(array_agg(e), '{}') from unnest($1::text[]) e where holdfast.provided(e)"


@dataclass(frozen=True)
class AppliedMigration:
    version: int
    name: str
    checksum: str
    breaking: bool
    applied_at: datetime
    applied_by: str


@dataclass(frozen=True)
class AppliedFunctions:
    checksum: str
    skipped: tuple[str, ...]
    roles: tuple[str, ...]
    applied_by: str


@dataclass(frozen=True)
class Installed:
    """What a database says about itself."""

    owner: str | None
    migrations: tuple[AppliedMigration, ...]
    functions: AppliedFunctions | None
    roles: tuple[str, ...]  # those of ours that the server has
    provided: frozenset[str]  # extensions whose part somebody else plays

    @property
    def versions(self) -> frozenset[int]:
        return frozenset(migration.version for migration in self.migrations)

    @property
    def latest(self) -> int:
        return max(self.versions, default=0)


async def look(connection: Connection, files: SchemaFiles) -> Installed:
    """Works for every role that may ask: through `holdfast.installed()`, else from the tables."""
    row = await connection.fetchrow(_LOOK, list(ROLES))
    assert row is not None  # noqa: S101  (one row always)
    found: dict[str, Any] = {}
    provided: list[str] = []
    if row["may_ask"]:
        found = json.loads(await connection.fetchval("select holdfast.installed()"))
        provided = await connection.fetchval(_PROVIDED, list(files.extensions))
    elif row["may_read"]:
        found = json.loads(await connection.fetchval(_READ))
    elif row["has_tables"]:
        raise _closed(await connection.fetchval("select current_user::text"))
    return Installed(
        row["owner"],
        tuple(_applied(entry) for entry in found.get("migrations") or ()),
        _functions(found.get("functions")),
        tuple(sorted(row["roles"])),
        frozenset(provided),
    )


def _closed(role: str) -> errors.DatabaseRightsError:
    return errors.DatabaseRightsError(
        f"The schema holdfast is closed to the role {role}.",
        fix=f"Let its owner run: holdfast migrate grants --role {role}.",
    )


def _applied(entry: dict[str, Any]) -> AppliedMigration:
    # A newer schema may know more about a migration than this code does.
    known = {field.name: entry[field.name] for field in fields(AppliedMigration)}
    known["applied_at"] = datetime.fromisoformat(entry["applied_at"])
    return AppliedMigration(**known)


def _functions(entry: dict[str, Any] | None) -> AppliedFunctions | None:
    if entry is None:
        return None
    return AppliedFunctions(
        entry["checksum"], tuple(sorted(entry["skipped"])), tuple(sorted(entry["roles"])), entry["applied_by"]
    )


@dataclass(frozen=True)
class Status:
    """The comparison: what `holdfast migrate status` shows and what decides the next step."""

    installed: Installed
    files: SchemaFiles

    @property
    def pending(self) -> tuple[Migration, ...]:
        return tuple(m for m in self.files.migrations if m.version not in self.installed.versions)

    @property
    def unknown(self) -> tuple[AppliedMigration, ...]:
        """Applied by newer code than this."""
        known = {migration.version for migration in self.files.migrations}
        return tuple(m for m in self.installed.migrations if m.version not in known)

    @property
    def changed(self) -> tuple[str, ...]:
        """Files that are not what was applied under their number."""
        applied = {migration.version: migration.checksum for migration in self.installed.migrations}
        return tuple(
            m.file for m in self.files.migrations if applied.get(m.version, m.checksum) != m.checksum
        )

    @property
    def unreleased(self) -> bool:
        """Whether development migrations from before the first release created this schema.

        They used the same numbers as the released migrations, under other names.
        """
        names = {migration.version: migration.name for migration in self.files.migrations}
        return any(names.get(m.version, m.name) != m.name for m in self.installed.migrations)

    @property
    def skipped(self) -> tuple[str, ...]:
        return self.files.skipped(self.installed.provided)

    @property
    def functions(self) -> Functions:
        there = self.installed.functions
        if there is None:
            return "missing"
        if there.checksum != self.files.checksum:
            return "newer" if release(there.applied_by) > release(__version__) else "outdated"
        same = (there.skipped, there.roles) == (self.skipped, self.installed.roles)
        return "current" if same else "outdated"

    @property
    def current(self) -> bool:
        return not self.pending and not self.changed and self.functions in {"current", "newer"}

    def refuse_unreleased(self) -> None:
        if self.unreleased:
            raise errors.SchemaChangedError(UNRELEASED_SCHEMA, fix=UNRELEASED_SCHEMA_FIX)

    def refuse_newer(self) -> None:
        """Older code never touches a newer schema, nor a set of functions that newer code installed."""
        newest = max((m.applied_by for m in self.unknown), key=release, default=None)
        if newest is None and self.functions == "newer" and self.installed.functions:
            newest = self.installed.functions.applied_by
        if newest is not None:
            raise errors.SchemaTooNewError(
                f"The schema is newer than this code: it is at version {self.installed.latest}, installed by "
                f"Holdfast {newest}; this is Holdfast {__version__} with version {self.files.latest}. "
                "Nothing was changed.",
                fix=f"Upgrade the package: pip install 'holdfast>={newest}'.",
            )

    def refuse_changed(self) -> None:
        if self.changed:
            raise errors.SchemaChangedError(
                f"Released migrations differ from what was applied: {', '.join(self.changed)}. "
                "Nothing was changed.",
                fix="Put the released files back (reinstall the package); put what is new into a new one.",
            )


_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:(a|b|rc)(\d+))?(?:\.post(\d+))?(?:\.dev(\d+))?")


def release(version: str) -> tuple[tuple[int, ...], str, int, int, float]:
    """A sort key for our own version numbers; `1.0.dev0 < 1.0a1 < 1.0rc1 < 1.0 < 1.0.post1`."""
    found = _VERSION.match(version)
    if not found:
        return ((), "", 0, 0, 0.0)
    numbers, stage, stage_number, post, dev = found.groups()
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
