"""The shard number of a database, and the state that clients route by."""

from __future__ import annotations

from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection


class ShardState(msgspec.Struct, frozen=True, kw_only=True):
    """A database as a shard: its number, when it joined the others, and whether it takes new work."""

    number: int
    joined: int = 0
    draining: bool = False


_state_decoder = msgspec.json.Decoder(ShardState)


async def get_shard(connection: Connection) -> ShardState:
    return _state_decoder.decode(await connection.fetchval("select holdfast.get_shard()"))


async def set_shard(connection: Connection, number: int, joined: int = 0) -> ShardState:
    """Set the number of a database. Raise ConflictError if it has jobs with another number."""
    text = await connection.fetchval("select holdfast.set_shard($1, $2)", number, joined)
    return _state_decoder.decode(text)


async def set_shard_draining(connection: Connection, *, draining: bool) -> ShardState:
    text = await connection.fetchval("select holdfast.set_shard_draining($1)", draining)
    return _state_decoder.decode(text)


async def count_unfinished_work(connection: Connection) -> int:
    """Count the tasks and batches of a shard that have not ended, up to 10,000."""
    return int(await connection.fetchval("select holdfast.count_unfinished_work()"))


async def find_job_by_key(
    connection: Connection, owner: str | None, key: str | None, unique_key: str | None
) -> UUID | None:
    """Return the job that holds a key of an owner, or None."""
    job_id: UUID | None = await connection.fetchval(
        "select holdfast.find_job_by_key($1, $2, $3)", owner, key, unique_key
    )
    return job_id
