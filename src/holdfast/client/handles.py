"""Handles of submitted jobs: the job's id and the methods that wait for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID

from holdfast.client.jobs import JobOperations
from holdfast.definitions import payloads
from holdfast.errors import TaskFailedError
from holdfast.model import Job, LogLine, TaskExplanation

R_co = TypeVar("R_co", covariant=True)


class JobHandle(Generic[R_co]):
    """A submitted job. `id` is its id; `created` is False if its key already belonged to a job.

    >>> from holdfast import Client, JobHandle, task
    >>> client = Client()
    >>> @task
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> async def main() -> None:
    ...     handle: JobHandle[int] = await client.submit(double(21))
    ...     print((await handle.get()).status)
    """

    def __init__(
        self,
        jobs: JobOperations,
        id: UUID,  # noqa: A002
        result_type: Any,
        *,
        created: bool,
    ) -> None:
        self.id = id
        self.created = created
        self._jobs = jobs
        self._result_type = result_type

    def __repr__(self) -> str:
        return f"JobHandle({self.id})"

    async def get(self) -> Job:
        """Return the job as it is now, with its tasks."""
        return await self._jobs.get(self.id)

    async def logs(self, *, after: int = 0, limit: int = 500, newest: bool = False) -> list[LogLine]:
        """Return log lines of the job's tasks, oldest first, from line number `after` on."""
        return await self._jobs.logs(self.id, after=after, limit=limit, newest=newest)

    async def cancel(self, *, reason: str | None = None) -> Job:
        """Cancel the job and return the changed job."""
        return await self._jobs.cancel(self.id, reason=reason)

    async def retry(
        self, *, from_tasks: Iterable[str] | None = None, delay: timedelta | float = timedelta(0)
    ) -> Job:
        """Run the failed and cancelled tasks of the job again, or the tasks in `from_tasks`."""
        return await self._jobs.retry(self.id, from_tasks=from_tasks, delay=delay)

    async def explain(self) -> list[TaskExplanation]:
        """Return the reasons why the job is not running."""
        return await self._jobs.explain(self.id)

    def watch(self, *, within: timedelta | float | None = None) -> AsyncIterator[Job]:
        """Yield the job now and after each change, until it has ended or `within` has passed."""
        return self._jobs.watch(self.id, within=within)

    async def result(self, *, within: timedelta | float | None = None) -> R_co:
        """Wait for the job and return its result.

        Raise TaskFailedError if the job did not succeed, and TimeoutError if `within` passes first.
        """
        job: Job | None = None
        async for current in self.watch(within=within):
            job = current
        if job is None or not job.ended:
            raise TimeoutError(f"job {self.id} has not ended within {within}")
        if job.status != "succeeded":
            raise _build_task_failed_error(job)
        value: R_co = payloads.convert_payload(job.output, self._result_type, what="result")
        return value


def _build_task_failed_error(job: Job) -> TaskFailedError:
    error = job.error
    if error is None:
        return TaskFailedError(f"Job {job.id} ended as {job.status}.", status=job.status)
    return TaskFailedError(
        f"Job {job.id} ended as {job.status}: {error.type}: {error.message}",
        status=job.status,
        error_type=error.type,
    )
