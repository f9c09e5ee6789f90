"""Used connections stay reserved; no caller waits while one is reserved, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from holdfast.engine import connection as module
from holdfast.engine.connection import Connection, Database
from holdfast.errors import DatabaseUnavailableError, HoldfastError
from holdfast.settings import Secret, Settings

READ_BACKEND_PID = "select pg_backend_pid()"
HAS_SLEEPING_BACKEND = """
select exists (select from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database())
"""


@pytest.fixture
async def small(url: Secret) -> AsyncGenerator[Database]:
    async with Database(url, Settings(pool_size=2)) as database:
        yield database


async def wait_until_backend_ended(conn: Connection, pid: int) -> None:
    async with asyncio.timeout(10):
        while await conn.fetchval("select exists (select from pg_stat_activity where pid = $1)", pid):
            await asyncio.sleep(0.02)


async def test_the_last_returned_connection_is_reused(small: Database) -> None:
    seen = set()
    for _ in range(5):
        async with small.connection() as connection:
            seen.add(await connection.fetchval(READ_BACKEND_PID))
    assert len(seen) == 1


async def test_no_caller_waits_while_a_connection_is_free(small: Database) -> None:
    """More at once than there are connections, again and again: all get their turn."""

    async def ask() -> int:
        async with small.connection() as connection:
            pid: int = await connection.fetchval(READ_BACKEND_PID)
            return pid

    async with asyncio.timeout(20):
        for _ in range(20):
            seen = await asyncio.gather(*[ask() for _ in range(10)])
            assert 1 <= len(set(seen)) <= 2


async def test_a_closed_connection_is_not_handed_out(small: Database, conn: Connection) -> None:
    async with small.connection() as connection:
        pid = await connection.fetchval(READ_BACKEND_PID)
    await conn.execute("select pg_terminate_backend($1)", pid)
    await wait_until_backend_ended(conn, pid)
    for _ in range(3):
        async with small.connection() as connection:
            assert await connection.fetchval(READ_BACKEND_PID) != pid


async def test_a_connection_closed_after_its_last_response_causes_no_error(
    small: Database, conn: Connection
) -> None:
    async with small.connection() as connection:
        pid = await connection.fetchval(READ_BACKEND_PID)
        await conn.execute("select pg_terminate_backend($1)", pid)
        await wait_until_backend_ended(conn, pid)
    async with small.connection() as connection:
        assert await connection.fetchval(READ_BACKEND_PID) != pid


async def test_a_transaction_that_was_left_open_is_rolled_back(small: Database) -> None:
    async with small.connection() as connection:
        await connection.execute("begin; create table left_behind ()")
    async with small.connection() as connection:
        assert not connection.is_in_transaction()
        assert await connection.fetchval("select to_regclass('left_behind')") is None


async def test_a_connection_is_usable_after_a_cancelled_query(small: Database, conn: Connection) -> None:
    async def long() -> None:
        async with small.connection() as connection:
            await connection.execute("select pg_sleep(30)")

    for _ in range(4):  # more often than there are connections
        running = asyncio.create_task(long())
        async with asyncio.timeout(10):
            while not await conn.fetchval(HAS_SLEEPING_BACKEND):
                await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    async with asyncio.timeout(10), small.connection() as connection:
        assert await connection.fetchval("select 1") == 1


async def test_an_error_does_not_lose_a_connection(small: Database) -> None:
    for _ in range(5):
        with pytest.raises(HoldfastError):
            async with small.connection() as connection:
                await connection.execute("select 1 / 0")
    async with small.connection() as connection:
        assert await connection.fetchval("select 1") == 1


async def test_reserved_connections_return_to_the_pool_after_a_while(
    small: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESERVED_RETURN_INTERVAL_S", 0.05)
    monkeypatch.setattr(module, "POOL_IDLE_TIMEOUT_S", 0.2)
    async with small.connection() as connection:
        pid = await connection.fetchval(READ_BACKEND_PID)
    await wait_until_backend_ended(conn, pid)
    async with small.connection() as connection:
        assert await connection.fetchval(READ_BACKEND_PID) != pid


async def test_close_closes_reserved_connections_and_the_next_call_reopens(
    small: Database, conn: Connection
) -> None:
    async with small.connection() as connection:
        pid = await connection.fetchval(READ_BACKEND_PID)
    await small.close()
    await wait_until_backend_ended(conn, pid)
    async with small.connection() as connection:
        assert await connection.fetchval(READ_BACKEND_PID) != pid


async def test_a_connection_in_use_at_close_is_not_kept(small: Database) -> None:
    async with small.connection():
        closing = asyncio.create_task(small.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
    async with asyncio.timeout(10):
        await closing


async def test_an_unreachable_database_raises_each_time(settings: Settings) -> None:
    nowhere = Database(Secret("postgresql://me@127.0.0.1:1/x"), settings)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError):
            async with nowhere.connection():
                pass
