"""`client.batches`: jobs that are counted together, with one job that runs after all of them have ended.

A batch accepts jobs while it is open. Leaving an `async with` block closes it. Leaving the block with an
exception does not, so that the follow-up job never runs after half of the work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterable
from datetime import timedelta
from typing import Any, TypeVar, Unpack
from uuid import UUID

import msgspec

from holdfast.client.connections import ClientConnections
from holdfast.client.handles import JobHandle
from holdfast.client.submission import JobSubmission
from holdfast.client.submit_options import SubmitOptions
from holdfast.definitions.graphs import Graph
from holdfast.definitions.ids import parse_id
from holdfast.definitions.submit_requests import build_work_request
from holdfast.definitions.tasks import Call
from holdfast.definitions.validation import parse_duration
from holdfast.engine import jobs
from holdfast.errors import InvalidError, NotFoundError
from holdfast.model import Batch

R = TypeVar("R")
BATCH_POLL_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 1.0)


class BatchHandle:
    """A handle of a batch, which accepts jobs until you close the batch.

    >>> from holdfast import BatchHandle, Client, task
    >>> client = Client()
    >>> @task
    ... def export(page: int) -> int:
    ...     return page
    >>> async def main() -> None:
    ...     batch: BatchHandle = await client.batches.open("pages")
    ...     await batch.submit_many(export(page) for page in range(3))
    ...     print((await batch.close()).total)
    """

    def __init__(self, connections: ClientConnections, submission: JobSubmission, id: UUID) -> None:  # noqa: A002
        self.id = id
        self._connections = connections
        self._submission = submission

    def __repr__(self) -> str:
        return f"BatchHandle({self.id})"

    async def submit(
        self, work: Call[R], *, on: object = None, **options: Unpack[SubmitOptions]
    ) -> JobHandle[R]:
        """Submit a job as part of the batch."""
        return await self._submission.submit(work, on=on, **_add_batch_option(self.id, options))

    async def submit_many(
        self, calls: Iterable[Call[R]], **options: Unpack[SubmitOptions]
    ) -> list[JobHandle[R]]:
        """Submit many jobs that belong to the batch, in one transaction."""
        return await self._submission.submit_many(calls, **_add_batch_option(self.id, options))

    async def close(self) -> Batch:
        """Close the batch for new jobs. The follow-up job is submitted when the last job has ended."""
        async with (await self._connections.for_id(self.id)).connection() as connection:
            return msgspec.convert(await jobs.close_batch(connection, self.id), Batch)

    async def get(self) -> Batch:
        """Return the batch with the counts of its jobs."""
        async with (await self._connections.for_id(self.id)).connection() as connection:
            return _build_batch_from_row(await jobs.get_batch(connection, self.id), self.id)

    async def wait(self, *, within: timedelta | float | None = None) -> Batch:
        """Wait until the batch is closed and all its jobs have ended. Raise TimeoutError after `within`."""
        deadline = None
        if within is not None:
            deadline = time.monotonic() + parse_duration(within, "within").total_seconds()
        polls = 0
        while (batch := await self.get()).finished_at is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"batch {self.id} has not ended within {within}")
            await asyncio.sleep(BATCH_POLL_PAUSES_S[min(polls, len(BATCH_POLL_PAUSES_S) - 1)])
            polls += 1
        return batch

    async def cancel(self, *, reason: str | None = None) -> int:
        """Cancel the unfinished jobs of the batch and return their number."""
        async with (await self._connections.for_id(self.id)).connection() as connection:
            return await jobs.cancel_all_jobs(connection, {"batch": str(self.id)}, reason)

    async def __aenter__(self) -> BatchHandle:
        return self

    async def __aexit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None:
            await self.close()


class PendingBatch:
    """A batch that is created when you `await` it or enter it with `async with`."""

    def __init__(
        self,
        connections: ClientConnections,
        submission: JobSubmission,
        request: dict[str, Any],
    ) -> None:
        self._connections = connections
        self._submission = submission
        self._request = request
        self._batch: BatchHandle | None = None

    def __await__(self) -> Generator[Any, None, BatchHandle]:
        return self.create().__await__()

    async def create(self) -> BatchHandle:
        """Create the batch in the database and return its handle."""
        connections = await self._connections.for_submit({"owner": self._request.get("owner")})
        async with connections.connection() as connection:
            batch_id = await jobs.open_batch(connection, **self._request)
        return BatchHandle(self._connections, self._submission, batch_id)

    async def __aenter__(self) -> BatchHandle:
        self._batch = await self.create()
        return self._batch

    async def __aexit__(self, *error: Any) -> None:
        if self._batch is not None:
            await self._batch.__aexit__(*error)


class Batches:
    """`client.batches`: create batches of jobs and read their progress."""

    def __init__(self, connections: ClientConnections, submission: JobSubmission) -> None:
        self._connections = connections
        self._submission = submission

    def open(
        self, name: str | None = None, *, then: Call[Any] | Graph | None = None, owner: str | None = None
    ) -> PendingBatch:
        """Create a batch: `async with client.batches.open("pages", then=bind()) as batch`.

        `then` is submitted once, after the batch was closed and its last job has ended.
        """
        callback = None if then is None else build_work_request(then)
        request = {"name": name, "callback": callback, "owner": owner}
        return PendingBatch(self._connections, self._submission, request)

    def handle(self, batch: UUID | str) -> BatchHandle:
        """Return a handle of an existing batch. Nothing is sent to the database."""
        return BatchHandle(self._connections, self._submission, parse_id(batch, "batch"))

    async def get(self, batch: UUID | str) -> Batch:
        """Return a batch with the counts of its jobs. Raise NotFoundError if the batch does not exist."""
        async with self._connections.connection() as connection:
            return _build_batch_from_row(await jobs.get_batch(connection, parse_id(batch, "batch")), batch)


def _build_batch_from_row(row: dict[str, Any] | None, batch_id: UUID | str) -> Batch:
    if row is None:
        raise NotFoundError(f"Batch {batch_id} does not exist.", field="id")
    return msgspec.convert(row, Batch)


def _add_batch_option(batch_id: UUID, options: SubmitOptions) -> SubmitOptions:
    if options.get("batch") not in (None, batch_id):
        raise InvalidError(
            f"batch= cannot be set, because the job is added to batch {batch_id}.",
            fix="Leave out batch=, or submit with the client.",
            field="batch",
        )
    return {**options, "batch": batch_id}
