"""`holdfast shard`: number databases, list them, drain one and remove it when it is empty."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import pytest

from holdfast import Client, Worker, task
from holdfast.cli.root import run_command_line
from holdfast.engine import shards
from holdfast.errors import InvalidError
from holdfast.settings import Secret, Settings

Captured = pytest.CaptureFixture[str]


@task(queue="sharded")
async def echo(text: str) -> str:
    return text


async def run_shard_command(urls: dict[int, str], *arguments: str) -> int:
    setting = ",".join(f"{number}={url}" for number, url in urls.items())
    return await asyncio.to_thread(run_command_line, ["--shards", setting, "shard", *arguments])


async def list_shards(urls: dict[int, str], capsys: Captured) -> list[dict[str, object]]:
    capsys.readouterr()
    assert await run_shard_command(urls, "list", "--json") == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


async def test_list_shows_state_and_work(urls: dict[int, str], settings: Settings, capsys: Captured) -> None:
    async with Client(shards=urls, settings=settings) as client:
        await client.shard(2).submit(echo("x"))
    dead = {**urls, 3: "postgresql://ann:secret@127.0.0.1:1/none", 4: urls[1] + "?application_name=x"}
    rows = await list_shards(dead, capsys)
    assert [(row["shard"], row["state"], row["unfinished"]) for row in rows[:2]] == [
        (1, "active", 0),
        (2, "active", 1),
    ]
    assert str(rows[2]["state"]).startswith("unreachable")
    assert "secret" not in json.dumps(rows)
    assert rows[3]["state"] == "wrong: the database says that it is shard 1"


async def test_added_shard_joins_later(urls: dict[int, str], url: Secret, capsys: Captured) -> None:
    assert await run_shard_command(urls, "add", "3", url.reveal()) == 0
    assert "Add 3=<its URL> to HOLDFAST_SHARDS" in capsys.readouterr().out
    connection = await asyncpg.connect(url.reveal())
    state = await shards.get_shard(connection)
    await connection.close()
    assert (state.number, state.joined) == (3, 1)
    assert await run_shard_command(urls, "add", "4", urls[1]) != 0
    assert "another shard already" in capsys.readouterr().err


async def test_shard_is_removed_when_it_is_drained_and_empty(
    urls: dict[int, str], settings: Settings, capsys: Captured
) -> None:
    async with Client(shards=urls, settings=settings) as client:
        handle = await client.shard(2).submit(echo("x"))
        assert await run_shard_command(urls, "remove", "2", "--yes") != 0
        assert "is not drained" in capsys.readouterr().err
        assert await run_shard_command(urls, "drain", "2") == 0
        assert [row["state"] for row in await list_shards(urls, capsys)] == ["active", "draining"]
        assert await run_shard_command(urls, "remove", "2", "--yes") != 0
        assert "1 unfinished" in capsys.readouterr().err
        await client.cancel(handle.id)
        await client.shard(2).schedules.put(echo("x"), name="nightly", cron="@daily")
        assert await run_shard_command(urls, "remove", "2", "--yes") != 0
        assert "has schedules" in capsys.readouterr().err
        await client.shard(2).schedules.delete("nightly")
    assert await run_shard_command(urls, "remove", "2") != 0  # asks first
    assert await run_shard_command(urls, "remove", "2", "--yes") == 0
    assert "Remove shard 2 from HOLDFAST_SHARDS" in capsys.readouterr().out
    assert await run_shard_command(urls, "drain", "2", "--undo") == 0
    assert [row["state"] for row in await list_shards(urls, capsys)] == ["active", "active"]


async def test_unknown_shard_is_explained(urls: dict[int, str], capsys: Captured) -> None:
    assert await run_shard_command(urls, "drain", "7") != 0
    assert "The shards are 1, 2" in capsys.readouterr().err


def test_worker_serves_selected_shards() -> None:
    client = Client(shards={1: "postgresql://a/x", 2: "postgresql://b/x"})
    assert Worker(client, tasks=[echo], shards=[2])._shard_numbers == [2]
    with pytest.raises(InvalidError, match=r"The client has no shard 3\. Its shards are 1, 2\."):
        Worker(client, tasks=[echo], shards=[3])
