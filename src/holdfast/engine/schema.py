"""Load the SQL files that make up the schema and check their names and directives.

Migrations are numbered, applied once and never edited after a release. A migration is one file,
`migrations/NNNN_name.sql`, or one folder, `migrations/NNNN_name/`, whose `*.sql` files are applied in the
order of their names as one migration with one version and one checksum.

Function files, `functions/<capability>/*.sql`, hold `create or replace` statements. When one of them changes,
all of them are applied again: `access/grants.sql` first, then `foundation/`, then the others in path order.

The first line of a file may carry directives, separated by commas. A folder takes the directives of its first
file.

    -- holdfast: concurrently              one index that is built outside of the transaction, beside running
                                           work (not in a folder); a new schema gets it in the transaction
    -- holdfast: breaking                  older code must not run on a schema that has this migration
    -- holdfast: unless-extension NAME     skip this function file if NAME is provided by somebody else
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from importlib.resources.abc import Traversable

FIRST_FUNCTION_FILE = "access/grants.sql"  # revokes everything, so it must run before any grant

_MIGRATION_NAME_PATTERN = re.compile(r"(\d{4})_([a-z0-9_]+)(\.sql)?")
_DIRECTIVES_PATTERN = re.compile(r"--\s*holdfast:\s*(.+)")
_CONCURRENT_INDEX_PATTERN = re.compile(
    r'create\s+(?:unique\s+)?index\s+concurrently\s+(?:if\s+not\s+exists\s+)?"?(\w+)"?\s+on\s', re.IGNORECASE
)
# Texts of migrations before their release, by version: builds between releases have applied them. Later
# migrations complete what they lack.
UNRELEASED_CHECKSUMS = {
    4: "c741ab577abbaa76f67c6bb19fb590560a8d9e1f69ec2038262d7c5dc3c61ab6",  # with the index of 0009
}
_CONCURRENTLY_PATTERN = re.compile(r"(?<=\sindex\s)concurrently\s+", re.IGNORECASE)


@dataclass(frozen=True)
class SqlFile:
    """The text of a SQL file and its path below the `engine` folder, for error messages."""

    path: str
    sql: str


@dataclass(frozen=True)
class SchemaMigration:
    """A numbered migration of the tables, from one SQL file or from a folder of SQL files."""

    version: int
    name: str
    sql: str
    concurrently: bool = False
    breaking: bool = False
    folder_files: tuple[SqlFile, ...] = ()  # of a migration that is a folder; `sql` is their names and text

    @property
    def files(self) -> tuple[SqlFile, ...]:
        """The SQL files to execute, in order."""
        return self.folder_files or (SqlFile(self.path, self.sql),)

    @property
    def file_name(self) -> str:
        """The name of the file or folder."""
        return f"{self.version:04}_{self.name}{'' if self.folder_files else '.sql'}"

    @property
    def path(self) -> str:
        return f"migrations/{self.file_name}"

    @cached_property
    def checksum(self) -> str:
        return _hash_text(self.sql)

    def accepts_checksum(self, checksum: str) -> bool:
        """Return whether this migration, or its text before the release, has this checksum."""
        return checksum in {self.checksum, UNRELEASED_CHECKSUMS.get(self.version)}

    @property
    def files_in_transaction(self) -> tuple[SqlFile, ...]:
        """The SQL files to execute in a transaction. An index is built without `concurrently` there."""
        if not self.concurrently:
            return self.files
        return (SqlFile(self.path, _CONCURRENTLY_PATTERN.sub("", self.sql)),)

    @property
    def index_name(self) -> str | None:
        """The name of the index that a concurrent migration builds, or None."""
        match = _CONCURRENT_INDEX_PATTERN.search(self.sql)
        return match[1] if match else None


@dataclass(frozen=True)
class FunctionFile:
    """A SQL file that creates or replaces functions. `path` is relative to `functions/`."""

    path: str
    sql: str
    unless_extension: str | None = None


@dataclass(frozen=True)
class SchemaFiles:
    """All SQL files of one version of Holdfast: migrations by number, function files in load order."""

    migrations: tuple[SchemaMigration, ...]
    functions: tuple[FunctionFile, ...]

    @cached_property
    def checksum(self) -> str:
        """The checksum of all function files, with their names."""
        return _hash_text("".join(f"{function.path}\0{function.sql}\0" for function in self.functions))

    @property
    def latest_version(self) -> int:
        return max((migration.version for migration in self.migrations), default=0)

    @property
    def replaceable_extensions(self) -> tuple[str, ...]:
        """The extensions that can provide some of the functions instead of Holdfast."""
        return tuple(sorted({f.unless_extension for f in self.functions if f.unless_extension}))

    def list_skipped_files(self, provided: frozenset[str]) -> tuple[str, ...]:
        """List the function files that are skipped if somebody else provides these extensions."""
        return tuple(sorted(f.path for f in self.functions if f.unless_extension in provided))


@cache
def load_packaged_schema() -> SchemaFiles:
    """Return the SQL files of this version of Holdfast."""
    return load_schema_files(resources.files("holdfast.engine"))


def read_setup_sql(name: str) -> str:
    """Return the text of a SQL file in the folder `setup`: `roles` or `schemas`."""
    return (resources.files("holdfast.engine") / "setup" / f"{name}.sql").read_text(encoding="utf-8")


def load_schema_files(folder: Traversable) -> SchemaFiles:
    migrations = _load_migrations(folder / "migrations")
    functions = [
        _load_function_file(capability.name, entry)
        for capability in (folder / "functions").iterdir()
        if capability.is_dir()
        for entry in _list_sql_entries(capability)
    ]
    functions.sort(key=_build_load_sort_key)
    return SchemaFiles(tuple(migrations), tuple(functions))


def _build_load_sort_key(function: FunctionFile) -> tuple[bool, bool, str]:
    """Return the sort key of a function file: the grants first, then `foundation/`, then by path."""
    is_foundation = function.path.startswith("foundation/")
    return (function.path != FIRST_FUNCTION_FILE, not is_foundation, function.path)


def _list_sql_entries(folder: Traversable) -> list[Traversable]:
    return sorted((e for e in folder.iterdir() if e.name.endswith(".sql")), key=lambda entry: entry.name)


def _load_migrations(folder: Traversable) -> list[SchemaMigration]:
    entries = [
        e for e in folder.iterdir() if e.name.endswith(".sql") or (e.is_dir() and e.name[:1].isdigit())
    ]
    migrations = [_load_migration(entry) for entry in sorted(entries, key=lambda entry: entry.name)]
    numbers = [migration.version for migration in migrations]
    duplicate = next((number for number in numbers if numbers.count(number) > 1), None)
    if duplicate is not None:
        raise ValueError(f"two migrations have the number {duplicate:04}")
    return migrations


def _load_migration(entry: Traversable) -> SchemaMigration:
    name = _MIGRATION_NAME_PATTERN.fullmatch(entry.name)
    if not name or entry.is_dir() == bool(name[3]):
        raise ValueError(f"{entry.name}: a migration is a file NNNN_name.sql or a folder NNNN_name")
    if entry.is_dir():
        return _load_migration_folder(entry, int(name[1]), name[2])
    sql = _read_sql(entry)
    directives = _parse_directives(entry.name, sql, {"concurrently", "breaking"})
    return SchemaMigration(int(name[1]), name[2], sql, "concurrently" in directives, "breaking" in directives)


def _load_migration_folder(folder: Traversable, version: int, name: str) -> SchemaMigration:
    files = tuple(
        SqlFile(f"migrations/{folder.name}/{e.name}", _read_sql(e)) for e in _list_sql_entries(folder)
    )
    if not files:
        raise ValueError(f"{folder.name}: the folder of a migration holds no .sql file")
    breaking = False
    for number, file in enumerate(files):
        directives = _parse_directives(file.path, file.sql, set() if number else {"breaking"})
        breaking = breaking or "breaking" in directives
    sql = "\n".join(f"-- {file.path}\n{file.sql}" for file in files)
    return SchemaMigration(version, name, sql, breaking=breaking, folder_files=files)


def _read_sql(entry: Traversable) -> str:
    return entry.read_text(encoding="utf-8").replace("\r\n", "\n")


def _load_function_file(capability: str, entry: Traversable) -> FunctionFile:
    file = f"{capability}/{entry.name}"
    sql = _read_sql(entry)
    directives = _parse_directives(file, sql, {"unless-extension"})
    return FunctionFile(file, sql, directives.get("unless-extension"))


def _parse_directives(file: str, sql: str, allowed: set[str]) -> dict[str, str]:
    """Parse the directives in the first line of a SQL file. Raise ValueError for an unknown directive."""
    line = _DIRECTIVES_PATTERN.fullmatch(sql.partition("\n")[0].strip())
    directives: dict[str, str] = {}
    for directive in line[1].split(",") if line else ():
        word, _, argument = directive.strip().partition(" ")
        if word not in allowed:
            known = ", ".join(sorted(allowed)) or "none"
            raise ValueError(f"{file}: unknown directive {word!r}; known here: {known}")
        directives[word] = argument.strip()
    return directives


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
