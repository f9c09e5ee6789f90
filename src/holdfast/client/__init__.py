"""The submitting side: put work in, look at it, wait for it, cancel it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any, TypeVar, Unpack, overload
from uuid import UUID

import msgspec

from holdfast import settings as settings_module
from holdfast.client.batches import Batches, BatchHandle
from holdfast.client.blocking import BlockingClient
from holdfast.client.files import Files
from holdfast.client.handles import JobHandle
from holdfast.client.ids import parse_id
from holdfast.client.job_watcher import Watcher
from holdfast.client.limits import Limits
from holdfast.client.messages.queues import Queues
from holdfast.client.schedules import Schedules
from holdfast.client.submit_options import ValidatedSubmitOptions, SubmitOptions, build_job_request
from holdfast.definitions.graphs import Graph
from holdfast.definitions.job_types import JobType, by_name, find
from holdfast.definitions.tasks import Call
from holdfast.engine import borrowed, embedded, insight, jobs
from holdfast.engine.connection import Database
from holdfast.engine.limits import pause_queue, resume_queue
from holdfast.engine.logs import read_logs
from holdfast.engine.search import search_jobs
from holdfast.errors import InvalidError, NotFoundError
from holdfast.model import ENDED, Job, JobPage, LogLine, Reason
from holdfast.settings import Secret, Settings
from holdfast.tracing import tracing_of

__all__ = ["BatchHandle", "Client", "JobHandle"]

R = TypeVar("R")
MOST_EXPLAINED = 20  # tasks of one job


class Client:
    """Holdfast for an application. Opens nothing until it is used.

    client = Client()                       # DATABASE_URL, else the embedded PostgreSQL
    job = await client.submit(screenshot("https://example.org"), key="shot:1")
    print(await job.result())
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        types: Iterable[JobType[Any]] = (),
    ) -> None:
        self.types = by_name(types)
        self._url = Secret(url) if url else None
        self._settings = settings
        self._database: Database | None = None
        self._server: embedded.Server | None = None
        self.queues = Queues(self)
        self.files = Files(self)
        self.schedules = Schedules(self)
        self.batches = Batches(self)
        self.limits = Limits(self)
        self._watcher = Watcher(self.open)
        self.blocking = BlockingClient(self)

    @property
    def settings(self) -> Settings:
        """What this client goes by: those it was given, else the environment's."""
        if self._settings is None:
            self._settings = settings_module.load()
        return self._settings

    async def open(self) -> Database:
        """The pool of connections, which the first call fills; `async with client:` closes it at the end."""
        if self._database is None:
            url = self._url
            if url is None:
                located = await asyncio.to_thread(embedded.locate, self.settings)
                url, self._server = located
            self._database = Database(url, self.settings)
        return self._database

    async def close(self) -> None:
        """Close all connections. The next call opens them again."""
        await self._watcher.close()
        database, self._database = self._database, None
        if database is not None:
            await database.close()
        if self._server is not None:
            self._server.release()
            self._server = None

    async def __aenter__(self) -> Client:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @overload
    async def submit(self, work: Call[R], *, on: object = None, **say: Unpack[SubmitOptions]) -> JobHandle[R]: ...
    @overload
    async def submit(self, work: Graph, *, on: object = None, **say: Unpack[SubmitOptions]) -> JobHandle[Any]: ...
    async def submit(
        self, work: Call[Any] | Graph, *, on: object = None, **say: Unpack[SubmitOptions]
    ) -> JobHandle[Any]:
        """Submit a call or a graph. With `on=` it is part of that connection's transaction."""
        body = self.body(work, say)
        if on is None:
            async with (await self.open()).connection() as connection:
                submitted = await jobs.submit_alone(connection, body)
        else:
            submitted = await borrowed.submit(on, body)
        return self.handle(work, submitted)

    async def start(
        self,
        type: JobType[Any] | str,  # noqa: A002
        params: object,
        *,
        on: object = None,
        **say: Unpack[SubmitOptions],
    ) -> JobHandle[Any]:
        """Build the graph of a job type from its parameters and submit it."""
        chosen = find(self.types, type) if isinstance(type, str) else type
        return await self.submit(chosen(params), on=on, **say)

    def body(self, work: Call[Any] | Graph, say: SubmitOptions) -> bytes:
        """What `submit` sends: the JSON that the SQL function reads."""
        return msgspec.json.encode(build_job_request(work, ValidatedSubmitOptions(**self._traced(work, say))))

    def _traced(self, work: Call[Any] | Graph, say: SubmitOptions) -> SubmitOptions:
        """With tracing on, the labels tell whoever runs the job where it comes from."""
        tracing = tracing_of(self.settings.tracing)
        if tracing is None:
            return say
        name, queue = (work.type, None) if isinstance(work, Graph) else (work.task.name, work.task.queue)
        return {**say, "labels": tracing.stamp(say.get("labels"), name, queue)}

    def handle(self, work: Call[Any] | Graph, submitted: jobs.Submitted) -> JobHandle[Any]:
        """What `submit` answers with."""
        return JobHandle(self, submitted.id, _returns(work), created=submitted.created)

    async def submit_many(self, calls: Iterable[Call[R]], **say: Unpack[SubmitOptions]) -> list[JobHandle[R]]:
        """Submit many calls in one transaction and few round trips."""
        calls = list(calls)
        if say.get("key") or say.get("unique"):
            raise InvalidError("One key cannot belong to many jobs.", field="key")
        options = ValidatedSubmitOptions(**(self._traced(calls[0], say) if calls else say))
        body = msgspec.json.encode([build_job_request(call, options) for call in calls])
        async with (await self.open()).connection() as connection:
            made = await jobs.submit_many(connection, body)
        return [self.handle(call, each) for call, each in zip(calls, made, strict=True)]

    async def get(self, job: UUID | str) -> Job:
        """A job with its tasks. NotFoundError when there is none, or none any more."""
        async with (await self.open()).connection() as connection:
            return _job(await jobs.get_job(connection, parse_id(job, "job")), job)

    async def logs(
        self, job: UUID | str, *, after: int = 0, limit: int = 500, newest: bool = False
    ) -> list[LogLine]:
        """What the tasks of a job said, oldest first: lines after number `after`, or the last ones."""
        async with (await self.open()).connection() as connection:
            return await read_logs(connection, parse_id(job, "job"), after=after, limit=limit, newest=newest)

    async def cancel(self, job: UUID | str, *, reason: str | None = None) -> Job:
        """Cancel a job. The job that comes back says what is true from now on."""
        async with (await self.open()).connection() as connection:
            await jobs.cancel_job(connection, parse_id(job, "job"), reason)
            return _job(await jobs.get_job(connection, parse_id(job, "job")), job)

    async def retry(
        self, job: UUID | str, *, from_tasks: Iterable[str] | None = None, delay: timedelta = timedelta(0)
    ) -> Job:
        """Run again what failed or was cancelled; or the named tasks and all that come after them."""
        names = None if from_tasks is None else list(from_tasks)
        async with (await self.open()).connection() as connection:
            await jobs.retry_job(connection, parse_id(job, "job"), from_tasks=names, delay=delay)
            return _job(await jobs.get_job(connection, parse_id(job, "job")), job)

    async def explain(self, job: UUID | str) -> list[Reason]:
        """Why is this not running? The reasons of each task that has not ended, or of all when all have."""
        found = await self.get(job)
        open_ = [task for task in found.tasks if task.status not in ENDED] or found.tasks
        async with (await self.open()).connection() as connection:
            tasks = [(task.id, task.name) for task in open_[:MOST_EXPLAINED]]
            return await insight.explain_tasks(connection, tasks)

    async def pause(self, queue: str, *, why: str | None = None, by: str | None = None) -> None:
        """Claim nothing of a queue of tasks until it is resumed. What runs goes on."""
        async with (await self.open()).connection() as connection:
            await pause_queue(connection, queue, why=why, by=by)

    async def resume(self, queue: str) -> bool:
        """False when it was not paused."""
        async with (await self.open()).connection() as connection:
            return await resume_queue(connection, queue)

    async def watch(self, job: UUID | str, *, within: timedelta | None = None) -> AsyncIterator[Job]:
        """The job now, and again after each change, until it has ended or `within` is over."""
        deadline = time.monotonic() + within.total_seconds() if within is not None else None
        seen: Job | None = None
        async with self._watcher.on(parse_id(job, "job")) as bell:
            while True:
                now = await self.get(job)
                if now != seen:
                    seen = now
                    yield now
                if now.ended or (deadline is not None and time.monotonic() >= deadline):
                    return
                await bell.wait(deadline)

    async def jobs(
        self, search: str = "", *, owner: str | None = None, before: UUID | None = None, limit: int = 50
    ) -> JobPage:
        """Jobs, newest first: `client.jobs("state:failed queue:browser since:1d")`.

        The search is that of the dashboard. `before=page.next` gives the page that follows.
        """
        async with (await self.open()).connection() as connection:
            page = await search_jobs(connection, search, before=before, limit=limit, owner=owner)
        rows = msgspec.convert(page.rows, list[Job])
        return JobPage(rows=rows, next=page.next, partly=page.partly)

    async def each_job(self, search: str = "", *, owner: str | None = None) -> AsyncIterator[Job]:
        """All that a search finds, page by page."""
        page = await self.jobs(search, owner=owner, limit=200)
        while True:
            for row in page.rows:
                yield row
            if page.next is None:
                return
            page = await self.jobs(search, owner=owner, before=page.next, limit=200)


def _job(found: dict[str, Any] | None, asked: UUID | str) -> Job:
    if found is None:
        raise NotFoundError(f"There is no job {asked}.", field="id")
    return msgspec.convert(found, Job)


def _returns(work: Call[Any] | Graph) -> Any:
    """The type that the result is turned into, as the task's function declares it."""
    if isinstance(work, Graph):
        return Any
    return work.task.hints.get("return", Any)
