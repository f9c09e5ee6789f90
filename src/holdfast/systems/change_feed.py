"""Tell open pages about changed rows of a system, with one query per half second for all of them.

Rows carry the time of their last change and a version that grows with each change. The feed reads the rows
that changed since its last look, for the users who have a page open, and looks a few seconds further back
than that, because a transaction that began earlier may have committed later. A page receives each version
once. Without an open page the feed does not run. It needs no LISTEN, so it also works behind a transaction
pooler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from holdfast import Client

POLL_INTERVAL_S: Final = 0.5
LATE_COMMIT_OVERLAP: Final = timedelta(seconds=10)
MAX_REMEMBERED_VERSIONS: Final = 5_000
MAX_CHANGED_ROWS: Final = 500
_log = logging.getLogger("holdfast.systems")

# A row has `id`, `user_id`, `updated_at` and `version`, which grows with each change.
Row: TypeAlias = dict[str, Any]
# List at most `MAX_CHANGED_ROWS` rows of these users that changed since a time, oldest change first. The
# arguments are a connection, the schema of the systems, the ids of the users, and the time.
ListChangedRows: TypeAlias = Callable[[Any, str, Iterable[str], datetime], Awaitable[list[Row]]]


class ChangeSubscription:
    """One open page of a user: the changed rows that it has not received yet."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._rows: dict[Any, Row] = {}
        self._sent_versions: OrderedDict[Any, Any] = OrderedDict()
        self._changed = asyncio.Event()

    def add_row(self, row: Row) -> None:
        """Keep the newest version of a row for the page, unless the page has received it."""
        row_id, version = row["id"], row["version"]
        sent_version = self._sent_versions.get(row_id)
        if sent_version is not None and sent_version >= version:
            return
        self._sent_versions[row_id] = version
        self._sent_versions.move_to_end(row_id)
        if len(self._sent_versions) > MAX_REMEMBERED_VERSIONS:
            self._sent_versions.popitem(last=False)
        self._rows[row_id] = row
        self._changed.set()

    async def take_rows(self, timeout_s: float) -> list[Row]:
        """Wait for changed rows and return them, or return none after `timeout_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()
        rows, self._rows = list(self._rows.values()), {}
        return rows


class ChangeFeed:
    """Reads changed rows for all open pages of one application."""

    def __init__(self, list_changed_rows: ListChangedRows) -> None:
        self._list_changed_rows = list_changed_rows
        self._subscriptions: set[ChangeSubscription] = set()
        self._reading: asyncio.Task[None] | None = None
        self._read_until: datetime | None = None
        self._missed_since: datetime | None = None  # what a page that came back has missed

    def subscribe(self, client: Client, owner: str, since: datetime | None) -> ChangeSubscription:
        """Register an open page. With `since`, it also receives the changes after that time."""
        subscription = ChangeSubscription(owner)
        self._subscriptions.add(subscription)
        if self._reading is None or self._reading.done():
            self._read_until = None
            self._reading = asyncio.create_task(self._read_changes(client))
        if since is not None:
            self._missed_since = min(self._missed_since or since, since)
        return subscription

    def unsubscribe(self, subscription: ChangeSubscription) -> None:
        """Remove a closed page. After the last one, the feed stops."""
        self._subscriptions.discard(subscription)
        if not self._subscriptions and self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read_changes(self, client: Client) -> None:
        while True:
            try:
                await self._read_once(client)
            except Exception as error:
                # The database may be away for a moment. The next look covers the whole time since the last.
                _log.warning("Reading changed rows failed: %s", type(error).__name__)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _read_once(self, client: Client) -> None:
        owners = {subscription.owner for subscription in self._subscriptions}
        missed_since, self._missed_since = self._missed_since, None
        async with client.connection() as connection:
            now: datetime = await connection.fetchval("select clock_timestamp()")
            since = min(self._read_until or now, missed_since or now, now) - LATE_COMMIT_OVERLAP
            self._read_until = since  # if the next query fails
            rows = await self._list_changed_rows(connection, client.settings.systems_schema, owners, since)
        for row in rows:
            for subscription in self._subscriptions:
                if subscription.owner == str(row["user_id"]):
                    subscription.add_row(row)
        # A full page of rows may have left out newer ones.
        full = len(rows) >= MAX_CHANGED_ROWS
        self._read_until = rows[-1]["updated_at"] + LATE_COMMIT_OVERLAP if full else now
