"""The SQL files that make up the schema, read and checked, before any database is asked.

`migrations/NNNN_name.sql` are numbered, applied once and never edited after a release. `functions/*/*.sql` are
`create or replace`, in one folder per capability, and applied whole whenever one of them changed:
`access/grants.sql` first, then `foundation/`, then the others in the order of their paths.
The first line of a file may carry directives, separated by commas:

    -- holdfast: concurrently              one statement that cannot run in a transaction
    -- holdfast: breaking                  older code must not run on a schema that has this migration
    -- holdfast: unless-extension NAME     a function file that is left out where somebody else provides it
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from importlib.resources.abc import Traversable

FIRST_FUNCTION_FILE = "access/grants.sql"  # revokes everything, so it must run before any grant

_NUMBERED = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_DIRECTIVES = re.compile(r"--\s*holdfast:\s*(.+)")
_INDEX = re.compile(
    r'create\s+(?:unique\s+)?index\s+concurrently\s+(?:if\s+not\s+exists\s+)?"?(\w+)"?\s+on\s', re.IGNORECASE
)


@dataclass(frozen=True)
class Migration:
    version: int
    name: str
    sql: str
    concurrently: bool = False
    breaking: bool = False

    @property
    def file(self) -> str:
        return f"{self.version:04}_{self.name}.sql"

    @cached_property
    def checksum(self) -> str:
        return _digest(self.sql)

    @property
    def index(self) -> str | None:
        """The index that a concurrent migration builds, to find what an aborted run left behind."""
        found = _INDEX.search(self.sql)
        return found[1] if found else None


@dataclass(frozen=True)
class FunctionFile:
    file: str
    sql: str
    unless_extension: str | None = None


@dataclass(frozen=True)
class SchemaFiles:
    migrations: tuple[Migration, ...]
    functions: tuple[FunctionFile, ...]

    @cached_property
    def checksum(self) -> str:
        """Over all function files, names included."""
        return _digest("".join(f"{function.file}\0{function.sql}\0" for function in self.functions))

    @property
    def latest(self) -> int:
        return max((migration.version for migration in self.migrations), default=0)

    @property
    def extensions(self) -> tuple[str, ...]:
        return tuple(sorted({f.unless_extension for f in self.functions if f.unless_extension}))

    def skipped(self, provided: frozenset[str]) -> tuple[str, ...]:
        """The function files that are left out where somebody else provides these extensions."""
        return tuple(sorted(f.file for f in self.functions if f.unless_extension in provided))


@cache
def packaged() -> SchemaFiles:
    """The files of this version of Holdfast."""
    return load(resources.files("holdfast.engine"))


def setup(name: str) -> str:
    """A part of the installation that is neither migration nor function: roles, schemas."""
    return (resources.files("holdfast.engine") / "setup" / f"{name}.sql").read_text(encoding="utf-8")


def load(folder: Traversable) -> SchemaFiles:
    migrations = [_migration(entry) for entry in _entries(folder / "migrations")]
    numbers = [migration.version for migration in migrations]
    if len(set(numbers)) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise ValueError(f"two migrations have the number {twice:04}")
    functions = [
        _function(capability.name, entry)
        for capability in (folder / "functions").iterdir()
        if capability.is_dir()
        for entry in _entries(capability)
    ]
    functions.sort(key=_load_order)
    return SchemaFiles(tuple(migrations), tuple(functions))


def _load_order(function: FunctionFile) -> tuple[bool, bool, str]:
    """Sort key: the grants, then the functions that policies and views need when they are created, then paths."""
    is_foundation = function.file.startswith("foundation/")
    return (function.file != FIRST_FUNCTION_FILE, not is_foundation, function.file)


def _entries(folder: Traversable) -> list[Traversable]:
    return sorted((e for e in folder.iterdir() if e.name.endswith(".sql")), key=lambda entry: entry.name)


def _migration(entry: Traversable) -> Migration:
    named = _NUMBERED.fullmatch(entry.name)
    if not named:
        raise ValueError(f"{entry.name}: a migration is called NNNN_name.sql")
    sql = entry.read_text(encoding="utf-8").replace("\r\n", "\n")
    given = _directives(entry.name, sql, {"concurrently", "breaking"})
    return Migration(
        int(named[1]), named[2], sql, concurrently="concurrently" in given, breaking="breaking" in given
    )


def _function(capability: str, entry: Traversable) -> FunctionFile:
    file = f"{capability}/{entry.name}"
    sql = entry.read_text(encoding="utf-8").replace("\r\n", "\n")
    given = _directives(file, sql, {"unless-extension"})
    return FunctionFile(file, sql, given.get("unless-extension"))


def _directives(file: str, sql: str, allowed: set[str]) -> dict[str, str]:
    """A misspelt directive must not turn into a comment, so unknown ones are refused."""
    found = _DIRECTIVES.fullmatch(sql.partition("\n")[0].strip())
    given: dict[str, str] = {}
    for directive in found[1].split(",") if found else ():
        word, _, argument = directive.strip().partition(" ")
        if word not in allowed:
            raise ValueError(f"{file}: unknown directive {word!r}; known here: {', '.join(sorted(allowed))}")
        given[word] = argument.strip()
    return given


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
