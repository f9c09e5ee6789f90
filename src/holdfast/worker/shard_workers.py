"""Run one worker for each shard of a client, in one process.

Every shard has its share of the slots, its own heartbeat and its own connections, so a shard that is dead or
frozen takes nothing from the others. It is tried again until it answers. A schedule and a message queue are
on one shard, which their name decides among all shards of the client, also if the worker serves only some.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, Self, TypeVar

from holdfast.client import Client
from holdfast.client.async_client import find_message_queue_shard, find_schedule_shard
from holdfast.definitions.consumers import Consumer
from holdfast.definitions.schedules import Schedule
from holdfast.errors import DatabaseError, SettingsError

T = TypeVar("T")
RETRY_PAUSE_S: Final = 2.0
_log = logging.getLogger("holdfast.worker")


class ShardWorker(Protocol):
    """The worker of one shard."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def run(self) -> None: ...

    def stop(self, *, graceful: bool = True) -> None: ...


# Creates the worker of a shard from its number, its slots, its schedules and its consumers.
WorkerFactory = Callable[[int, int, list[Schedule], list[Consumer[Any]]], ShardWorker]


class ShardWorkers:
    """The workers of some or all shards of a client."""

    def __init__(
        self,
        client: Client,
        numbers: Sequence[int],
        schedules: Sequence[Schedule],
        consumers: Sequence[Consumer[Any]],
        concurrency: int,
        create_worker: WorkerFactory,
    ) -> None:
        self._client = client
        self._schedules = schedules
        self._consumers = consumers
        self._create_worker = create_worker
        # At least one slot each; the first shards get the rest of the division.
        self._slots = {
            number: max(1, concurrency // len(numbers) + (index < concurrency % len(numbers)))
            for index, number in enumerate(numbers)
        }
        self._workers: dict[int, ShardWorker] = {}
        self._stopped = asyncio.Event()
        self._is_graceful = True

    async def run(self) -> None:
        """Serve all shards until `stop` is called, or until each of them has nothing left to do."""
        await asyncio.gather(*(self._serve_shard(number) for number in self._slots))

    def stop(self, *, graceful: bool) -> None:
        self._is_graceful = graceful
        self._stopped.set()
        for worker in self._workers.values():
            worker.stop(graceful=graceful)

    async def _serve_shard(self, number: int) -> None:
        while not self._stopped.is_set():
            try:
                schedules = await _select_mine(
                    self._schedules, lambda each: find_schedule_shard(self._client, each.name), number
                )
                consumers = await _select_mine(
                    self._consumers, lambda each: find_message_queue_shard(self._client, each.queue), number
                )
                worker = self._create_worker(number, self._slots[number], schedules, consumers)
                self._workers[number] = worker
                async with worker:
                    await worker.run()
            except SettingsError:
                raise
            except DatabaseError as error:
                _log.warning("Shard %s cannot be served and is tried again: %s", number, error)
            else:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_PAUSE_S):
                    await self._stopped.wait()


async def _select_mine(
    definitions: Iterable[T], find_shard: Callable[[T], Awaitable[int]], number: int
) -> list[T]:
    """Return the schedules or consumers of a shard: each of them is on one shard only."""
    mine: list[T] = []
    for each in definitions:
        with contextlib.suppress(DatabaseError):  # a shard where it might be does not answer
            if await find_shard(each) == number:
                mine.append(each)
    return mine
