"""A job or message that is submitted on the caller's connection exists if the caller commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy
from django.db import connections, transaction
from transactions import TRANSACTION_FACTORIES, configure_django, set_url_driver

from holdfast import Client, task
from holdfast.engine.connection import Connection
from holdfast.errors import InvalidError, LeaseLostError, NotFoundError, RefusedError
from holdfast.settings import Secret, Settings


@task
def work(x: int) -> int:
    return x


Submit = Callable[[Any], Awaitable[None]]


@pytest.fixture
async def client(url: Secret, settings: Settings) -> AsyncGenerator[Client]:
    async with Client(url.reveal(), settings=settings) as client:
        yield client


async def count_tasks(conn: Connection) -> int:
    count: int = await conn.fetchval("select count(*) from holdfast.tasks")
    return count


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize(
    "open_transaction", TRANSACTION_FACTORIES, ids=lambda open_transaction: open_transaction.__name__
)
async def test_a_job_exists_if_the_caller_commits(
    client: Client, url: Secret, conn: Connection, open_transaction: Any, commit: bool
) -> None:
    async with open_transaction(url.reveal(), commit) as on:
        job = await client.submit(work(1), on=on)
        assert await count_tasks(conn) == 0
    assert await count_tasks(conn) == int(commit)
    if commit:
        assert (await job.get()).status == "queued"


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize(
    "open_transaction", TRANSACTION_FACTORIES, ids=lambda open_transaction: open_transaction.__name__
)
async def test_messages_are_sent_and_finished_if_the_caller_commits(
    client: Client, url: Secret, conn: Connection, open_transaction: Any, commit: bool
) -> None:
    for queue in ("letters", "replies"):
        await client.queues.create(queue)
    await client.queues.send_batch("letters", ["done", "archive", "delete", "later"])
    done, archive, delete, later = await client.queues.read("letters", qty=4)
    async with open_transaction(url.reveal(), commit) as on:
        await done.done(on)
        await client.queues.archive("letters", archive, on=on)
        await client.queues.delete("letters", [delete.id], on=on)
        await client.queues.set_vt("letters", later, timedelta(0), on=on)
        await client.queues.send_batch("replies", ["50% {}", {"a": ":b"}], headers=[{"h": 1}, None], on=on)
        assert await client.queues.peek("replies") == []
    left = [m.body for m in await client.queues.peek("letters")]
    assert left == (["later"] if commit else ["done", "archive", "delete", "later"])
    gone = [m.body for m in await client.queues.peek("letters", place="archive")]
    assert gone == (["done", "archive"] if commit else [])
    replies = [(m.body, m.headers) for m in await client.queues.read("replies", qty=9)]
    assert replies == ([("50% {}", {"h": 1}), ({"a": ":b"}, None)] if commit else [])
    assert [m.body for m in await client.queues.read("letters", qty=9)] == (["later"] if commit else [])


@pytest.mark.parametrize(
    "open_transaction", TRANSACTION_FACTORIES, ids=lambda open_transaction: open_transaction.__name__
)
async def test_every_kind_of_connection_raises_holdfast_errors(
    client: Client, url: Secret, open_transaction: Any
) -> None:
    await client.queues.create("letters")
    await client.queues.send("letters", 1)
    [stale] = await client.queues.read("letters", vt=timedelta(0))
    await client.queues.read("letters")
    async with open_transaction(url.reveal(), False) as on:
        with pytest.raises(LeaseLostError, match="Message 1 of queue letters was read again") as caught:
            await stale.done(on)
        assert caught.value.fix == "Stop working on the message; nothing was changed."
    async with open_transaction(url.reveal(), False) as on:
        with pytest.raises(NotFoundError, match="Message queue 'none' does not exist"):
            await client.queues.send("none", 1, on=on)


async def test_a_synchronous_connection_needs_no_await(client: Client, url: Secret) -> None:
    await client.queues.create("letters")
    await client.queues.send("letters", 1)
    [message] = await client.queues.read("letters")
    with psycopg.connect(url.reveal()) as connection:
        message.done(connection)
    assert len(await client.queues.peek("letters", place="archive")) == 1


async def test_autocommit_connections_are_refused(client: Client, url: Secret, conn: Connection) -> None:
    engine = sqlalchemy.create_engine(set_url_driver(url.reveal(), "psycopg"), isolation_level="AUTOCOMMIT")
    with psycopg.connect(url.reveal(), autocommit=True) as plain, engine.connect() as alchemy:
        for on in (conn, plain, alchemy):
            call = work(1)
            with pytest.raises(RefusedError, match="open transaction"):
                await client.submit(call, on=on)
    engine.dispose()
    assert await count_tasks(conn) == 0


@pytest.mark.parametrize("on", ["postgresql://x", 3, object()])
async def test_unknown_connection_types_are_refused_by_name(client: Client, on: object) -> None:
    call = work(1)
    with pytest.raises(InvalidError, match="on= cannot use a builtins"):
        await client.submit(call, on=on)


def submit_in_django(url: str, settings: Settings, commit: bool) -> None:
    """Django's connections belong to their thread, so all of it happens in one."""
    configure_django(url)
    connection = connections["default"]
    client = Client(url, settings=settings)
    try:
        with transaction.atomic():
            asyncio.run(client.submit(work(1), on=connection))
            if not commit:
                transaction.set_rollback(True)
        call = work(2)
        with pytest.raises(RefusedError):
            asyncio.run(client.submit(call, on=connection))
    finally:
        connection.close()


@pytest.fixture
def django_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Django refuses its connections inside a running loop; ours uses them for one short statement, inline.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@pytest.mark.usefixtures("django_allowed")
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
async def test_django_joins_its_atomic_block(
    url: Secret, settings: Settings, conn: Connection, commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_django(url.reveal())
    monkeypatch.setitem(connections.settings["default"], "NAME", urlsplit(url.reveal()).path[1:])
    await asyncio.to_thread(submit_in_django, url.reveal(), settings, commit)
    assert await count_tasks(conn) == int(commit)
