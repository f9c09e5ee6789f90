"""Erase an owner: delete rows step by step, and the objects of files between the steps."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import msgspec

from holdfast.client.connections import ClientConnections
from holdfast.client.files import Files
from holdfast.definitions.validation import parse_duration
from holdfast.engine import artifacts, erasures
from holdfast.engine.erasures import Erasure

DEFAULT_ERASURE_TIME = timedelta(minutes=5)
MAX_POLL_INTERVAL_S = 0.5  # while the work that was interrupted comes to its end


def merge_erasures(erasures_of_shards: Sequence[Erasure]) -> Erasure:
    """Return one erasure for those of all shards. It is finished when all of them are."""
    first, *others = erasures_of_shards
    ends = [each.finished_at for each in erasures_of_shards]
    deleted = Counter(first.deleted)
    for other in others:
        deleted.update(other.deleted)
    return msgspec.structs.replace(
        first,
        finished_at=None if None in ends else max(end for end in ends if end is not None),
        deleted=dict(deleted),
        wait_s=max(each.wait_s for each in erasures_of_shards),
        more=any(each.more for each in erasures_of_shards),
    )


async def run_erasure(
    connections: ClientConnections,
    files: Files,
    owner: str,
    *,
    by: str | None,
    within: timedelta | float,
) -> Erasure:
    """Erase an owner until nothing is left or the time is over, and return how far the erasure is.

    Each step is one transaction. After a crash, the next call or the maintenance of a worker continues.
    """
    deadline = time.monotonic() + parse_duration(within, "within").total_seconds()
    async with connections.connection() as connection:
        erasure = await erasures.start_erasure(connection, owner, by)
    while erasure.finished_at is None:
        async with connections.connection() as connection:
            erasure = await erasures.advance_erasure(connection, owner)
            objects = await erasures.list_erasure_objects(connection, owner)
        if objects:
            await files.store.delete([key for _, key in objects])
            async with connections.connection() as connection:
                await artifacts.confirm_artifact_deletions(connection, [file_id for file_id, _ in objects])
        if erasure.finished_at is not None or time.monotonic() >= deadline:
            break
        if not erasure.more and not objects:
            await asyncio.sleep(min(max(erasure.wait_s, 0.05), MAX_POLL_INTERVAL_S))
    return erasure
