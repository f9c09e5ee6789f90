"""Erase an owner: delete rows step by step, and the objects of files between the steps."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from holdfast.client.connections import ClientConnections
from holdfast.client.files import Files
from holdfast.engine import artifacts, erasures
from holdfast.engine.erasures import Erasure

DEFAULT_ERASURE_TIME = timedelta(minutes=5)
MAX_POLL_INTERVAL_S = 0.5  # while the work that was interrupted comes to its end


async def run_erasure(
    connections: ClientConnections,
    files: Files,
    owner: str,
    *,
    by: str | None,
    within: timedelta,
) -> Erasure:
    """Erase an owner until nothing is left or the time is over, and return how far the erasure is.

    Each step is one transaction. After a crash, the next call or the maintenance of a worker continues.
    """
    deadline = time.monotonic() + within.total_seconds()
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
