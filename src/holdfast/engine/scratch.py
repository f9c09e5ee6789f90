"""Create databases for single tests from a template, with a clock that tests can move.

The template is an ordinary migrated database in which `holdfast.now()` adds an offset. Only here can the
clock be moved: the function that production uses reads no table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

from holdfast.engine import install
from holdfast.engine.connection import Connection, Record, open_connection
from holdfast.settings import Secret, Settings

MOVABLE_CLOCK_SQL = """
create schema holdfast_test;
create table holdfast_test.clock (ahead interval not null);
insert into holdfast_test.clock values ('0');
grant usage on schema holdfast_test to public;
grant select on holdfast_test.clock to public;
create or replace function holdfast.now() returns timestamptz
language sql stable set search_path = '' as $$
  select pg_catalog.clock_timestamp() + (select ahead from holdfast_test.clock)
$$;
"""


def build_database_url(url: Secret, database: str) -> Secret:
    """Return the URL of another database on the same server, with the same login."""
    return Secret(urlunsplit(urlsplit(url.reveal())._replace(path=f"/{database}")))


async def create_template_database(server: Secret, name: str, settings: Settings) -> None:
    """Create a migrated database whose clock can be moved, as the template of test databases."""
    await create_test_database(server, name, settings)
    template = build_database_url(server, name)
    await install.migrate_database(template, settings)
    async with open_connection(template, settings) as connection:
        await connection.execute(MOVABLE_CLOCK_SQL)


async def create_test_database(
    server: Secret, name: str, settings: Settings, *, template: str = "template0"
) -> None:
    """Create the database of one test as a copy of a template database."""
    async with open_connection(server, settings) as connection:
        # Copying files takes half the time of logging their pages, but waits for two checkpoints, which is
        # slow on a server that waits for its disk.
        strategy = "file_copy" if await connection.fetchval("show fsync") == "off" else "wal_log"
        await connection.execute(f'create database "{name}" template "{template}" strategy {strategy}')


async def drop_test_database(server: Secret, name: str, settings: Settings) -> None:
    """Drop the database of one test, even if it has connections."""
    await drop_test_databases(server, [name], settings)


async def drop_test_databases(server: Secret, names: Iterable[str], settings: Settings) -> None:
    """Drop several databases at once, which is faster because they share one checkpoint."""
    async with open_connection(server, settings) as connection:
        for name in names:
            await connection.execute(f'drop database if exists "{name}" with (force)')


async def advance_database_clock(connection: Connection, by: timedelta) -> None:
    """Move the clock `holdfast.now()` of a test database forward."""
    await connection.execute("update holdfast_test.clock set ahead = ahead + $1", by)


async def list_submitted_tasks(connection: Connection) -> list[Record]:
    """Return every task that was submitted to a test database, oldest first."""
    return await connection.fetch(
        """
        select t.id, t.job_id, t.type, t.name, t.queue, t.status, t.attempt, t.args::text, t.output::text,
          coalesce(j.owner, t.owner) as owner, coalesce(j.labels, t.labels)::text as labels, t.due_at
        from holdfast.all_tasks t left join holdfast.jobs j on j.id = t.job_id
        order by t.id
        """
    )


async def list_queues_of_types(connection: Connection, types: Sequence[str]) -> list[str]:
    """Return the queues that tasks of these types were submitted to."""
    query = "select distinct p.queue from holdfast.task_policies p where p.type = any ($1)"
    return [row["queue"] for row in await connection.fetch(query, types)]


async def terminate_sessions_in_transaction(connection: Connection, spared: Collection[int]) -> int:
    """Terminate sessions with an open transaction, except `spared`. Return their number."""
    terminated = await connection.fetch(
        """
        select pg_terminate_backend(a.pid) from pg_stat_activity a
        where a.datname = current_database() and a.pid <> all ($1) and a.pid <> pg_backend_pid()
          and a.state in ('idle in transaction', 'idle in transaction (aborted)')
        """,
        list(spared),
    )
    return len(terminated)


async def list_sessions_in_transaction(connection: Connection) -> list[int]:
    """Return the process ids of sessions with an open transaction."""
    rows = await connection.fetch(
        """
        select a.pid from pg_stat_activity a
        where a.datname = current_database() and a.xact_start is not null
        """
    )
    return [row["pid"] for row in rows]
