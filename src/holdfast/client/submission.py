"""Submit jobs: the methods of `Client` that create work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, Unpack, overload

import msgspec

from holdfast.client.connections import ClientConnections
from holdfast.client.handles import JobHandle
from holdfast.client.jobs import JobOperations
from holdfast.client.submit_options import SubmitOptions, build_request_options
from holdfast.definitions.graphs import Graph
from holdfast.definitions.job_types import JobType, get_job_type, index_job_types
from holdfast.definitions.submit_requests import build_work_request
from holdfast.definitions.tasks import Call, Task
from holdfast.engine import caller_connection, jobs
from holdfast.errors import InvalidError
from holdfast.tracing import get_tracing

R = TypeVar("R")


class JobSubmission(JobOperations):
    """The methods of a client that submit jobs."""

    def __init__(self, connections: ClientConnections, job_types: Iterable[JobType[Any]] = ()) -> None:
        super().__init__(connections)
        self.job_types = index_job_types(job_types)

    @overload
    async def submit(
        self, work: Call[R], *, on: object = None, **options: Unpack[SubmitOptions]
    ) -> JobHandle[R]: ...
    @overload
    async def submit(
        self, work: Graph, *, on: object = None, **options: Unpack[SubmitOptions]
    ) -> JobHandle[Any]: ...
    async def submit(
        self, work: Call[Any] | Graph, *, on: object = None, **options: Unpack[SubmitOptions]
    ) -> JobHandle[Any]:
        """Submit a call or a graph and return a handle of the job.

        With `on=connection` the job becomes part of your open transaction: it exists if you commit. The
        connection may be one of asyncpg, psycopg, SQLAlchemy or Django.
        """
        request = self._encode_submit_request(work, options)
        if on is None:
            # Without a second context manager: this is the hot path.
            async with (await self._connections.open_database()).connection() as connection:
                submitted = await jobs.submit_standalone(connection, request)
        else:
            submitted = await caller_connection.submit_on_caller_connection(on, request)
        return self._create_job_handle(work, submitted)

    async def start_job(
        self,
        type: JobType[Any] | str,  # noqa: A002
        params: object,
        *,
        on: object = None,
        **options: Unpack[SubmitOptions],
    ) -> JobHandle[Any]:
        """Build the graph of a job type from its parameters and submit it."""
        job_type = get_job_type(self.job_types, type) if isinstance(type, str) else type
        return await self.submit(job_type(params), on=on, **options)

    async def submit_many(
        self, calls: Iterable[Call[R]], **options: Unpack[SubmitOptions]
    ) -> list[JobHandle[R]]:
        """Submit many calls in one transaction. All jobs get the same options."""
        calls = list(calls)
        if options.get("key") or options.get("unique"):
            raise InvalidError(
                "submit_many cannot give one key to many jobs.", fix="Submit each job by itself.", field="key"
            )
        shared = build_request_options(self._add_trace_label(calls[0], options) if calls else options)
        request = msgspec.json.encode([{**build_work_request(call), **shared} for call in calls])
        async with self._connections.connection() as connection:
            submitted = await jobs.submit_many(connection, request)
        return [self._create_job_handle(call, each) for call, each in zip(calls, submitted, strict=True)]

    def _encode_submit_request(self, work: Call[Any] | Graph, options: SubmitOptions) -> bytes:
        """Encode work and options as the JSON argument of the SQL function `submit`."""
        _check_submittable(work)
        shared = build_request_options(self._add_trace_label(work, options))
        return msgspec.json.encode({**build_work_request(work), **shared})

    def _add_trace_label(self, work: Call[Any] | Graph, options: SubmitOptions) -> SubmitOptions:
        """Add the current trace to the job's labels if tracing is on, so that workers continue the trace."""
        tracing = get_tracing(self._connections.settings.tracing)
        if tracing is None:
            return options
        name, queue = (work.type, None) if isinstance(work, Graph) else (work.task.name, work.task.queue)
        return {**options, "labels": tracing.add_trace_context(options.get("labels"), name, queue)}

    def _create_job_handle(self, work: Call[Any] | Graph, submitted: jobs.SubmitResult) -> JobHandle[Any]:
        return JobHandle(self, submitted.id, _get_result_type(work), created=submitted.created)


def _check_submittable(work: object) -> None:
    if isinstance(work, (Call, Graph)):
        return
    if isinstance(work, Task):
        raise InvalidError(
            f"submit needs a call, and got the task {work.name!r} itself.",
            fix=f"Call the task with its arguments: client.submit({work.name}(...)).",
            field="work",
        )
    raise InvalidError(
        f"submit needs a call of a task or a graph, got {type(work).__name__}.",
        fix="Decorate the function with @task and submit its call: client.submit(function(...)).",
        field="work",
    )


def _get_result_type(work: Call[Any] | Graph) -> Any:
    """Return the return type that the task's function declares."""
    if isinstance(work, Graph):
        return Any
    return work.task.hints.get("return", Any)
