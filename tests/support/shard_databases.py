"""Several databases with Holdfast, numbered as shards."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import asyncpg

from holdfast.engine import scratch, shards
from holdfast.settings import Secret, Settings


async def number_shard(url: str, number: int, joined: int = 0) -> None:
    connection = await asyncpg.connect(url)
    await shards.set_shard(connection, number, joined)
    await connection.close()


async def create_shard_databases(
    server_url: Secret, template: str, settings: Settings, numbers: Sequence[int]
) -> dict[int, str]:
    """Create one database for each number. They end with the server of the tests."""
    urls: dict[int, str] = {}
    for number in numbers:
        name = f"hf_shard_{uuid.uuid4().hex[:16]}"
        await scratch.create_test_database(server_url, name, settings, template=template)
        urls[number] = scratch.build_database_url(server_url, name).reveal()
        await number_shard(urls[number], number)
    return urls
