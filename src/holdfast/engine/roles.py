"""The roles that our rights are given to. They belong to the server and are shared by all its databases."""

from __future__ import annotations

from collections.abc import Collection

from holdfast import telemetry
from holdfast.engine import schema
from holdfast.engine.connection import Connection
from holdfast.engine.state import ROLES

_THERE = "select rolname::text from pg_catalog.pg_roles where rolname = any($1::text[])"


def missing(there: Collection[str]) -> tuple[str, ...]:
    return tuple(role for role in ROLES if role not in there)


async def ensure(connection: Connection) -> tuple[str, ...]:
    """Make what is missing as far as this login may, and answer with what is missing still."""
    async with connection.transaction():
        await connection.execute(schema.setup("roles"))
        found = [record["rolname"] for record in await connection.fetch(_THERE, list(ROLES))]
    skipped = missing(found)
    for role in skipped:
        telemetry.emit("schema.role_skipped", role=role, error="this login may not create roles")
    return skipped
