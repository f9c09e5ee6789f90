"""Batches: jobs that are counted together, with one job that follows when all of them have ended.

    async with client.batches.open("export 500 documents", then=tell(user)) as batch:
        await batch.submit_many(export(document) for document in documents)

A batch takes jobs while it is open. Leaving the block closes it; leaving it by an error does not, so that
what follows never follows half of the work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, Unpack
from uuid import UUID

import msgspec

from holdfast.client.bodies import Say
from holdfast.client.handles import JobHandle
from holdfast.client.ids import uuid_of
from holdfast.definitions.graphs import Graph
from holdfast.definitions.submit_body import work_body
from holdfast.definitions.tasks import Call
from holdfast.engine import jobs
from holdfast.errors import InvalidError, NotFoundError
from holdfast.model import Batch

if TYPE_CHECKING:
    from holdfast.client import Client

R = TypeVar("R")
LOOKS = (0.05, 0.1, 0.2, 0.4, 1.0)


class BatchHandle:
    """A batch: jobs go in until it is closed."""

    def __init__(self, client: Client, id: UUID) -> None:  # noqa: A002
        self.id = id
        self._client = client

    def __repr__(self) -> str:
        return f"BatchHandle({self.id})"

    async def submit(self, work: Call[R], *, on: object = None, **say: Unpack[Say]) -> JobHandle[R]:
        """Submit a job that belongs to the batch."""
        return await self._client.submit(work, on=on, **_with(self.id, say))

    async def submit_many(self, calls: Iterable[Call[R]], **say: Unpack[Say]) -> list[JobHandle[R]]:
        """Submit many at once."""
        return await self._client.submit_many(calls, **_with(self.id, say))

    async def close(self) -> Batch:
        """No more jobs. What follows is submitted after the last of them, at once if there is none left."""
        async with (await self._client.open()).connection() as connection:
            return msgspec.convert(await jobs.close_batch(connection, self.id), Batch)

    async def get(self) -> Batch:
        """How many jobs there are, and how many have ended."""
        return await self._client.batches.get(self.id)

    async def wait(self, *, within: timedelta | None = None) -> Batch:
        """Until all jobs of a closed batch have ended. TimeoutError after `within`."""
        deadline = None if within is None else time.monotonic() + within.total_seconds()
        looks = 0
        while (seen := await self.get()).finished_at is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"batch {self.id} has not ended within {within}")
            await asyncio.sleep(LOOKS[min(looks, len(LOOKS) - 1)])
            looks += 1
        return seen

    async def cancel(self, *, reason: str | None = None) -> int:
        """Cancel all jobs of the batch that have not ended; how many there were."""
        async with (await self._client.open()).connection() as connection:
            return await jobs.cancel_all(connection, {"batch": str(self.id)}, reason)

    async def __aenter__(self) -> BatchHandle:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()


class Opening:
    """A batch to be: `await` it, or enter it with `async with`."""

    def __init__(
        self, client: Client, name: str | None, then: Call[Any] | Graph | None, owner: str | None
    ) -> None:
        self._client = client
        self._name = name
        self._then = None if then is None else work_body(then)
        self._owner = owner
        self._batch: BatchHandle | None = None

    def __await__(self) -> Generator[Any, None, BatchHandle]:
        return self._open().__await__()

    async def _open(self) -> BatchHandle:
        async with (await self._client.open()).connection() as connection:
            made = await jobs.open_batch(connection, self._name, callback=self._then, owner=self._owner)
        return BatchHandle(self._client, made)

    async def __aenter__(self) -> BatchHandle:
        self._batch = await self._open()
        return self._batch

    async def __aexit__(self, *error: Any) -> None:
        if self._batch is not None:
            await self._batch.__aexit__(*error)


class Batches:
    """Jobs that are counted together."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def open(
        self, name: str | None = None, *, then: Call[Any] | Graph | None = None, owner: str | None = None
    ) -> Opening:
        """A new batch. `then` is submitted once, when it is closed and its last job has ended."""
        return Opening(self._client, name, then, owner)

    def handle(self, batch: UUID | str) -> BatchHandle:
        """A batch that is there already, by its id."""
        return BatchHandle(self._client, uuid_of(batch, "batch"))

    async def get(self, batch: UUID | str) -> Batch:
        """How many jobs there are, and how many have ended."""
        async with (await self._client.open()).connection() as connection:
            found = await jobs.get_batch(connection, uuid_of(batch, "batch"))
        if found is None:
            raise NotFoundError(f"There is no batch {batch}.", field="id")
        return msgspec.convert(found, Batch)


def _with(batch: UUID, say: Say) -> Say:
    if say.get("batch") not in (None, batch):
        raise InvalidError("A job belongs to one batch.", field="batch")
    return {**say, "batch": batch}
