"""Build the SQL script that `holdfast migrate` executes, as one text for other migration tools.

The text depends only on the files of the package, not on a clock, a database or the order of a dictionary. So
the same version prints the same bytes everywhere, and tools that keep checksums can use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from holdfast import errors
from holdfast.engine import schema
from holdfast.engine.schema import FunctionFile, SchemaFiles, SchemaMigration
from holdfast.engine.schema_status import SCHEMA_ROLES
from holdfast.version import __version__

MIGRATION_LOCK_ID = 0x686F6C6466617374  # "holdfast"


@dataclass(frozen=True)
class MigrationScriptPart:
    """One part of the migration script: a title and SQL."""

    title: str
    sql: str


def build_session_limits_sql(lock_timeout: timedelta) -> str:
    milliseconds = max(1, int(lock_timeout.total_seconds() * 1000))
    return f"""
set local lock_timeout = {milliseconds};
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
do $limits$
begin
  if pg_catalog.current_setting('transaction_timeout', true) is not null then
    set local transaction_timeout = 0;
  end if;
end
$limits$;
"""


def build_version_row_sql(migration: SchemaMigration) -> str:
    values = (
        _quote_literal(v) for v in (migration.name, migration.checksum, migration.breaking, __version__)
    )
    return (
        "insert into holdfast.migrations (version, name, checksum, breaking, applied_by)\n"
        f"values ({migration.version}, {', '.join(values)});"
    )


def list_function_parts(files: SchemaFiles) -> list[MigrationScriptPart]:
    """Return the script parts that replace all functions, revoke PUBLIC's rights and record the checksum."""
    parts = [
        MigrationScriptPart(f"functions/{function.path}", _wrap_unless_provided(function))
        for function in files.functions
    ]
    return [
        *parts,
        MigrationScriptPart(
            "function set",
            f"call holdfast.revoke_all_rights('public');\n{_build_function_set_row_sql(files)}",
        ),
    ]


def build_migration_script(
    from_version: int = 0,
    to_version: int | None = None,
    *,
    bare: bool = False,
    files: SchemaFiles | None = None,
) -> str:
    """Return the SQL from one schema version to another. With `bare`, it has no begin and commit."""
    files = files or schema.load_packaged_schema()
    last = files.latest_version if to_version is None else to_version
    known = {0, *(migration.version for migration in files.migrations)}
    if from_version not in known or last not in known or from_version > last:
        raise errors.InvalidError(
            f"Cannot migrate from version {from_version} to {last}; "
            f"this code has versions 0 to {files.latest_version}.",
            field="to_version" if last not in known else "from_version",
        )
    return _MigrationScriptWriter(files, bare=bare).write(from_version, last)


class _MigrationScriptWriter:
    def __init__(self, files: SchemaFiles, *, bare: bool) -> None:
        self.files = files
        self.bare = bare
        self.pieces: list[str] = []
        self.open = False
        self.from_version = 0
        self.is_new = False

    def write(self, from_version: int, last: int) -> str:
        self.from_version = from_version
        self.pieces.append(f"-- Holdfast {__version__}: schema version {from_version} to {last}")
        migrations = [m for m in self.files.migrations if from_version < m.version <= last]
        # Nobody uses a schema that is being created: everything runs in one transaction.
        self.is_new = from_version == 0
        final = max((m.version for m in migrations if self.is_new or not m.concurrently), default=0)
        if not final and last == self.files.latest_version:
            self._add_functions()
        for migration in migrations:
            self._add_migration(migration)
            if migration.version == final and last == self.files.latest_version:
                self._add_functions()
        self._end_transaction()
        return "\n\n".join(piece.strip("\n") for piece in self.pieces) + "\n"

    def _begin_transaction(self) -> None:
        if self.open:
            return
        self.open = True
        if not self.bare:
            self.pieces.append("begin;")
        self._add_part("one migration at a time", _build_version_guard_sql(self.from_version))
        self._add_part("roles", schema.read_setup_sql("roles"))
        self._add_part("schemas", schema.read_setup_sql("schemas"))

    def _end_transaction(self) -> None:
        if self.open and not self.bare:
            self.pieces.append("commit;")
        self.open = False

    def _add_migration(self, migration: SchemaMigration) -> None:
        if migration.concurrently and not self.is_new:
            self._end_transaction()
            self._add_part(f"{migration.path} (cannot run in a transaction)", migration.sql)
            self._begin_transaction()
        else:
            self._begin_transaction()
            for file in migration.files_in_transaction:
                self._add_part(file.path, file.sql)
        self.pieces.append(build_version_row_sql(migration))
        self.from_version = migration.version

    def _add_functions(self) -> None:
        self._begin_transaction()
        for part in list_function_parts(self.files):
            self._add_part(part.title, part.sql)

    def _add_part(self, title: str, sql: str) -> None:
        self.pieces.append(f"-- {title}\n{sql.strip()}")


def _build_version_guard_sql(version: int) -> str:
    """Build SQL that takes the migration lock and fails unless the schema is at `version`."""
    return f"""do $holdfast_guard$
declare
  v_version integer := 0;
begin
  perform pg_catalog.pg_advisory_xact_lock({MIGRATION_LOCK_ID});
  if pg_catalog.to_regclass('holdfast.migrations') is not null then
    execute 'select coalesce(pg_catalog.max(version), 0) from holdfast.migrations' into v_version;
  end if;
  if v_version <> {version} then
    raise exception 'the schema is at version %, and this script starts from version {version}', v_version;
  end if;
end
$holdfast_guard$;"""  # noqa: S608  (two numbers of ours)


def _wrap_unless_provided(function: FunctionFile) -> str:
    if function.unless_extension is None:
        return function.sql
    tag = "$holdfast_file$"
    return (
        "do $holdfast_unless$\nbegin\n"
        f"  if not holdfast.is_provided_by_extension({_quote_literal(function.unless_extension)}) then\n"
        f"execute {tag}\n{function.sql.strip()}\n{tag};\n  end if;\nend\n$holdfast_unless$;"
    )


def _build_function_set_row_sql(files: SchemaFiles) -> str:
    skippable = [(f.path, f.unless_extension) for f in files.functions if f.unless_extension]
    pairs = (
        ", ".join(f"({_quote_literal(file)}, {_quote_literal(name)})" for file, name in skippable)
        or "(null, null)"
    )
    roles = ", ".join(_quote_literal(role) for role in SCHEMA_ROLES)
    return f"""insert into holdfast.function_set (checksum, skipped, roles, applied_by)
values (
  {_quote_literal(files.checksum)},
  array(select f.file from (values {pairs}) f (file, extension)
    where f.file is not null and holdfast.is_provided_by_extension(f.extension) order by f.file),
  array(select rolname::text from pg_catalog.pg_roles where rolname = any (array[{roles}]) order by 1),
  {_quote_literal(__version__)})
on conflict (single) do update set checksum = excluded.checksum, skipped = excluded.skipped,
  roles = excluded.roles, applied_at = excluded.applied_at, applied_by = excluded.applied_by;"""  # noqa: S608  (literals)


def _quote_literal(value: str | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "'" + value.replace("'", "''") + "'"
