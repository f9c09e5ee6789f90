"""Installing a system's tables, and queries that name them in the schema of the user's choice."""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path
from typing import Any

from holdfast.errors import InvalidError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")


def quoted(schema: str) -> str:
    if not _NAME.fullmatch(schema):
        raise InvalidError(f"{schema!r} is no name for a schema.", field="systems_schema")
    return f'"{schema}"'


def sql(text: str, schema: str) -> str:
    """A query with its tables in place: `{}.documents` becomes `"public".documents`."""
    return text.replace("{}.", f"{quoted(schema)}.")


async def install_script(connection: Any, script: Path, schema: str, mark: str) -> None:
    """Run a tables.sql: whole or not at all, and again without harm.

    `mark` is a table or view of it ("table documents"); its comment says which text was run.
    """
    text = sql(await asyncio.to_thread(script.read_text, encoding="utf-8"), schema)
    kind, _, name = mark.partition(" ")
    async with connection.transaction():
        # Two installers at once would both find a table missing.
        await connection.execute("select pg_catalog.pg_advisory_xact_lock(7263481, 1)")
        if schema != "public":
            await connection.execute(f"create schema if not exists {quoted(schema)}")
        await connection.execute(text)
        await connection.execute(f"comment on {kind} {quoted(schema)}.{name} is '{_comment(text)}'")


async def is_current(connection: Any, script: Path, schema: str, mark: str) -> bool:
    """Whether this very text was run in this schema."""
    text = sql(await asyncio.to_thread(script.read_text, encoding="utf-8"), schema)
    name = f"{quoted(schema)}.{mark.partition(' ')[2]}"
    found = await connection.fetchval(
        "select pg_catalog.obj_description(pg_catalog.to_regclass($1)::oid, 'pg_class')", name
    )
    return bool(found == _comment(text))


def _comment(text: str) -> str:
    return f"made by Holdfast, {hashlib.sha256(text.encode()).hexdigest()[:16]}"
