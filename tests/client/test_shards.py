"""A client with several shards: where work goes, what is found by its id, and what fans out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from shard_databases import create_shard_databases, number_shard

from holdfast import Client, Consumer, Graph, Message, Worker, consumer, schedule, shard_of, task
from holdfast.client import shard_routing
from holdfast.client.async_client import find_schedule_shard
from holdfast.engine import embedded, shards
from holdfast.engine.connection import Connection
from holdfast.engine.shards import ShardState
from holdfast.errors import InvalidError, NotFoundError, RefusedError, SettingsError
from holdfast.setting_values import parse_shards
from holdfast.settings import Secret, Settings, load_settings
from holdfast.testing import wait_until


@task(queue="sharded")
async def echo(text: str) -> str:
    return text


@pytest.fixture(scope="module")
def urls(server_url: Secret, template: str, settings: Settings) -> dict[int, str]:
    """Three shards that all tests of this module share."""
    return asyncio.run(create_shard_databases(server_url, template, settings, [1, 2, 3]))


@pytest.fixture
async def fresh_urls(server_url: Secret, template: str, settings: Settings) -> dict[int, str]:
    """Three shards whose state a test may change."""
    return await create_shard_databases(server_url, template, settings, [1, 2, 3])


@pytest.fixture
async def client(urls: dict[int, str], settings: Settings) -> AsyncGenerator[Client]:
    async with Client(shards=urls, settings=settings) as client:
        yield client


async def run_sql(url: str, statement: str, *arguments: object) -> object:
    connection = await asyncpg.connect(url)
    value: object = await connection.fetchval(statement, *arguments)
    await connection.close()
    return value


# Numbers


async def test_sql_and_python_read_the_same_number(conn: Connection) -> None:
    for number in (0, 1, 127, 128, 255):
        await shards.set_shard(conn, number)
        for _ in range(20):
            job_id: UUID = await conn.fetchval("select holdfast.new_id()")
            assert shard_of(job_id) == number
            assert await conn.fetchval("select holdfast.shard_of($1)", job_id) == number


async def test_number_cannot_change_once_there_are_jobs(
    fresh_urls: dict[int, str], settings: Settings
) -> None:
    async with Client(fresh_urls[2], settings=settings) as client:
        await client.submit(echo("first"))
    connection = await asyncpg.connect(fresh_urls[2])
    with pytest.raises(asyncpg.PostgresError, match="is shard 2 and has jobs"):
        await shards.set_shard(connection, 7)
    assert (await shards.set_shard(connection, 2, joined=4)).joined == 4
    for wrong in (-1, 256):
        with pytest.raises(asyncpg.PostgresError, match="must be 0 to 255"):
            await shards.set_shard(connection, wrong)
    await connection.close()


async def test_database_with_another_number_is_refused(urls: dict[int, str], settings: Settings) -> None:
    async with Client(shards={2: urls[3]}, settings=settings) as wrong:
        with pytest.raises(SettingsError, match="shard 2 says that it is shard 3"):
            await wrong.submit(echo("x"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("postgresql://a/app", "cannot be read"),
        ("1=mysql://a/app", "cannot be read"),
        ("1=postgresql://a/app,1=postgresql://b/app", "named twice"),
        ("1=postgresql://a/app,2=postgresql://a/app", "same address"),
        ("256=postgresql://a/app", "0 to 255"),
    ],
)
def test_wrong_setting_is_explained(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_shards(text)


def test_commas_between_hosts_do_not_end_an_address() -> None:
    parsed = parse_shards("1=postgresql://u:p@a:1,b:2/app, 2=postgresql://c/app")
    assert [url.reveal() for url in parsed.values()] == ["postgresql://u:p@a:1,b:2/app", "postgresql://c/app"]


def test_one_shard_can_be_selected() -> None:
    shards_setting = {"shards": "1=postgresql://a/x,2=postgresql://b/x"}
    settings = load_settings({**shards_setting, "shard": "2"})
    assert settings.shards is None
    assert settings.database_url is not None
    assert settings.database_url.reveal() == "postgresql://b/x"
    with pytest.raises(SettingsError, match="Shard 3 is not in the setting shards"):
        load_settings({**shards_setting, "shard": "3"})
    with pytest.raises(SettingsError, match="Shard 3 is not in the setting shards"):
        load_settings({"shard": "3"})


def test_database_is_not_guessed_among_shards() -> None:
    with pytest.raises(RefusedError, match="needs one shard"):
        embedded.locate_database(load_settings({"shards": "1=postgresql://a/x,2=postgresql://b/x"}))


# Routing


def test_new_shard_takes_its_share_and_moves_nothing_else() -> None:
    keys = [f"owner:{number}" for number in range(3000)]
    before = {key: shard_routing.choose_shard(key, [1, 2, 3]) for key in keys}
    after = {key: shard_routing.choose_shard(key, [1, 2, 3, 4]) for key in keys}
    moved = [key for key in keys if before[key] != after[key]]
    assert {after[key] for key in moved} == {4}
    assert 600 < len(moved) < 900
    assert all(count > 850 for count in Counter(before.values()).values())


def test_earlier_shards_of_a_key_are_candidates() -> None:
    start = [ShardState(number=1), ShardState(number=2)]
    joined = [*start, ShardState(number=3, joined=1)]
    drained = [ShardState(number=1, draining=True), ShardState(number=2)]
    for key in map(str, range(200)):
        old, new = shard_routing.choose_shard(key, [1, 2]), shard_routing.choose_shard(key, [1, 2, 3])
        assert shard_routing.list_candidates(key, start) == [old]
        assert shard_routing.list_candidates(key, joined) == ([new] if new == old else [new, old])
        assert shard_routing.list_candidates(key, drained) == ([2] if old == 2 else [2, 1])


async def test_submits_are_routed_by_limit_key_then_owner_then_key(client: Client) -> None:
    for number in range(8):
        name = f"n{number}"
        by_limit = [await client.submit(echo("x"), limit_key=name, owner=str(n)) for n in range(3)]
        by_owner = [await client.submit(echo("x"), owner=name, key=f"{name}-{n}") for n in range(3)]
        for handles in (by_limit, by_owner):
            assert len({shard_of(handle.id) for handle in handles}) == 1
    anywhere = [shard_of((await client.submit(echo("x"))).id) for _ in range(9)]
    assert Counter(anywhere) == {1: 3, 2: 3, 3: 3}


async def test_submit_on_a_connection_stays_in_its_transaction(client: Client, urls: dict[int, str]) -> None:
    connection = await asyncpg.connect(urls[3])
    transaction = connection.transaction()
    await transaction.start()
    handle = await client.submit(echo("x"), on=connection, owner="anyone")
    assert shard_of(handle.id) == 3
    await transaction.rollback()
    await connection.close()
    with pytest.raises(NotFoundError):
        await client.get(handle.id)


async def test_key_is_found_after_a_shard_was_added(fresh_urls: dict[int, str], settings: Settings) -> None:
    two = {number: fresh_urls[number] for number in (1, 2)}
    await number_shard(fresh_urls[3], 3, joined=1)
    async with (
        Client(shards=two, settings=settings) as before,
        Client(shards=fresh_urls, settings=settings) as after,
    ):
        first = [await before.submit(echo("x"), key=f"k{number}") for number in range(30)]
        again = [await after.submit(echo("x"), key=f"k{number}") for number in range(30)]
        assert [handle.id for handle in again] == [handle.id for handle in first]
        assert not any(handle.created for handle in again)
        unique = await before.submit(echo("x"), unique="only one")
        assert (await after.submit(echo("y"), unique="only one")).id == unique.id
        new = [await after.submit(echo("x"), key=f"new{number}") for number in range(30)]
        assert 3 in {shard_of(handle.id) for handle in new}


async def test_drained_shard_gets_no_new_work(fresh_urls: dict[int, str], settings: Settings) -> None:
    client = Client(shards=fresh_urls, settings=settings)
    old = [await client.submit(echo("x"), key=f"k{number}") for number in range(20)]
    connection = await asyncpg.connect(fresh_urls[2])
    await shards.set_shard_draining(connection, draining=True)
    await connection.close()
    async with Client(shards=fresh_urls, settings=settings) as later:
        new = [await later.submit(echo("x"), owner=str(number)) for number in range(20)]
        new += [await later.submit(echo("x")) for _ in range(6)]
        assert 2 not in {shard_of(handle.id) for handle in new}
        again = [await later.submit(echo("x"), key=f"k{number}") for number in range(20)]
        assert [handle.id for handle in again] == [handle.id for handle in old]
    await client.close()


async def test_graph_and_batch_are_on_one_shard(client: Client) -> None:
    graph = Graph("pair")
    first = graph.add(echo("one"), name="one")
    graph.add(echo("two"), name="two", after=[first])
    job = await (await client.submit(graph, owner="ann")).get()
    assert len({shard_of(task.id) for task in job.tasks} | {shard_of(job.id)}) == 1
    async with client.batches.open("letters", then=echo("done")) as batch:
        handles = await batch.submit_many(echo(str(number)) for number in range(10))
        handles += [await batch.submit(echo("x"), owner=str(number)) for number in range(5)]
    assert {shard_of(handle.id) for handle in handles} == {shard_of(batch.id)}
    assert (await batch.get()).total == 15


async def test_submit_many_keeps_the_order(client: Client) -> None:
    handles = await client.submit_many(
        [echo(str(number)).options(owner=f"o{number}") for number in range(12)] + [echo("12"), echo("13")]
    )
    jobs = [await handle.get() for handle in handles]
    assert [job.owner for job in jobs] == [f"o{number}" for number in range(12)] + [None, None]
    assert len({shard_of(handle.id) for handle in handles}) == 3
    assert shard_of(handles[-1].id) == shard_of(handles[-2].id)


# By id


async def test_jobs_are_found_by_their_id(client: Client) -> None:
    for number in client.shard_numbers:
        handle = await client.shard(number).submit(echo("x"))
        assert (await client.get(handle.id)).id == handle.id
        assert (await client.logs(handle.id)) == []
        assert (await client.explain(str(handle.id)))[0].reason
        assert (await client.cancel(handle.id)).status == "cancelled"
        assert (await client.retry(handle.id)).status != "cancelled"
        assert (await client.shard_for(handle.id).get(handle.id)).id == handle.id


async def test_id_of_an_unknown_shard_is_explained(client: Client) -> None:
    with pytest.raises(NotFoundError, match="belongs to shard 9"):
        await client.get("0199c3d5-7a3c-7000-8009-4d2f6f1b7c55")
    with pytest.raises(NotFoundError, match="Shard 9 does not exist"):
        client.shard(9)
    with pytest.raises(InvalidError):
        await client.get("nonsense")


async def test_blocking_client_has_shards_too(client: Client) -> None:
    def submit_and_get() -> bool:
        handle = client.blocking.submit(echo("x"), owner="ann")
        return client.blocking.get(handle.id).owner == "ann"

    assert await asyncio.to_thread(submit_and_get)
    await asyncio.to_thread(client.blocking.close)


# All shards


async def test_search_merges_the_pages_of_all_shards(client: Client) -> None:
    submitted = [(await client.submit(echo(str(number)).options(queue="merged"))).id for number in range(20)]
    matches = [job.id async for job in client.iterate_jobs("queue:merged")]
    assert matches == list(reversed(submitted))
    pages: list[UUID] = []
    page = await client.search_jobs("queue:merged", limit=3)
    while True:
        pages += [job.id for job in page.rows]
        assert len(page.rows) <= 3
        assert page.missing_shards == ()
        if page.next is None:
            break
        page = await client.search_jobs("queue:merged", limit=3, before=page.next)
    assert pages == list(reversed(submitted))


async def test_search_says_which_shard_is_missing(urls: dict[int, str], settings: Settings) -> None:
    dead = {**urls, 3: "postgresql://127.0.0.1:1/nothing"}
    async with Client(
        shards=dead, settings=replace(settings, connect_timeout=timedelta(seconds=1))
    ) as client:
        handle = await client.shard(1).submit(echo("x").options(queue="partial"))
        page = await client.search_jobs("queue:partial")
        assert [job.id for job in page.rows] == [handle.id]
        assert page.missing_shards == (3,)
        anywhere = {shard_of((await client.submit(echo("x"))).id) for _ in range(6)}
        assert anywhere == {1, 2}


async def test_queue_is_paused_on_all_shards(client: Client, urls: dict[int, str]) -> None:
    await client.pause_queue("sharded", by="test", allow_new=True)
    paused = "select count(*) from holdfast.queues where name = 'sharded' and paused_at is not null"
    assert [await run_sql(url, paused) for url in urls.values()] == [1, 1, 1]
    assert await client.resume_queue("sharded")
    assert [await run_sql(url, paused) for url in urls.values()] == [0, 0, 0]


async def test_schedule_is_on_one_shard_and_stays_there(
    fresh_urls: dict[int, str], settings: Settings
) -> None:
    client = Client(shards=fresh_urls, settings=settings)
    names = [f"s{number}" for number in range(9)]
    for name in names:
        await client.schedules.put(echo(name), name=name, cron="@daily")
    assert [row.name for row in await client.schedules.list()] == names
    counts = [await run_sql(url, "select count(*) from holdfast.schedules") for url in fresh_urls.values()]
    assert sum(map(int, map(str, counts))) == 9
    assert all(counts)
    handle = await client.schedules.run_now("s3")
    assert (await client.get(handle.id)).id == handle.id
    two = {number: fresh_urls[number] for number in (1, 2)}
    await number_shard(fresh_urls[3], 3, joined=1)
    async with Client(shards=two, settings=client.settings) as before:
        await before.schedules.put(echo("early"), name="early-7", cron="@daily")
    async with Client(shards=fresh_urls, settings=client.settings) as after:
        await after.schedules.put(echo("changed"), name="early-7", cron="@hourly")
        assert [row.name for row in await after.schedules.list()].count("early-7") == 1
    await client.close()


async def test_what_needs_one_shard_is_refused(client: Client) -> None:
    with pytest.raises(RefusedError, match="needs one shard"):
        async with client.connection():
            pass
    with pytest.raises(RefusedError, match="limit over all shards"):
        await client.limits.put("four", queue="sharded", max_running=4)
    await client.limits.put("per key", queue="sharded", max_running=4, per_key=True)
    assert {len(await client.shard(n).limits.list()) for n in client.shard_numbers} == {1}


# Workers


async def test_worker_serves_all_shards_while_one_is_dead(urls: dict[int, str], settings: Settings) -> None:
    dead = {**urls, 9: "postgresql://127.0.0.1:1/nothing"}
    settings = replace(settings, connect_timeout=timedelta(seconds=1))
    async with Client(shards=dead, settings=settings) as client:
        handles = [await client.shard(number).submit(echo(f"shard {number}")) for number in urls]
        async with Worker(client, tasks=[echo], concurrency=4) as worker:
            running = asyncio.create_task(worker.run())
            results = [await client.get(handle.id) and await handle.result(within=30) for handle in handles]
            worker.stop()
            await running
    assert results == ["shard 1", "shard 2", "shard 3"]


async def test_worker_consumes_each_message_queue_on_its_shard(
    fresh_urls: dict[int, str], settings: Settings
) -> None:
    names = [f"letters{number}" for number in range(6)]
    received: list[str] = []

    def create_consumer(name: str) -> Consumer[dict[str, str]]:
        @consumer(name)
        async def receive(message: Message[dict[str, str]]) -> None:
            received.append(message.body["from"])

        return receive

    async with Client(shards=fresh_urls, settings=settings) as client:
        for name in names:
            await client.queues.create(name)
            await client.queues.send(name, {"from": name})
        assert len({shard_routing.choose_shard(f"queue:{name}", [1, 2, 3]) for name in names}) > 1
        async with Worker(client, consumers=[create_consumer(name) for name in names]) as worker:
            running = asyncio.create_task(worker.run())
            await wait_until(lambda: len(received) == len(names) or running.done(), what="all messages")
            worker.stop()
            await running
    assert sorted(received) == names


async def test_worker_of_one_shard_leaves_the_schedules_of_others(
    fresh_urls: dict[int, str], settings: Settings
) -> None:
    nightly = [schedule(echo(f"n{number}"), name=f"n{number}", cron="@daily") for number in range(6)]
    async with Client(shards=fresh_urls, settings=settings) as client:
        with pytest.raises(InvalidError, match="no shard 9"):
            Worker(client, tasks=[echo], shards=[9])
        options: dict[str, Any] = {"tasks": [echo], "schedules": nightly, "until": "drained"}
        async with Worker(client, shards=[1], **options) as worker:
            await worker.run()
        own = {each.name for each in nightly if await find_schedule_shard(client, each.name) == 1}
        assert 0 < len(own) < 6
        assert {each.name for each in await client.schedules.list()} == own


async def test_worker_registers_each_schedule_on_one_shard(
    fresh_urls: dict[int, str], settings: Settings
) -> None:
    client = Client(shards=fresh_urls, settings=settings)
    nightly = [schedule(echo(f"n{number}"), name=f"n{number}", cron="@daily") for number in range(6)]
    count = "select count(*)::int from holdfast.schedules"

    async def count_schedules() -> int:
        return sum([int(str(await run_sql(url, count))) for url in fresh_urls.values()])

    async with Worker(client, tasks=[echo], schedules=nightly) as worker:
        running = asyncio.create_task(worker.run())
        await wait_until(count_schedules, what="schedules")

        async def has_all() -> bool:
            return await count_schedules() == 6

        await wait_until(has_all, what="six schedules")
        worker.stop()
        await running
    assert await count_schedules() == 6
    await client.close()
