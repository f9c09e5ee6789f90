"""Tell open pages how far their shares are, with one query per half second for all of them.

The feed reads the shares that somebody watches, and passes on those that have changed. Without a watcher it
does not run. It needs no LISTEN, so it also works behind a transaction pooler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final
from uuid import UUID

from holdfast import Client
from holdfast.systems.media import share_queries as queries

POLL_INTERVAL_S: Final = 0.5
_log = logging.getLogger("holdfast.systems.media")


class ShareWatch:
    """One watcher of a share: the newest row that it has not received yet."""

    def __init__(self, share_id: UUID) -> None:
        self.share_id = share_id
        self._row: queries.Row | None = None
        self._seen: queries.Row | None = None
        self._gone = False
        self._changed = asyncio.Event()

    def add_row(self, row: queries.Row | None) -> None:
        """Keep the newest state of the share. None says that the share was deleted."""
        if row is None:
            self._gone = True
        elif row == self._seen:
            return
        self._row = self._seen = row
        self._changed.set()

    async def take_row(self, timeout_s: float) -> tuple[queries.Row | None, bool]:
        """Wait for a change. Return the row, or None after the timeout, and whether the share is gone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()
        row, self._row = self._row, None
        return row, self._gone


class ShareFeed:
    """Reads watched shares for all watchers of one application."""

    def __init__(self) -> None:
        self._watches: set[ShareWatch] = set()
        self._reading: asyncio.Task[None] | None = None

    def watch(self, client: Client, share_id: UUID) -> ShareWatch:
        """Register a watcher. Its first row is the state of now."""
        watch = ShareWatch(share_id)
        self._watches.add(watch)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_shares(client))
        return watch

    def unwatch(self, watch: ShareWatch) -> None:
        """Remove a watcher. After the last one, the feed stops."""
        self._watches.discard(watch)
        if not self._watches and self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read_shares(self, client: Client) -> None:
        while True:
            try:
                await self._read_once(client)
            except Exception as error:
                # The database may be away for a moment. The next look finds what has changed.
                _log.warning("Reading watched shares failed: %s", type(error).__name__)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _read_once(self, client: Client) -> None:
        watches = list(self._watches)
        share_ids = {watch.share_id for watch in watches}
        async with client.connection() as connection:
            rows = await queries.list_shares_by_id(connection, client.settings.systems_schema, share_ids)
        by_id = {row["id"]: row for row in rows}
        for watch in watches:
            watch.add_row(by_id.get(watch.share_id))
