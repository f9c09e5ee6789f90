"""Commands over several shards: an id selects its shard, and lists and bulk actions run on each of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast import Client, task
from holdfast.cli.root import run_command_line
from holdfast.settings import Settings

Captured = pytest.CaptureFixture[str]


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
    dead = {**urls, 3: "postgresql://ann@127.0.0.1:1/none"}
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


async def test_what_needs_one_shard_says_so(urls: dict[int, str], capsys: Captured) -> None:
    assert await run(urls, "top", "--once") in (2, 5)
    assert await run(urls, "--shard", "1", "file", "check", "--repair", "--yes") == 5
    assert "without --shard" in capsys.readouterr().err
