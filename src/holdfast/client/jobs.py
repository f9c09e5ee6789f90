"""Read and control jobs that were submitted: the methods of `Client` about one job or many."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from holdfast.client.connections import ClientConnections
from holdfast.definitions.ids import parse_id
from holdfast.definitions.validation import parse_duration
from holdfast.engine import explain as engine_explain
from holdfast.engine import jobs
from holdfast.engine.connection import Connection
from holdfast.engine.logs import read_logs
from holdfast.engine.search import search_jobs
from holdfast.errors import NotFoundError
from holdfast.model import ENDED_STATUSES, Job, JobPage, JobTask, LogLine, TaskExplanation, TaskStatus

MAX_EXPLAINED_TASKS = 20  # of one job
SEARCH_PAGE_ROWS = 200


class JobOperations:
    """The methods of a client that read and control jobs."""

    def __init__(self, connections: ClientConnections) -> None:
        self._connections = connections

    async def get(self, job: UUID | str) -> Job:
        """Return a job with its tasks. Raise NotFoundError if the job does not exist."""
        async with (await self._connections.for_id(job)).connection() as connection:
            return _build_job_from_row(await jobs.get_job(connection, parse_id(job, "job")), job)

    async def logs(
        self, job: UUID | str, *, after: int = 0, limit: int = 500, newest: bool = False
    ) -> list[LogLine]:
        """Return log lines of a job's tasks, oldest first.

        The lines follow line number `after`. With `newest=True` they are the last `limit` lines.
        """
        async with (await self._connections.for_id(job)).connection() as connection:
            return await read_logs(connection, parse_id(job, "job"), after=after, limit=limit, newest=newest)

    async def cancel(self, job: UUID | str, *, reason: str | None = None) -> Job:
        """Cancel a job and return the changed job. Running tasks are asked to stop."""
        async with (await self._connections.for_id(job)).connection() as connection:
            await jobs.cancel_job(connection, parse_id(job, "job"), reason)
            return _build_job_from_row(await jobs.get_job(connection, parse_id(job, "job")), job)

    async def retry(
        self,
        job: UUID | str,
        *,
        from_tasks: Iterable[str] | None = None,
        delay: timedelta | float = timedelta(0),
    ) -> Job:
        """Run the failed and cancelled tasks of a job again, after `delay`, and return the changed job.

        With `from_tasks`, run the named tasks and all tasks that depend on them.
        """
        pause = parse_duration(delay, "delay")
        names = None if from_tasks is None else list(from_tasks)
        async with (await self._connections.for_id(job)).connection() as connection:
            await jobs.retry_job(connection, parse_id(job, "job"), from_tasks=names, delay=pause)
            return _build_job_from_row(await jobs.get_job(connection, parse_id(job, "job")), job)

    async def explain(self, job: UUID | str) -> list[TaskExplanation]:
        """Return the reasons why the unfinished tasks of a job are not running.

        For a job that has ended, return the reasons for all of its tasks.
        """
        current = await self.get(job)
        tasks = [task for task in current.tasks if task.status not in ENDED_STATUSES] or current.tasks
        explanations: list[TaskExplanation] = []
        async with (await self._connections.for_id(job)).connection() as connection:
            for task in tasks[:MAX_EXPLAINED_TASKS]:
                row = await engine_explain.explain_task(connection, task.id)
                explanations += [
                    _build_task_explanation(task, row["status"], reason)
                    for reason in row.get("reasons") or ()
                ]
        return explanations

    async def watch(self, job: UUID | str, *, within: timedelta | float | None = None) -> AsyncIterator[Job]:
        """Yield the job now and after each change, until it has ended or `within` has passed."""
        deadline = None
        if within is not None:
            deadline = time.monotonic() + parse_duration(within, "within").total_seconds()
        previous: Job | None = None
        watcher = await (await self._connections.for_id(job)).open_watcher()
        async with watcher.watch(parse_id(job, "job")) as signal:
            while True:
                current = await self.get(job)
                if current != previous:
                    previous = current
                    yield current
                if current.ended or (deadline is not None and time.monotonic() >= deadline):
                    return
                await signal.wait(deadline)

    async def search_jobs(
        self, search: str = "", *, owner: str | None = None, before: UUID | None = None, limit: int = 50
    ) -> JobPage:
        """Search jobs, newest first: `client.search_jobs("state:failed queue:browser since:1d")`.

        The search text has the grammar of the dashboard. `before=page.next` returns the next page. A client
        with shards asks all of them; `page.missing_shards` names those that did not answer.
        """

        async def search_database(connection: Connection) -> JobPage:
            page = await search_jobs(connection, search, before=before, limit=limit, owner=owner)
            rows = msgspec.convert(page.rows, list[Job])
            return JobPage(rows=rows, next=page.next, truncated=page.truncated)

        if self._connections.shards is not None:
            pages, failures = await self._connections.shards.ask_all(search_database)
            return _merge_job_pages(list(pages.values()), limit, tuple(failures))
        async with self._connections.connection() as connection:
            return await search_database(connection)

    async def iterate_jobs(self, search: str = "", *, owner: str | None = None) -> AsyncIterator[Job]:
        """Yield all jobs that match a search, newest first, reading them page by page."""
        page = await self.search_jobs(search, owner=owner, limit=SEARCH_PAGE_ROWS)
        while True:
            for row in page.rows:
                yield row
            if page.next is None:
                return
            page = await self.search_jobs(search, owner=owner, before=page.next, limit=SEARCH_PAGE_ROWS)


def _merge_job_pages(pages: list[JobPage], limit: int, missing_shards: tuple[int, ...]) -> JobPage:
    """Merge the pages of several shards, newest first. Ids begin with the time of the submit.

    A shard with a next page may have more jobs older than its `next`. So the merged page ends at the newest
    `next`; older jobs of the other shards come with the next page.
    """
    rows = sorted((job for page in pages for job in page.rows), key=lambda job: job.id, reverse=True)
    end = max((page.next for page in pages if page.next is not None), default=None)
    if end is not None:
        rows = [job for job in rows if job.id >= end]
    return JobPage(
        rows=rows[:limit],
        next=rows[limit - 1].id if len(rows) > limit else end,
        truncated=any(page.truncated for page in pages),
        missing_shards=missing_shards,
    )


def _build_job_from_row(row: dict[str, Any] | None, job_id: UUID | str) -> Job:
    if row is None:
        raise NotFoundError(f"Job {job_id} does not exist.", field="id")
    return msgspec.convert(row, Job)


def _build_task_explanation(task: JobTask, status: TaskStatus, row: dict[str, Any]) -> TaskExplanation:
    details = {name: value for name, value in row.items() if name != "reason"}
    return TaskExplanation(
        task=task.name, task_id=task.id, status=status, reason=row["reason"], details=details
    )
