"""Tell open pages how far the jobs of their users are, with one query per second for all of them.

The feed reads the newest jobs of the users who have a page open, and passes on those that have changed. It
also reads the newest items of systems whose work is not a job, with one query for each of these systems.
Without an open page it does not run. It needs no LISTEN, so it also works behind a transaction pooler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from holdfast import Client
from holdfast.systems.page_routes import SystemPage
from holdfast.systems.user_items import UserItem

POLL_INTERVAL_S: Final = 1.0
MAX_WATCHED_JOBS: Final = 50  # the newest jobs of each user
MAX_ITEMS_PER_SYSTEM: Final = 20  # the newest items of each user; the page of the system shows all
_LIST_JOBS_OF_OWNERS: Final = (
    "select o.owner,"
    " holdfast.list_jobs_page(jsonb_build_object('owner', o.owner), null, $2) -> 'rows' as jobs"
    " from unnest($1::text[]) as o (owner)"
)
_log = logging.getLogger("holdfast.systems.front_door")
JobRow = dict[str, Any]


@dataclass(frozen=True)
class WorkChanges:
    """What an open page has to learn: the changed jobs, and all items if one of them has changed."""

    jobs: list[JobRow]
    items: list[UserItem] | None


class JobWatch:
    """One open page of a user: what has changed since the page last received it."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._items: list[UserItem] = []
        self._items_changed = False
        self._sent: dict[str, JobRow] = {}
        self._changed: dict[str, JobRow] = {}
        self._has_news = asyncio.Event()

    def set_jobs(self, jobs: Sequence[JobRow]) -> None:
        """Compare the newest jobs of the user with those that the page has."""
        for job in jobs:
            if self._sent.get(job["id"]) != job:
                self._changed[job["id"]] = job
                self._has_news.set()
        self._sent = {job["id"]: job for job in jobs}

    def set_items(self, items: Sequence[UserItem]) -> None:
        """Compare the newest items of the user with those that the page has. A deleted one is missing."""
        if self._items != items:
            self._items, self._items_changed = list(items), True
            self._has_news.set()

    async def take_changes(self, timeout_s: float) -> WorkChanges | None:
        """Wait for changes and return them, or return None after `timeout_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._has_news.wait()
            self._has_news.clear()
            jobs, self._changed = list(self._changed.values()), {}
            items, self._items_changed = self._items if self._items_changed else None, False
            return WorkChanges(jobs, items)
        return None


class JobFeed:
    """Reads the jobs of all users who have a page open."""

    def __init__(self) -> None:
        self._watches: set[JobWatch] = set()
        self._reading: asyncio.Task[None] | None = None

    def watch(self, client: Client, owner: str, pages: Sequence[SystemPage]) -> JobWatch:
        """Register an open page. It first receives all of its jobs and items."""
        watch = JobWatch(owner)
        self._watches.add(watch)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_jobs(client, pages))
        return watch

    def unwatch(self, watch: JobWatch) -> None:
        """Remove a closed page. After the last one, the feed stops."""
        self._watches.discard(watch)
        if not self._watches and self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read_jobs(self, client: Client, pages: Sequence[SystemPage]) -> None:
        while True:
            try:
                await self._read_once(client, pages)
            except Exception as error:
                # The database may be away for a moment. The next look finds what has changed.
                _log.warning("Reading the jobs of open pages failed: %s", type(error).__name__)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _read_once(self, client: Client, pages: Sequence[SystemPage]) -> None:
        watches = list(self._watches)
        owners = sorted({watch.owner for watch in watches})
        async with client.connection() as connection:
            rows = await connection.fetch(_LIST_JOBS_OF_OWNERS, owners, MAX_WATCHED_JOBS)
            items = await list_user_items(connection, client.settings.systems_schema, owners, pages)
        jobs_by_owner = {row["owner"]: msgspec.json.decode(row["jobs"]) for row in rows}
        for watch in watches:
            watch.set_jobs(jobs_by_owner.get(watch.owner, []))
            watch.set_items([item for item in items if item.owner == watch.owner])


async def list_user_items(
    connection: Any, schema: str, owners: Sequence[str], pages: Sequence[SystemPage]
) -> list[UserItem]:
    """List the newest items of users over all systems whose work is not a job."""
    items: list[UserItem] = []
    for page in pages:
        if page.list_items is not None:
            listed = await page.list_items(connection, schema, owners, MAX_ITEMS_PER_SYSTEM)
            items += [msgspec.structs.replace(item, page=page.path) for item in listed]
    return items
