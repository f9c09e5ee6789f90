"""Tell open pages how far the jobs of their users are, with one query per second for all of them.

The feed reads the newest jobs of the users who have a page open, and passes on those that have changed.
Without an open page it does not run. It needs no LISTEN, so it also works behind a transaction pooler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast import Client

POLL_INTERVAL_S: Final = 1.0
MAX_WATCHED_JOBS: Final = 50  # the newest jobs of each user
_LIST_JOBS_OF_OWNERS: Final = (
    "select o.owner,"
    " holdfast.list_jobs_page(jsonb_build_object('owner', o.owner), null, $2) -> 'rows' as jobs"
    " from unnest($1::text[]) as o (owner)"
)
_log = logging.getLogger("holdfast.systems.front_door")
JobRow = dict[str, Any]


class JobWatch:
    """One open page of a user: the jobs that changed since the page last received them."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
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

    async def take_changed_jobs(self, timeout_s: float) -> list[JobRow]:
        """Wait for changed jobs and return them, or return none after `timeout_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._has_news.wait()
        self._has_news.clear()
        jobs, self._changed = list(self._changed.values()), {}
        return jobs


class JobFeed:
    """Reads the jobs of all users who have a page open."""

    def __init__(self) -> None:
        self._watches: set[JobWatch] = set()
        self._reading: asyncio.Task[None] | None = None

    def watch(self, client: Client, owner: str) -> JobWatch:
        """Register an open page. It first receives all of its jobs."""
        watch = JobWatch(owner)
        self._watches.add(watch)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_jobs(client))
        return watch

    def unwatch(self, watch: JobWatch) -> None:
        """Remove a closed page. After the last one, the feed stops."""
        self._watches.discard(watch)
        if not self._watches and self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read_jobs(self, client: Client) -> None:
        while True:
            try:
                await self._read_once(client)
            except Exception as error:
                # The database may be away for a moment. The next look finds what has changed.
                _log.warning("Reading the jobs of open pages failed: %s", type(error).__name__)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _read_once(self, client: Client) -> None:
        watches = list(self._watches)
        owners = sorted({watch.owner for watch in watches})
        async with client.connection() as connection:
            rows = await connection.fetch(_LIST_JOBS_OF_OWNERS, owners, MAX_WATCHED_JOBS)
        jobs_by_owner = {row["owner"]: msgspec.json.decode(row["jobs"]) for row in rows}
        for watch in watches:
            watch.set_jobs(jobs_by_owner.get(watch.owner, []))
