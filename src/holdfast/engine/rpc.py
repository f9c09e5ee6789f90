"""Call SQL functions by name with JSON arguments, as PostgREST does.

The function is looked up in the catalog by the names of its arguments. No part of a request becomes SQL
text: the names of schemas, functions, arguments and types come from the catalog, and the values are one
parameter. The role of the transaction decides what the caller may do. `rpc_functions` lists which functions
can be called this way.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import encode_json
from holdfast.model import Json

FUNCTION_CACHE_TTL_S = 30.0
MAX_FUNCTION_NAME_CHARS = 200

_FIND_FUNCTIONS = """
select p.proname::text as name, n.nspname::text as schema, p.pronargdefaults::int as defaults,
  p.proretset as returns_set,
  p.prorettype = 'pg_catalog.void'::pg_catalog.regtype as returns_void, p.provolatile = 'v' as is_volatile,
  coalesce(p.proargnames, '{}') as names,
  coalesce(p.proargmodes::text[], pg_catalog.array_fill('i'::text, array[p.pronargs::int])) as modes,
  array(select pg_catalog.format_type(u.t, null)
    from pg_catalog.unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) with ordinality as u (t, n)
    order by u.n) as types
from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
where n.nspname = $1::text and p.proname = $2::text and p.prokind = 'f'
"""


@dataclass(frozen=True)
class SqlFunction:
    """The signature of a SQL function. `arguments` are pairs of name and type."""

    schema: str
    name: str
    arguments: tuple[tuple[str, str], ...]
    required: frozenset[str]
    returns_set: bool
    returns_void: bool
    is_volatile: bool

    def accepts(self, argument_names: frozenset[str]) -> bool:
        """Return whether the function can be called with exactly these arguments."""
        return self.required <= argument_names <= {name for name, _ in self.arguments}


class SqlCallError(Exception):
    """The database refused a function call. Has the error code and message of PostgreSQL or PostgREST."""

    def __init__(
        self, code: str, message: str, *, details: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details
        self.hint = hint


def build_missing_function_error(schema: str, name: str, argument_names: Sequence[str] = ()) -> SqlCallError:
    """Build the error for a function that does not exist or cannot be called by RPC."""
    signature = f"{schema}.{name}({', '.join(sorted(argument_names))})"
    return SqlCallError(
        "PGRST202",
        f"Could not find the function {signature} in the schema cache",
        details=f"Searched for {signature}; no function has that name and these parameters.",
    )


class SqlFunctionCache:
    """A cache of SQL function signatures. Entries expire, because a migration may change a function."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], tuple[float, tuple[SqlFunction, ...]]] = {}

    async def find_function(
        self, connection: Connection, schema: str, name: str, argument_names: Sequence[str]
    ) -> SqlFunction:
        """Return the overload that accepts these argument names. Raise SqlCallError if none or several do."""
        overloads = await self._list_sql_overloads(connection, schema, name)
        matches = [function for function in overloads if function.accepts(frozenset(argument_names))]
        if not matches:
            raise build_missing_function_error(schema, name, argument_names)
        if len(matches) > 1:
            fewest = min(len(function.arguments) for function in matches)
            matches = [function for function in matches if len(function.arguments) == fewest]
        if len(matches) > 1:
            raise SqlCallError(
                "PGRST203", f"Could not choose the best candidate function for {schema}.{name}"
            )
        return matches[0]

    async def _list_sql_overloads(
        self, connection: Connection, schema: str, name: str
    ) -> tuple[SqlFunction, ...]:
        entry = self._entries.get((schema, name))
        if entry is not None and time.monotonic() - entry[0] < FUNCTION_CACHE_TTL_S:
            return entry[1]
        if "\0" in name or len(name) > MAX_FUNCTION_NAME_CHARS:
            return ()
        rows = await connection.fetch(_FIND_FUNCTIONS, schema, name)
        overloads = tuple(_function_from_row(row) for row in rows)
        if overloads:
            self._entries[schema, name] = (time.monotonic(), overloads)
        return overloads


def _function_from_row(row: Any) -> SqlFunction:
    names, modes, types = list(row["names"]), list(row["modes"]), list(row["types"])
    names += [""] * (len(types) - len(names))
    arguments = [
        (name, type_name)
        for name, mode, type_name in zip(names, modes, types, strict=True)
        if mode in ("i", "b", "v")
    ]
    return SqlFunction(
        schema=row["schema"],
        name=row["name"],
        arguments=tuple(arguments),
        required=frozenset(name for name, _ in arguments[: len(arguments) - row["defaults"]]),
        returns_set=row["returns_set"],
        returns_void=row["returns_void"],
        is_volatile=row["is_volatile"],
    )


def _quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quote_literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


def _build_call_statement(function: SqlFunction, argument_names: Sequence[str], *, as_text: bool) -> str:
    types = dict(function.arguments)
    qualified_name = f"{_quote_identifier(function.schema)}.{_quote_identifier(function.name)}"
    quoted = {name: _quote_identifier(name) for name in argument_names}
    source = f"{qualified_name}({', '.join(f'{q} => a.{q}' for q in quoted.values())})"
    if argument_names and as_text:
        columns = ", ".join(
            f"($1::json ->> {_quote_literal(name)})::{types[name]} as {q}" for name, q in quoted.items()
        )
        source = f"(select {columns}) as a cross join lateral {source}"
    elif argument_names:
        columns = ", ".join(f"{q} {types[name]}" for name, q in quoted.items())
        source = f"pg_catalog.json_to_record($1::json) as a ({columns}) cross join lateral {source}"
    else:
        source = f"(select $1::json) as a cross join lateral {source}"
    if function.returns_set:
        return f"select coalesce(pg_catalog.json_agg(r), '[]')::text from {source} as r"  # noqa: S608
    return f"select (pg_catalog.json_agg(r) -> 0)::text from {source} as r"  # noqa: S608


async def call_function(
    connection: Connection, function: SqlFunction, arguments: Mapping[str, Json], *, as_text: bool = False
) -> str | None:
    """Call a function and return its result as JSON text, or None when it returns void.

    With `as_text` the values are texts that PostgreSQL parses, as those of a query string are. Raise
    SqlCallError if the database refuses the call.
    """
    statement = _build_call_statement(function, sorted(arguments), as_text=as_text)
    try:
        result = await connection.fetchval(statement, encode_json(arguments))
    except asyncpg.PostgresError as error:
        raise SqlCallError(
            error.sqlstate or "XX000",
            str(error.args[0]) if error.args else "",
            details=getattr(error, "detail", None),
            hint=getattr(error, "hint", None) or None,
        ) from error
    return None if function.returns_void else str(result or "null")


async def set_transaction_read_only(connection: Connection) -> None:
    """Make the current transaction read-only."""
    await connection.execute("set transaction read only")


async def set_role_for_audit(connection: Connection, role: str | None) -> None:
    """Leave the role of an end user, who may not write the audit log. None is the login role."""
    await connection.execute("select pg_catalog.set_config('role', $1, true)", role or "none")
