"""Calls of SQL functions by name with JSON arguments, as PostgREST makes them.

The function is found in the catalogue by the names of the arguments that were given; nothing of a request
becomes SQL text: names of schemas, functions, arguments and types are those that the catalogue has, and the
values are one parameter. What the caller may do is decided by the role that the transaction acts as.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import msgspec

from holdfast.engine.connection import Connection
from holdfast.model import Json

FRESH_SECONDS = 30.0
# Doors to more than they look like; the API has routes of their own for them.
CLOSED = frozenset(
    {
        "create_key", "check_key", "list_keys", "revoke_key", "issue_ticket", "redeem_ticket", "check_pass",
        "record", "watch_jobs", "glance", "watched_events", "reserve_jobs", "put_webhook", "get_delivery",
        "put_hook", "get_hook",
    }
)  # fmt: skip

_FIND = """
select p.proname::text as name, n.nspname::text as schema, p.pronargdefaults::int as defaults,
  p.proretset as many,
  p.prorettype = 'pg_catalog.void'::pg_catalog.regtype as nothing, p.provolatile = 'v' as writes,
  coalesce(p.proargnames, '{}') as names,
  coalesce(p.proargmodes::text[], pg_catalog.array_fill('i'::text, array[p.pronargs::int])) as modes,
  array(select pg_catalog.format_type(u.t, null)
    from pg_catalog.unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) with ordinality as u (t, n)
    order by u.n) as types
from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
where n.nspname = $1::text and p.proname = $2::text and p.prokind = 'f'
"""


@dataclass(frozen=True)
class Function:
    schema: str
    name: str
    arguments: tuple[tuple[str, str], ...]  # name, type
    required: frozenset[str]
    many: bool
    nothing: bool
    writes: bool

    def fits(self, given: frozenset[str]) -> bool:
        return self.required <= given <= {name for name, _ in self.arguments}


class CallError(Exception):
    """A call that the database refused, in its own words."""

    def __init__(
        self, code: str, message: str, *, details: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details
        self.hint = hint


class Catalogue:
    """Functions by schema and name; looked up again after a while, since others may change them."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[float, tuple[Function, ...]]] = {}

    async def find(self, connection: Connection, schema: str, name: str, given: Sequence[str]) -> Function:
        fitting = [f for f in await self._named(connection, schema, name) if f.fits(frozenset(given))]
        if not fitting:
            wanted = f"{schema}.{name}({', '.join(sorted(given))})"
            raise CallError(
                "PGRST202",
                f"Could not find the function {wanted} in the schema cache",
                details=f"Searched for {wanted}; no function has that name and these parameters.",
            )
        if len(fitting) > 1:
            fewest = min(len(f.arguments) for f in fitting)
            fitting = [f for f in fitting if len(f.arguments) == fewest]
        if len(fitting) > 1:
            raise CallError("PGRST203", f"Could not choose the best candidate function for {schema}.{name}")
        return fitting[0]

    async def _named(self, connection: Connection, schema: str, name: str) -> tuple[Function, ...]:
        known = self._known.get((schema, name))
        if known is not None and time.monotonic() - known[0] < FRESH_SECONDS:
            return known[1]
        if (schema == "holdfast" and name in CLOSED) or "\0" in name or len(name) > 200:
            return ()
        found = tuple(_function(row) for row in await connection.fetch(_FIND, schema, name))
        if found:
            self._known[schema, name] = (time.monotonic(), found)
        return found


def _function(row: Any) -> Function:
    names, modes, types = list(row["names"]), list(row["modes"]), list(row["types"])
    names += [""] * (len(types) - len(names))
    taken = [
        (name, kind) for name, mode, kind in zip(names, modes, types, strict=True) if mode in ("i", "b", "v")
    ]
    return Function(
        schema=row["schema"],
        name=row["name"],
        arguments=tuple(taken),
        required=frozenset(name for name, _ in taken[: len(taken) - row["defaults"]]),
        many=row["many"],
        nothing=row["nothing"],
        writes=row["writes"],
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _statement(function: Function, given: Sequence[str], *, as_text: bool) -> str:
    types = dict(function.arguments)
    place = f"{_quoted(function.schema)}.{_quoted(function.name)}"
    passed = ", ".join(f"{_quoted(name)} => a.{_quoted(name)}" for name in given)
    source = f"{place}({passed})"
    if given and as_text:
        texts = ", ".join(
            f"($1::json ->> {_literal(name)})::{types[name]} as {_quoted(name)}" for name in given
        )
        source = f"(select {texts}) as a cross join lateral {source}"
    elif given:
        shape = ", ".join(f"{_quoted(name)} {types[name]}" for name in given)
        source = f"pg_catalog.json_to_record($1::json) as a ({shape}) cross join lateral {source}"
    else:
        source = f"(select $1::json) as a cross join lateral {source}"
    if function.many:
        return f"select coalesce(pg_catalog.json_agg(r), '[]')::text from {source} as r"  # noqa: S608
    return f"select (pg_catalog.json_agg(r) -> 0)::text from {source} as r"  # noqa: S608


def _literal(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


async def call(
    connection: Connection, function: Function, arguments: Mapping[str, Json], *, as_text: bool = False
) -> str | None:
    """What the function answers, as JSON text; None from one that answers nothing.

    `as_text`: the values are texts that the database has to read, as those of an address are.
    """
    statement = _statement(function, sorted(arguments), as_text=as_text)
    try:
        if function.nothing:
            await connection.fetchval(statement, _text(arguments))
            return None
        return str(await connection.fetchval(statement, _text(arguments)) or "null")
    except asyncpg.PostgresError as problem:
        raise CallError(
            problem.sqlstate or "XX000",
            str(problem.args[0]) if problem.args else "",
            details=getattr(problem, "detail", None),
            hint=getattr(problem, "hint", None) or None,
        ) from problem


async def read_only(connection: Connection) -> None:
    await connection.execute("set transaction read only")


def _text(arguments: Mapping[str, Json]) -> str:
    return msgspec.json.encode(arguments).decode()
