"""Find what a database knows of an owner: rows of any table of any schema whose text contains the id."""

from __future__ import annotations

from holdfast.engine.connection import Connection

LIST_TABLES = """
select format('%I.%I', n.nspname, c.relname) as name
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
order by 1"""


async def count_owner_traces(connection: Connection, owner: str) -> dict[str, int]:
    """Return the tables that have rows with the id of the owner in any column, and their number."""
    traces: dict[str, int] = {}
    for row in await connection.fetch(LIST_TABLES):
        name = row["name"]
        count = await connection.fetchval(
            f"select count(*) from {name} as r where r::text like '%' || $1 || '%'", owner
        )
        if count:
            traces[name] = count
    return traces
