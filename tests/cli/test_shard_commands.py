"""Commands over several shards: an id selects its shard, and lists and bulk actions run on each of them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast import Client, Worker, task
from holdfast.cli.root import run_command_line
from holdfast.cli.top import handle_key
from holdfast.cli.top_snapshot import TopSnapshot, fetch_snapshot
from holdfast.errors import RefusedError
from holdfast.server import create_app
from holdfast.settings import Secret, Settings

Captured = pytest.CaptureFixture[str]
DEAD_URL = "postgresql://ann@127.0.0.1:1/none"


@task(queue="sharded")
async def echo(text: str) -> str:
    return text


async def run(urls: dict[int, str], *arguments: str) -> int:
    setting = ",".join(f"{number}={url}" for number, url in urls.items())
    return await asyncio.to_thread(run_command_line, ["--shards", setting, *arguments])


def read_rows(capsys: Captured) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


async def submit_on_each(urls: dict[int, str], settings: Settings) -> list[str]:
    async with Client(shards=urls, settings=settings) as client:
        return [str((await client.shard(number).submit(echo("x"))).id) for number in urls]


async def test_id_selects_its_shard(urls: dict[int, str], settings: Settings, capsys: Captured) -> None:
    jobs = await submit_on_each(urls, settings)
    for job in jobs:
        assert await run(urls, "job", "show", job, "--json") == 0
        assert read_rows(capsys)[0]["id"] == job
        assert await run(urls, "job", "cancel", job, "--yes", "--json") == 0
        assert [row["status"] for row in read_rows(capsys)] == ["cancelled"]
    assert await run(urls, "job", "cancel", *jobs, "--yes") == 5
    assert "several shards: 1, 2" in capsys.readouterr().err
    foreign = "01900000-0000-7000-8009-000000000000"
    assert await run(urls, "job", "show", foreign) == 3
    assert "shard 9" in capsys.readouterr().err


async def test_lists_show_all_shards(urls: dict[int, str], settings: Settings, capsys: Captured) -> None:
    jobs = await submit_on_each(urls, settings)
    assert await run(urls, "job", "list", "--json") == 0
    assert [(row["shard"], row["id"]) for row in read_rows(capsys)] == list(zip((1, 2), jobs, strict=True))
    for noun in ("worker", "limit", "errors", "batch", "webhook"):
        command = "workers" if noun == "worker" else noun
        assert await run(urls, command, "list", "--json") == 0, command
    capsys.readouterr()
    dead = {**urls, 3: DEAD_URL}
    assert await run(dead, "job", "list", "--json") == 6
    captured = capsys.readouterr()
    assert [json.loads(line)["shard"] for line in captured.out.splitlines()] == [1, 2]
    assert "Shard 3:" in captured.err


async def test_cancel_by_search_reaches_all_shards(
    urls: dict[int, str], settings: Settings, capsys: Captured
) -> None:
    jobs = await submit_on_each(urls, settings)
    assert (
        await run(urls, "job", "cancel", "--search", "queue:sharded", "--yes", "--wait", "--all-at-once") == 0
    )
    async with Client(shards=urls, settings=settings) as client:
        assert {(await client.get(job)).status for job in jobs} == {"cancelled"}


async def test_queue_is_paused_and_resumed_on_all_shards(
    urls: dict[int, str], settings: Settings, capsys: Captured
) -> None:
    async with Client(shards=urls, settings=settings) as client:
        await client.shard(2).submit(echo("x"))
    assert await run(urls, "queue", "pause", "sharded", "--reason", "test") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["Shard 1", "Shard 2"]
    assert await run(urls, "queue", "list", "--json") == 0
    assert [(row["shard"], row["queue"], bool(row["paused_at"])) for row in read_rows(capsys)] == [
        (1, "sharded", True),
        (2, "sharded", True),
    ]
    assert await run(urls, "queue", "resume", "sharded", "--json") == 0
    assert read_rows(capsys) == [{"shard": number, "queue": "sharded", "resumed": True} for number in (1, 2)]
    assert await run(urls, "queue", "pause", "nosuch") == 3
    assert "nosuch" in capsys.readouterr().err
    dead = {**urls, 3: DEAD_URL}
    assert await run(dead, "queue", "pause", "sharded") == 6
    assert "Shard 3:" in capsys.readouterr().err
    assert await run(urls, "queue", "desired-workers", "sharded") == 0
    assert capsys.readouterr().out == "0\n"
    await run(urls, "queue", "resume", "sharded")
    capsys.readouterr()
    assert await run(urls, "queue", "desired-workers", "sharded") == 0
    assert capsys.readouterr().out == "1\n"


async def test_top_adds_up_the_shards_and_names_a_dead_one(
    urls: dict[int, str], settings: Settings, capsys: Captured
) -> None:
    await submit_on_each(urls, settings)
    assert await run(urls, "top", "--json") == 0
    [snapshot] = read_rows(capsys)
    assert snapshot["ready"] == 2
    assert [(row["queue"], row["ready"]) for row in snapshot["queues"]] == [("sharded", 2)]
    assert "error" not in snapshot
    assert await run({**urls, 3: DEAD_URL}, "top", "--once") == 0
    assert "shard 3 does not answer and is not counted" in capsys.readouterr().out


async def test_keys_of_top_change_the_right_shards(urls: dict[int, str], settings: Settings) -> None:
    jobs = await submit_on_each(urls, settings)
    async with Client(shards=urls, settings=settings) as client:
        snapshot = TopSnapshot(view="queues")
        await fetch_snapshot(snapshot, client)
        for key in ("p", "y"):
            await handle_key(snapshot, key, client)
        assert snapshot.message is not None
        assert snapshot.message.count("Queue sharded is paused.") == 2
        snapshot.view, snapshot.running = "jobs", [{"id": jobs[1], "type": "echo"}]
        for key in ("c", "y"):
            await handle_key(snapshot, key, client)
        assert [(await client.get(job)).status == "cancelled" for job in jobs] == [False, True]


async def test_doctor_and_migrate_check_each_shard(urls: dict[int, str], capsys: Captured) -> None:
    await run(urls, "doctor", "--json")
    findings = read_rows(capsys)
    numbers = [row["shard"] for row in findings if row["check"] == "shard"]
    assert numbers == [1, 2]
    assert {row["level"] for row in findings if row["check"] == "shard"} == {"ok"}
    swapped = {1: urls[2], 2: urls[1]}
    assert await run(swapped, "doctor", "--json") == 1
    assert [row["level"] for row in read_rows(capsys) if row["check"] == "shard"] == ["fail", "fail"]
    assert await run(urls, "migrate", "check", "--json") == 0
    assert [(row["shard"], row["ok"]) for row in read_rows(capsys)] == [(1, True), (2, True)]
    assert await run({**urls, 3: DEAD_URL}, "doctor", "--json") == 6


async def test_what_one_shard_lacks_is_no_error(
    urls: dict[int, str], settings: Settings, capsys: Captured
) -> None:
    async with Client(shards=urls, settings=settings) as client:
        await client.shard(2).submit(echo("x"))
    assert await run(urls, "queue", "show", "sharded", "--json") == 0
    assert [row["shard"] for row in read_rows(capsys)] == [2]
    assert await run(urls, "workers", "show", "nosuch") == 3
    assert "nosuch" in capsys.readouterr().err


async def test_what_needs_one_shard_says_so(urls: dict[int, str], capsys: Captured) -> None:
    for command in (["file", "quota"], ["key", "create", "ann"], ["job", "export"], ["usage"]):
        assert await run(urls, *command) == 5, command
        assert "--shard 1" in capsys.readouterr().err, command
    assert await run(urls, "--shard", "1", "file", "check", "--repair", "--yes") == 5
    assert "without --shard" in capsys.readouterr().err


async def test_systems_are_refused_with_several_shards(
    urls: dict[int, str], settings: Settings, capsys: Captured
) -> None:
    assert await run(urls, "api", "--system", "exports", "--port", "0") == 5
    error = capsys.readouterr().err
    assert "The bundled application exports needs one database" in error
    assert "holdfast --shard 1" in error
    from holdfast.systems import exports  # noqa: PLC0415

    async with Client(shards=urls, settings=settings) as client:
        with pytest.raises(RefusedError, match="exports needs one database"):
            await Worker(client, tasks=exports.tasks).__aenter__()
        with pytest.raises(RefusedError, match="exports needs one database"):
            create_app(sharded_settings(urls, settings), **exports.mount())
        assert await run(urls, "--shard", "1", "install", "exports") == 0
        async with Worker(client.shard(1), tasks=exports.tasks) as worker:
            assert worker.name


def sharded_settings(urls: dict[int, str], settings: Settings) -> Settings:
    text = ",".join(f"{number}={url}" for number, url in urls.items())
    return replace(settings, database_url=None, shards=Secret(text))
