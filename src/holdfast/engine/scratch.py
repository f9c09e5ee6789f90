"""Databases that live for one test: made from a template in a moment, with a clock that tests can move.

The template is an ordinary database after `migrate`, in which `holdfast.now()` was replaced by one that
adds an offset. Only here can the clock be moved: the function that production uses reads no table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

from holdfast.engine import install
from holdfast.engine.connection import Connection, Record, connected
from holdfast.settings import Secret, Settings

MOVABLE_CLOCK = """
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


def on_database(url: Secret, database: str) -> Secret:
    """The same server and login, another database."""
    return Secret(urlunsplit(urlsplit(url.reveal())._replace(path=f"/{database}")))


async def make_template(server: Secret, name: str, settings: Settings) -> None:
    await create(server, name, settings)
    template = on_database(server, name)
    await install.migrate(template, settings)
    async with connected(template, settings) as connection:
        await connection.execute(MOVABLE_CLOCK)


async def create(server: Secret, name: str, settings: Settings, *, template: str = "template0") -> None:
    async with connected(server, settings) as connection:
        await connection.execute(f'create database "{name}" template "{template}"')


async def drop(server: Secret, name: str, settings: Settings) -> None:
    await drop_all(server, [name], settings)


async def drop_all(server: Secret, names: Iterable[str], settings: Settings) -> None:
    """Cheaper than one by one: each waits for a checkpoint, which after the first has little to write."""
    async with connected(server, settings) as connection:
        for name in names:
            await connection.execute(f'drop database if exists "{name}" with (force)')


async def move_clock(connection: Connection, by: timedelta) -> None:
    await connection.execute("update holdfast_test.clock set ahead = ahead + $1", by)


async def submitted(connection: Connection) -> list[Record]:
    """Every task that was ever submitted to a test database, oldest first."""
    return await connection.fetch(
        """
        select t.id, t.job_id, t.type, t.name, t.queue, t.status, t.attempt, t.args::text, t.output::text,
          coalesce(j.owner, t.owner) as owner, coalesce(j.labels, t.labels)::text as labels, t.due_at
        from holdfast.all_tasks t left join holdfast.jobs j on j.id = t.job_id
        order by t.id
        """
    )


async def end_open_transactions(connection: Connection, spared: Collection[int]) -> int:
    """What the database does when a client is gone: its transaction is rolled back. How many there were."""
    ended = await connection.fetch(
        """
        select pg_terminate_backend(a.pid) from pg_stat_activity a
        where a.datname = current_database() and a.pid <> all ($1) and a.pid <> pg_backend_pid()
          and a.state in ('idle in transaction', 'idle in transaction (aborted)')
        """,
        list(spared),
    )
    return len(ended)


async def in_transaction(connection: Connection) -> list[int]:
    """The sessions that have a transaction open now."""
    rows = await connection.fetch(
        """
        select a.pid from pg_stat_activity a
        where a.datname = current_database() and a.xact_start is not null
        """
    )
    return [row["pid"] for row in rows]
