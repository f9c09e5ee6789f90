"""Files, message queues, limits and erasures of a client with several shards, and the least loaded shard."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
from shard_databases import create_shard_databases

from holdfast import Client, shard_of, task
from holdfast.client import shard_router, shard_routing
from holdfast.engine import limits
from holdfast.errors import DatabaseError
from holdfast.settings import Secret, Settings

NUMBERS = (1, 2)


@task(queue="resources")
async def echo(text: str) -> str:
    return text


@pytest.fixture
async def urls(server_url: Secret, template: str, settings: Settings) -> dict[int, str]:
    return await create_shard_databases(server_url, template, settings, NUMBERS)


@pytest.fixture
async def client(urls: dict[int, str], settings: Settings, tmp_path: Path) -> AsyncGenerator[Client]:
    own = replace(settings, storage_url=Secret(str(tmp_path)))
    async with Client(shards=urls, settings=own) as client:
        yield client


def find_name(prefix: str, number: int, start: int = 0) -> str:
    """Return a name that belongs to a shard."""
    return next(
        f"n{each}"
        for each in range(start, 1000)
        if shard_routing.choose_shard(f"{prefix}:n{each}", NUMBERS) == number
    )


async def test_files_are_found_by_their_id_and_listed_from_all_shards(client: Client) -> None:
    stored = []
    for number in NUMBERS:
        file = await client.files.put("a.txt", b"hello", owner=find_name("owner", number))
        assert shard_of(file.id) == number
        assert await client.files.read(file.id) == b"hello"
        assert (await client.files.create_download_link(file.id)).startswith("/files/")
        stored.append(file)
    assert [file.id for file in await client.files.list()] == sorted(file.id for file in stored)
    job = await client.submit(echo("x"), owner=find_name("owner", 2))
    of_job = await client.files.put("b.txt", b"job", job=job.id)
    assert shard_of(of_job.id) == 2
    assert [file.id for file in await client.files.list(job=job.id)] == [of_job.id]
    usage = await client.files.usage(find_name("owner", 2))
    assert usage["files"]["used"] == 2
    await client.files.delete(stored[0].id)
    assert len(await client.files.list()) == 2
    assert [keys async for keys in client.files.orphaned_objects(older=0)] == []
    assert (await client.files.sweep()).deleted == 1


async def test_message_queues_have_the_shard_of_their_name(client: Client) -> None:
    names = [find_name("queue", number) for number in NUMBERS]
    for number, name in zip(NUMBERS, names, strict=True):
        await client.queues.create(name)
        sent = await client.queues.send(name, {"n": number})
        [message] = await client.queues.read(name)
        assert (message.id, message.body) == (sent, {"n": number})
        assert await client.queues.archive(name, message) == [sent]
        assert [queue.name for queue in await client.shard(number).queues.list()] == [name]
    assert sorted(queue.name for queue in await client.queues.list()) == sorted(names)
    assert len(await client.queues.metrics_all()) == 2
    assert await client.queues.drop(names[0])


async def test_limits_of_all_shards_are_one_list(client: Client) -> None:
    await client.limits.put("each", queue="resources", per_key=True, max_running=2)
    for number in NUMBERS:  # a share for each shard
        async with client.shard(number).connection() as connection:
            await limits.put_limit(connection, limits.LimitRule(name="all", queue="q", max_running=3))
    listed = {limit.name: limit for limit in await client.limits.list()}
    assert listed["each"].max_running == 2
    assert listed["all"].max_running == 6
    assert await client.limits.remove("each")
    assert not await client.limits.remove("each")


async def test_owner_is_erased_on_all_shards(client: Client) -> None:
    for number in NUMBERS:
        key = find_name("limit_key", number)
        job = await client.submit(echo("x"), owner="ann", limit_key=key)
        assert shard_of(job.id) == number
    erasure = await client.erase_owner("ann", within=30)
    assert erasure.finished_at is not None
    assert erasure.deleted["jobs"] == 2
    assert (await client.search_jobs(owner="ann")).rows == []


async def test_work_without_a_key_goes_to_the_least_loaded_shard(
    client: Client, urls: dict[int, str], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_router, "EQUAL_LOAD_TASKS", 3)
    equal = Counter([shard_of((await client.submit(echo("x"))).id) for _ in range(4)])
    assert equal == {1: 2, 2: 2}
    await client.shard(1).submit_many(echo("backlog") for _ in range(20))
    async with Client(shards=urls, settings=settings) as fresh:
        assert {shard_of((await fresh.submit(echo("x"))).id) for _ in range(8)} == {2}
        later = Counter([shard_of((await fresh.submit(echo("x"))).id) for _ in range(40)])
        assert set(later) == {1, 2}  # what this client has sent counts before the next look


async def test_missing_shard_is_an_error_where_all_are_needed(
    urls: dict[int, str], settings: Settings
) -> None:
    dead = {**urls, 3: "postgresql://nobody@127.0.0.1:1/nothing"}
    async with Client(shards=dead, settings=settings) as client, asyncio.timeout(30):
        for call in (client.files.list, client.queues.list, client.limits.list):
            with pytest.raises(DatabaseError):
                await call()
        with pytest.raises(DatabaseError):
            await client.erase_owner("ann")
