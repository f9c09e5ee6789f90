"""Through PgBouncer in transaction mode, where nothing may rest on a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
import recorder_app as app
from pooler import pooler
from worker_processes import WorkerProcesses

from holdfast import Client
from holdfast.engine.connection import Database, open_connection
from holdfast.errors import DatabaseUnavailableError
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

SOON = timedelta(seconds=60)


@pytest.fixture
async def pooled(url: Secret, settings: Settings) -> AsyncGenerator[Secret]:
    async def answers() -> bool:
        try:
            async with open_connection(through, settings):
                return True
        except DatabaseUnavailableError:
            return False

    with pooler(url, "transaction", size=3) as through:
        await wait_until(answers, what="the pooler answers")
        yield through


async def test_tasks_run_without_listen_and_prepared_statements(
    workers: WorkerProcesses, pooled: Secret, settings: Settings
) -> None:
    workers.url = pooled
    await workers.start()
    await workers.start()
    async with Client(pooled.reveal(), settings=settings) as client:
        handles = await client.submit_many([app.record_number(n) for n in range(100)])
        results = await asyncio.gather(*(handle.result(within=SOON) for handle in handles))
    assert results == list(range(100))
    assert sorted(int(line[2]) for line in workers.read_record_lines()) == list(range(100))


async def test_a_lease_is_kept_through_the_pooler(
    workers: WorkerProcesses, pooled: Secret, settings: Settings
) -> None:
    workers.url = pooled
    await workers.start()
    async with Client(pooled.reveal(), settings=settings) as client:
        job = await client.submit(app.block_event_loop(4.0))
        await wait_until(lambda: workers.has_recorded("began", "block_event_loop", 1))
        await workers.start()
        assert await job.result(within=SOON) == "attempt 1"


async def test_prepared_statements_are_not_used_through_a_pooler(
    url: Secret, pooled: Secret, settings: Settings
) -> None:
    async def prepared(address: Secret) -> int:
        async with Database(address, settings) as database, database.connection() as connection:
            await connection.fetchval("select $1::int", 1)
            async with connection.transaction():
                await connection.fetchval("select $1::int", 1)
                count: int = await connection.fetchval("select count(*) from pg_prepared_statements")
                return count

    assert await prepared(pooled) == 0
    assert await prepared(url) > 0
