from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import timedelta

import psycopg
import pytest

from holdfast import Client, task
from holdfast.engine.connection import Database
from holdfast.errors import InvalidError, NotFoundError
from holdfast.settings import Secret, Settings
from holdfast.worker import Worker


@task
def double(x: int) -> int:
    return 2 * x


@pytest.fixture
def client(url: Secret, settings: Settings) -> Generator[Client]:
    client = Client(url.reveal(), settings=settings)
    yield client
    client.blocking.close()


async def work_off(db: Database, calls: int) -> None:
    """A worker that stays until so many tasks were done elsewhere."""
    stop = asyncio.Event()
    running = asyncio.create_task(Worker(db, {"double": double}).run(stop))
    async with db.connection() as connection:
        while await connection.fetchval("select count(*) from holdfast.history") < calls:
            await asyncio.sleep(0.02)
    stop.set()
    await running


async def test_plain_code_submits_and_waits(client: Client, db: Database) -> None:
    def plain() -> tuple[int, list[int]]:
        one = client.blocking.submit(double(2))
        many = client.blocking.submit_many([double(3), double(4)])
        soon = timedelta(seconds=20)
        return one.result(within=soon), [each.result(within=soon) for each in many]

    results, _ = await asyncio.gather(asyncio.to_thread(plain), work_off(db, 3))
    assert results == (4, [6, 8])


def test_get_and_cancel(client: Client) -> None:
    job = client.blocking.submit(double(2), key="k")
    assert not client.blocking.submit(double(2), key="k").created
    assert job.get().status == "queued"
    assert job.cancel(reason="no").status == "cancelled"
    assert client.blocking.get(job.id).status == "cancelled"
    assert client.blocking.cancel(job.id).status == "cancelled"
    with pytest.raises(NotFoundError):
        client.blocking.get("00000000-0000-7000-8000-000000000000")


@pytest.mark.parametrize("commit", [True, False])
def test_on_the_caller_s_connection_in_the_caller_s_thread(client: Client, url: Secret, commit: bool) -> None:
    with psycopg.connect(url.reveal()) as connection:
        job = client.blocking.submit(double(2), on=connection)
        (connection.commit if commit else connection.rollback)()
    if commit:
        assert job.get().status == "queued"
    else:
        with pytest.raises(NotFoundError):
            job.get()


async def test_an_asynchronous_connection_needs_the_asynchronous_client(client: Client, url: Secret) -> None:
    async with await psycopg.AsyncConnection.connect(url.reveal()) as connection:
        call = double(2)
        with pytest.raises(InvalidError, match="asynchronous"):
            client.blocking.submit(call, on=connection)


async def test_inside_a_running_loop_it_says_so_instead_of_hanging(client: Client) -> None:
    call = double(2)
    with pytest.raises(RuntimeError, match="without an event loop"):
        client.blocking.submit(call)
    call.use()
