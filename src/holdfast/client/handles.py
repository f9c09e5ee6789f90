"""What `submit` answers with: the job's id, and ways to wait for it that know what it will return."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from holdfast.definitions import payloads
from holdfast.errors import TaskFailedError
from holdfast.model import Job, Reason

R_co = TypeVar("R_co", covariant=True)


class Watching(Protocol):
    """The part of the client that a handle needs."""

    async def get(self, job: UUID | str) -> Job: ...
    def watch(self, job: UUID | str, *, within: timedelta | None = None) -> AsyncIterator[Job]: ...
    async def cancel(self, job: UUID | str, *, reason: str | None = None) -> Job: ...
    async def retry(self, job: UUID | str, *, from_tasks: Iterable[str] | None = None) -> Job: ...
    async def explain(self, job: UUID | str) -> list[Reason]: ...


class JobHandle(Generic[R_co]):
    """A submitted job. `created` is False when the key already belonged to one."""

    def __init__(self, client: Watching, id: UUID, returns: Any, *, created: bool) -> None:  # noqa: A002
        self.id = id
        self.created = created
        self._client = client
        self._returns = returns

    def __repr__(self) -> str:
        return f"JobHandle({self.id})"

    async def get(self) -> Job:
        """The job now, with its tasks."""
        return await self._client.get(self.id)

    async def cancel(self, *, reason: str | None = None) -> Job:
        """Cancel it. The job that comes back says what is true from now on."""
        return await self._client.cancel(self.id, reason=reason)

    async def retry(self, *, from_tasks: Iterable[str] | None = None) -> Job:
        """Run again what failed or was cancelled; or the named tasks and all that come after them."""
        return await self._client.retry(self.id, from_tasks=from_tasks)

    async def explain(self) -> list[Reason]:
        """Why is this not running?"""
        return await self._client.explain(self.id)

    def watch(self, *, within: timedelta | None = None) -> AsyncIterator[Job]:
        """The job now, and again after each change, until it has ended or `within` is over."""
        return self._client.watch(self.id, within=within)

    async def result(self, *, within: timedelta | None = None) -> R_co:
        """What the task returned. TaskFailedError if it did not succeed, TimeoutError after `within`."""
        job: Job | None = None
        async for seen in self.watch(within=within):
            job = seen
        if job is None or not job.ended:
            raise TimeoutError(f"job {self.id} has not ended within {within}")
        if job.status != "succeeded":
            raise _failure(job)
        value: R_co = payloads.from_json(job.output, self._returns, what="result")
        return value


def _failure(job: Job) -> TaskFailedError:
    error = job.error
    if error is None:
        return TaskFailedError(f"Job {job.id} ended as {job.status}.", status=job.status)
    return TaskFailedError(
        f"Job {job.id} ended as {job.status}: {error.type}: {error.message}",
        status=job.status,
        error_type=error.type,
    )
