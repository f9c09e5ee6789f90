"""Show the phase of a clip while it takes long. A phase that ends at once costs no write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from holdfast import Client
from holdfast.systems.clips import stage_queries as queries

SHOWN_AFTER_S: Final = 0.3


class ClipProgress:
    """The progress of one clip. Create it with `open_progress`."""

    def __init__(self, client: Client, schema: str, clip_id: str) -> None:
        self._client = client
        self._schema = schema
        self._clip_id = clip_id
        self._writing: asyncio.Task[None] | None = None

    async def report(self, percent: int, phase: str) -> None:
        """Show a phase, unless the next one begins within a moment."""
        await self.cancel()
        self._writing = asyncio.create_task(self._write_later(percent, phase))

    async def cancel(self) -> None:
        """Forget a phase that was not written yet."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
            self._writing = None

    async def _write_later(self, percent: int, phase: str) -> None:
        await asyncio.sleep(SHOWN_AFTER_S)
        async with self._client.connection() as connection:
            await queries.set_progress(connection, self._schema, self._clip_id, percent, phase)


@asynccontextmanager
async def open_progress(client: Client, schema: str, clip_id: str) -> AsyncGenerator[ClipProgress]:
    """Open the progress of a clip for the duration of a block."""
    progress = ClipProgress(client, schema, clip_id)
    try:
        yield progress
    finally:
        await progress.cancel()
