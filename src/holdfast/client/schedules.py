"""`client.schedules`: work that is submitted at set times, as data that can be changed at any time."""

from __future__ import annotations

import builtins
from collections.abc import Coroutine
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, Unpack

from holdfast.client.handles import JobHandle
from holdfast.definitions.graphs import Graph
from holdfast.definitions.schedules import Missed, Schedule, schedule
from holdfast.definitions.tasks import Call
from holdfast.engine import schedules
from holdfast.model import StoredSchedule

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.client import Client
    from holdfast.engine.connection import Connection

T = TypeVar("T")
PAGE = 500


class Times(TypedDict, total=False):
    """What may be said of a schedule besides its work; see `holdfast.schedule`."""

    name: str | None
    cron: str | None
    every: timedelta | None
    timezone: str
    missed: Missed
    most: int
    owner: str | None
    unique: bool


class Schedules:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(self, work: Call[Any] | Graph | Schedule, **times: Unpack[Times]) -> StoredSchedule:
        """Make a schedule; ConflictError when there is one of that name."""
        body = _schedule(work, times).body()
        async with self._connection() as connection:
            return await schedules.create_schedule(connection, body)

    async def put(self, work: Call[Any] | Graph | Schedule, **times: Unpack[Times]) -> StoredSchedule:
        """Make it, or change the one of that name; `did` says which."""
        body = _schedule(work, times).body()
        async with self._connection() as connection:
            return await schedules.put_schedule(connection, body)

    async def list(self, *, owner: str | None = None) -> list[StoredSchedule]:
        """All of them, by name."""
        found: builtins.list[StoredSchedule] = []
        async with self._connection() as connection:
            while True:
                after = found[-1].name if found else None
                page = await schedules.list_schedules(connection, owner=owner, after=after, limit=PAGE)
                found += page
                if len(page) < PAGE:
                    return found

    async def get(self, name: str) -> StoredSchedule:
        async with self._connection() as connection:
            return await schedules.get_schedule(connection, name)

    async def pause(self, name: str, *, by: str | None = None) -> bool:
        """No runs until it is resumed; what falls due meanwhile is not made up for. False: it was paused."""
        async with self._connection() as connection:
            return await schedules.pause_schedule(connection, name, by)

    async def resume(self, name: str) -> bool:
        async with self._connection() as connection:
            return await schedules.resume_schedule(connection, name)

    async def delete(self, name: str) -> bool:
        """False when there was none."""
        async with self._connection() as connection:
            return await schedules.delete_schedule(connection, name)

    async def run_now(self, name: str) -> JobHandle[Any]:
        """A run besides its times, also while it is paused."""
        async with self._connection() as connection:
            submitted = await schedules.run_schedule(connection, name)
        return JobHandle(self._client, submitted.id, Any, created=submitted.created)

    async def preview(self, name: str, count: int = 10) -> builtins.list[datetime]:
        """The next times, as if it were not paused."""
        async with self._connection() as connection:
            return await schedules.preview_schedule(connection, name, count)

    async def next_times(
        self,
        cron: str | None = None,
        *,
        every: timedelta | None = None,
        timezone: str = "UTC",
        count: int = 10,
        after: datetime | None = None,
    ) -> builtins.list[datetime]:
        """What an expression or an interval means, before it is stored."""
        every_s = None if every is None else every.total_seconds()
        async with self._connection() as connection:
            return await schedules.next_times(
                connection, cron=cron, every_s=every_s, timezone=timezone, count=count, after=after
            )

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[Connection]:
        async with (await self._client.open()).connection() as connection:
            yield connection


def _schedule(work: Call[Any] | Graph | Schedule, times: Times) -> Schedule:
    return work if isinstance(work, Schedule) else schedule(work, **times)


class Run(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class BlockingSchedules:
    """The same for code without an event loop."""

    def __init__(self, schedules: Schedules, run: Run) -> None:
        self._schedules = schedules
        self._run = run

    def create(self, work: Call[Any] | Graph | Schedule, **times: Unpack[Times]) -> StoredSchedule:
        return self._run(self._schedules.create(work, **times))

    def put(self, work: Call[Any] | Graph | Schedule, **times: Unpack[Times]) -> StoredSchedule:
        return self._run(self._schedules.put(work, **times))

    def list(self, *, owner: str | None = None) -> list[StoredSchedule]:
        return self._run(self._schedules.list(owner=owner))

    def get(self, name: str) -> StoredSchedule:
        return self._run(self._schedules.get(name))

    def pause(self, name: str, *, by: str | None = None) -> bool:
        return self._run(self._schedules.pause(name, by=by))

    def resume(self, name: str) -> bool:
        return self._run(self._schedules.resume(name))

    def delete(self, name: str) -> bool:
        return self._run(self._schedules.delete(name))

    def run_now(self, name: str) -> JobHandle[Any]:
        return self._run(self._schedules.run_now(name))

    def preview(self, name: str, count: int = 10) -> builtins.list[datetime]:
        return self._run(self._schedules.preview(name, count))
