"""Install the tables of a system, and insert the schema name into its queries."""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path
from typing import Any

from holdfast.errors import InvalidError

INSTALL_ADVISORY_LOCK_KEYS = (7263481, 1)
_SCHEMA_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")


def quote_schema_name(schema: str) -> str:
    """Return the name of a schema as a quoted SQL identifier."""
    if not _SCHEMA_NAME_PATTERN.fullmatch(schema):
        raise InvalidError(
            f"{schema!r} is not a valid schema name.",
            fix="Use letters, digits, _ and $, at most 63 characters.",
            field="systems_schema",
        )
    return f'"{schema}"'


def qualify_tables(query: str, schema: str) -> str:
    """Insert the schema name into a query: `{}.documents` becomes `"public".documents`.

    >>> from holdfast.systems import qualify_tables
    >>> qualify_tables("select count(*) from {}.notes", "public")
    'select count(*) from "public".notes'
    """
    return query.replace("{}.", f"{quote_schema_name(schema)}.")


async def run_install_script(connection: Any, script: Path, schema: str, relation: str) -> None:
    """Run the SQL script of a system in one transaction. A second run changes nothing.

    A folder is run as one script: its SQL files in the order of their names. `relation` is a table or view of
    the script ("table documents"). Its comment records which version of the script was run.
    """
    text = await asyncio.to_thread(build_install_script, script, schema, relation)
    async with connection.transaction():
        await connection.execute(text)


def build_install_script(script: Path, schema: str, relation: str) -> str:
    """Return the SQL that `run_install_script` runs, for an SQL editor. It needs one transaction."""
    text = qualify_tables(_read_script(script), schema)
    kind, _, name = relation.partition(" ")
    lock_keys = ", ".join(str(key) for key in INSTALL_ADVISORY_LOCK_KEYS)
    statements = [
        # Without the lock, two installers at once would both see that a table is missing.
        f"select pg_catalog.pg_advisory_xact_lock({lock_keys});",
        f"create schema if not exists {quote_schema_name(schema)};" if schema != "public" else "",
        text,
        f"comment on {kind} {quote_schema_name(schema)}.{name} is '{_format_version_comment(text)}';\n",
    ]
    return "\n".join(statement for statement in statements if statement)


async def install_tables(connection: Any, script: Path, schema: str, relation: str) -> None:
    """Run the SQL script of a system, unless its current version was run in the schema.

    `{}.` in the script becomes the schema. `relation` is a table or view that the script creates, such as
    "table notes". Its comment records the version.

    >>> from pathlib import Path
    >>> from typing import Any
    >>> from holdfast.systems import install_tables
    >>> async def install_if_needed(connection: Any, schema: str = "public") -> None:
    ...     await install_tables(connection, Path(__file__).parent / "tables.sql", schema, "table notes")
    """
    if not await is_script_installed(connection, script, schema, relation):
        await run_install_script(connection, script, schema, relation)


async def is_script_installed(connection: Any, script: Path, schema: str, relation: str) -> bool:
    """Return whether the current version of the SQL script was run in the schema."""
    text = qualify_tables(await asyncio.to_thread(_read_script, script), schema)
    name = f"{quote_schema_name(schema)}.{relation.partition(' ')[2]}"
    comment = await connection.fetchval(
        "select pg_catalog.obj_description(pg_catalog.to_regclass($1)::oid, 'pg_class')", name
    )
    return bool(comment == _format_version_comment(text))


def _read_script(script: Path) -> str:
    files = sorted(script.glob("*.sql")) if script.is_dir() else [script]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def _format_version_comment(text: str) -> str:
    return f"installed by Holdfast, {hashlib.sha256(text.encode()).hexdigest()[:16]}"
