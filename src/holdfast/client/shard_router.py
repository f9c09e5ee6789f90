"""Find the shard that a call needs: by the id of a job, by the name of a schedule or by a submit request.

Each shard has its own connections. The first use of a shard checks that its database has its number.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar
from uuid import UUID

from holdfast.client import shard_routing
from holdfast.definitions.ids import parse_id, shard_of
from holdfast.engine import schedules, shards
from holdfast.engine.connection import Connection
from holdfast.engine.messages.queues import message_queue_exists
from holdfast.engine.shards import ShardState
from holdfast.errors import (
    DatabaseError,
    DatabaseUnavailableError,
    HoldfastError,
    NotFoundError,
    SettingsError,
)
from holdfast.setting_values import check_shards
from holdfast.settings import Secret


class ShardConnections(Protocol):
    """The connections to one database."""

    def connection(self) -> AbstractAsyncContextManager[Connection]: ...

    async def close(self) -> None: ...


T = TypeVar("T")
C = TypeVar("C", bound=ShardConnections)
STATE_LIFETIME_S: Final = 10.0
EQUAL_LOAD_TASKS: Final = 100  # a smaller difference between shards does not count
STATE_TIMEOUT_S: Final = 2.0
FAN_OUT_TIMEOUT_S: Final = 5.0


@dataclass
class Shard(Generic[C]):
    """One shard of a client. `state` is None until its database has confirmed its number."""

    number: int
    connections: C
    state: ShardState | None = None
    unreachable_until: float = 0.0
    load: int = 0  # unfinished work when the state was read, and what this client has sent since


class ShardRouter(Generic[C]):
    """The shards of a client."""

    def __init__(self, urls: Mapping[int, Secret], create_connections: Callable[[Secret], C]) -> None:
        check_shards(urls)
        self.urls = dict(sorted(urls.items()))
        self.shards = {number: Shard(number, create_connections(url)) for number, url in self.urls.items()}
        self._states_read_at = float("-inf")
        self._refresh: asyncio.Task[None] | None = None
        self._turn = itertools.count()

    async def for_id(self, id: UUID | str) -> C:  # noqa: A002
        """Return the connections of the shard that created an id."""
        return await self.open_shard(self.find_id_shard(id))

    def find_id_shard(self, id: UUID | str) -> int:  # noqa: A002
        """Return the shard that created an id. Raise NotFoundError if it is not one of these shards."""
        number = shard_of(parse_id(id, "job"))
        if number not in self.shards:
            raise NotFoundError(
                f"{id} belongs to shard {number}, which this client does not know.",
                fix="Add the shard to HOLDFAST_SHARDS.",
                field="id",
            )
        return number

    async def for_name(self, name: str) -> C:
        """Return the connections of the shard of a schedule."""
        return await self.open_shard(await self.find_schedule_shard(name))

    async def find_schedule_shard(self, name: str) -> int:
        """Return the shard of a schedule: where it is already, or the one that its name decides."""
        return await self._find_named_shard(f"name:{name}", partial(_has_schedule, name))

    async def find_message_queue_shard(self, name: str) -> int:
        """Return the shard of a message queue: where it is already, or the one that its name decides."""
        return await self._find_named_shard(f"queue:{name}", partial(_has_message_queue, name))

    async def _find_named_shard(self, key: str, has_it: Callable[[Connection], Awaitable[bool]]) -> int:
        await self._read_states()
        first, *earlier = shard_routing.list_candidates(key, self._list_states())
        for number in earlier:
            connections = await self.open_shard(number)
            async with connections.connection() as connection:
                if await has_it(connection):
                    return number
        return first

    async def for_submit(self, request: Mapping[str, Any]) -> C:
        """Return the connections of the shard that a job is submitted to."""
        return await self.open_shard(await self.find_submit_shard(request))

    async def find_submit_shard(self, request: Mapping[str, Any]) -> int:
        """Return the shard that a job is submitted to."""
        if request.get("batch"):
            return self.find_id_shard(request["batch"])
        await self._read_states()
        key = shard_routing.get_routing_key(request)
        if key is None:
            return self._choose_any_shard()
        first, *earlier = shard_routing.list_candidates(key, self._list_states())
        if request.get("key") or request.get("unique_key"):
            for number in earlier:
                if await self._has_key(number, request):
                    return number
        return first

    async def find_reachable_shard(self) -> int:
        """Return the first shard that answered lately, or the first if none did."""
        await self._read_states()
        now = time.monotonic()
        reachable = (number for number, shard in self.shards.items() if shard.unreachable_until < now)
        return next(reachable, next(iter(self.shards)))

    async def open_shard(self, number: int) -> C:
        """Return the connections of one shard, after its database has confirmed its number."""
        if number not in self.shards:
            known = ", ".join(map(str, self.shards))
            raise NotFoundError(f"Shard {number} does not exist.", fix=f"The shards are {known}.")
        shard = self.shards[number]
        if shard.state is None:
            await self._read_state(shard)
        return shard.connections

    async def ask_all(
        self, ask: Callable[[Connection], Awaitable[T]], *, timeout_s: float = FAN_OUT_TIMEOUT_S
    ) -> tuple[dict[int, T], dict[int, HoldfastError]]:
        """Ask all shards at once. Return the answers and the errors by the number of the shard."""

        async def ask_one(number: int) -> T:
            connections = await self.open_shard(number)
            async with connections.connection() as connection:
                return await ask(connection)

        results = await asyncio.gather(
            *(_limit_time(ask_one(number), number, timeout_s) for number in self.shards),
            return_exceptions=True,
        )
        answers: dict[int, T] = {}
        failures: dict[int, HoldfastError] = {}
        for number, result in zip(self.shards, results, strict=True):
            if isinstance(result, DatabaseError):
                failures[number] = result
            elif isinstance(result, BaseException):
                raise result
            else:
                answers[number] = result
        return answers, failures

    async def close(self) -> None:
        """Close the connections of the running event loop to all shards."""
        refresh, self._refresh = self._refresh, None
        if refresh is not None and refresh.get_loop() is asyncio.get_running_loop():
            refresh.cancel()
        await asyncio.gather(*(shard.connections.close() for shard in self.shards.values()))

    def _choose_any_shard(self) -> int:
        """Return a shard that answers, is not drained and has the least work. Equal ones take turns."""
        active = [s.number for s in self._list_states() if not s.draining] or list(self.shards)
        reachable = [n for n in active if self.shards[n].unreachable_until < time.monotonic()] or active
        least = min(self.shards[n].load for n in reachable)
        margin = max(EQUAL_LOAD_TASKS, least // 10)
        least_loaded = [n for n in reachable if self.shards[n].load <= least + margin]
        chosen = least_loaded[next(self._turn) % len(least_loaded)]
        self.shards[chosen].load += 1
        return chosen

    async def _has_key(self, number: int, request: Mapping[str, Any]) -> bool:
        connections = await self.open_shard(number)
        async with connections.connection() as connection:
            job_id = await shards.find_job_by_key(
                connection, request.get("owner"), request.get("key"), request.get("unique_key")
            )
        return job_id is not None

    def _list_states(self) -> list[ShardState]:
        """Return the states of all shards. One that has never answered counts as taking work."""
        return [shard.state or ShardState(number=shard.number) for shard in self.shards.values()]

    async def _read_states(self) -> None:
        """Read the states of all shards: at the first time now, later in the background."""
        if time.monotonic() - self._states_read_at < STATE_LIFETIME_S:
            return
        is_first = self._states_read_at == float("-inf")
        self._states_read_at = time.monotonic()
        refresh = asyncio.create_task(self._refresh_states())
        self._refresh = refresh
        if is_first:
            await refresh

    async def _refresh_states(self) -> None:
        async def refresh_one(shard: Shard[C]) -> None:
            try:
                await _limit_time(self._read_state(shard), shard.number, STATE_TIMEOUT_S)
            except DatabaseError:
                shard.unreachable_until = time.monotonic() + STATE_LIFETIME_S + STATE_TIMEOUT_S

        with contextlib.suppress(SettingsError):  # raised when the shard is used
            await asyncio.gather(*(refresh_one(shard) for shard in self.shards.values()))

    async def _read_state(self, shard: Shard[C]) -> None:
        async with shard.connections.connection() as connection:
            state = await shards.get_shard(connection)
            load = await shards.count_unfinished_work(connection)
        if state.number != shard.number:
            raise SettingsError(
                f"The database of shard {shard.number} says that it is shard {state.number}.",
                fix=f"Correct HOLDFAST_SHARDS, or number a new database: holdfast shard add {shard.number}.",
                field="shards",
            )
        shard.state, shard.load = state, load
        shard.unreachable_until = 0.0


async def _has_schedule(name: str, connection: Connection) -> bool:
    with contextlib.suppress(NotFoundError):
        await schedules.get_schedule(connection, name)
        return True
    return False


async def _has_message_queue(name: str, connection: Connection) -> bool:
    return await message_queue_exists(connection, name)


async def _limit_time(awaitable: Awaitable[T], number: int, timeout_s: float) -> T:
    try:
        async with asyncio.timeout(timeout_s):
            return await awaitable
    except TimeoutError:
        raise DatabaseUnavailableError(f"Shard {number} did not answer within {timeout_s:g} s.") from None
