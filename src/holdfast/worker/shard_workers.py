"""Run one worker for each shard of a client, in one process.

Every shard has its share of the slots, its own heartbeat and its own connections, so a shard that is dead or
frozen takes nothing from the others. It is tried again until it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self

from holdfast.client import Client
from holdfast.client.async_client import find_schedule_shard
from holdfast.definitions.schedules import Schedule
from holdfast.errors import DatabaseError, SettingsError

RETRY_PAUSE_S: Final = 2.0
_log = logging.getLogger("holdfast.worker")


class ShardWorker(Protocol):
    """The worker of one shard."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def run(self) -> None: ...

    def stop(self, *, graceful: bool = True) -> None: ...


# Creates the worker of a shard from its number, its slots and its schedules.
WorkerFactory = Callable[[int, int, Sequence[Schedule]], ShardWorker]


class ShardWorkers:
    """The workers of all shards of a client."""

    def __init__(
        self, client: Client, schedules: Sequence[Schedule], concurrency: int, create_worker: WorkerFactory
    ) -> None:
        self._client = client
        self._schedules = schedules
        self._create_worker = create_worker
        numbers = client.shard_numbers
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
                schedules = await self._find_schedules(number)
                worker = self._create_worker(number, self._slots[number], schedules)
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

    async def _find_schedules(self, number: int) -> list[Schedule]:
        """Return the schedules of a shard: each schedule runs on one shard only."""
        mine: list[Schedule] = []
        for schedule in self._schedules:
            with contextlib.suppress(DatabaseError):  # a shard where it might be does not answer
                if await find_schedule_shard(self._client, schedule.name) == number:
                    mine.append(schedule)
        return mine
