"""Submit jobs: the methods of `Client` that create work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, Unpack, overload

import msgspec

from holdfast.client.connections import ClientConnections
from holdfast.client.handles import JobHandle
from holdfast.client.jobs import JobOperations
from holdfast.client.shard_routing import get_routing_key
from holdfast.client.submit_options import SubmitOptions, build_submit_options
from holdfast.definitions.graphs import Graph
from holdfast.definitions.job_types import JobType, get_job_type, index_job_types
from holdfast.definitions.submit_requests import build_uniform_request, build_work_request
from holdfast.definitions.tasks import Call, build_not_a_call_error
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
        body = self._build_submit_request(work, options)
        request = msgspec.json.encode(body)
        if on is None:
            connections = self._connections
            if connections.shards is not None:
                connections = await connections.for_submit(body)
            # Without a second context manager: this is the hot path.
            async with (await connections.open_database()).connection() as connection:
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
        """Submit many calls in one transaction.

        The options apply to all jobs. Options of one call come from the call itself and take precedence:
        `submit_many(page_title(url).options(key=url) for url in urls)`. A client with shards submits the
        calls of each shard in one transaction.
        """
        calls = list(calls)
        for call in calls:
            _check_submittable(call)
        for name in ("key", "unique"):
            if options.get(name):
                raise InvalidError(
                    f"submit_many cannot give one {name} to many jobs.",
                    fix=f"Give each call its own: submit_many(my_task(x).options({name}=...) for x in ...).",
                    field=name,
                )
        shared = build_submit_options(self._add_trace_label(calls[0], options) if calls else options)
        uniform = build_uniform_request(calls, shared) if jobs.accepts_uniform_submit(shared) else None
        if uniform is not None:
            return await self._submit_uniform(calls[0], *uniform)
        requests = [build_work_request(call, shared) for call in calls]
        if self._connections.shards is not None:
            submitted = await self._submit_to_shards(requests)
        else:
            async with self._connections.connection() as connection:
                submitted = await jobs.submit_many(connection, requests)
        return [self._create_job_handle(call, each) for call, each in zip(calls, submitted, strict=True)]

    async def _submit_uniform(
        self, call: Call[R], options: dict[str, Any], args_of_calls: list[str]
    ) -> list[JobHandle[R]]:
        """Submit calls of one task with the same options, which have the same shard."""
        connections = self._connections
        if connections.shards is not None:
            connections = await connections.for_submit(options)
        async with connections.connection() as connection:
            ids = await jobs.submit_uniform(connection, options, args_of_calls)
        result_type = _get_result_type(call)
        return [JobHandle(self, job_id, result_type, created=True) for job_id in ids]

    async def _submit_to_shards(self, requests: list[dict[str, Any]]) -> list[jobs.SubmitResult]:
        """Submit each request to its shard, with one transaction for each shard.

        Requests that may go anywhere go to one shard together.
        """
        anywhere: ClientConnections | None = None
        numbers_by_shard: dict[ClientConnections, list[int]] = {}
        for number, request in enumerate(requests):
            if not request.get("batch") and get_routing_key(request) is None:
                anywhere = anywhere or await self._connections.for_submit(request)
                connections = anywhere
            else:
                connections = await self._connections.for_submit(request)
            numbers_by_shard.setdefault(connections, []).append(number)
        submitted: dict[int, jobs.SubmitResult] = {}
        for connections, numbers in numbers_by_shard.items():
            of_shard = [requests[number] for number in numbers]
            async with connections.connection() as connection:
                submitted.update(zip(numbers, await jobs.submit_many(connection, of_shard), strict=True))
        return [submitted[number] for number in range(len(requests))]

    def _build_submit_request(self, work: Call[Any] | Graph, options: SubmitOptions) -> dict[str, Any]:
        """Build the argument of the SQL function `submit` from work and options."""
        _check_submittable(work)
        shared = build_submit_options(self._add_trace_label(work, options))
        return build_work_request(work, shared)

    def _add_trace_label(self, work: Call[Any] | Graph, options: SubmitOptions) -> SubmitOptions:
        """Add the current trace to the job's labels if tracing is on, so that workers continue the trace."""
        tracing = get_tracing(self._connections.settings.tracing)
        if tracing is None:
            return options
        if isinstance(work, Graph):
            name, queue = work.type, None
        else:
            name, queue = work.task.name, work.adjusted_task.queue
        return {**options, "labels": tracing.add_trace_context(options.get("labels"), name, queue)}

    def _create_job_handle(self, work: Call[Any] | Graph, submitted: jobs.SubmitResult) -> JobHandle[Any]:
        return JobHandle(self, submitted.id, _get_result_type(work), created=submitted.created)


def _check_submittable(work: object) -> None:
    if not isinstance(work, (Call, Graph)):
        raise build_not_a_call_error("client.submit", work)


def _get_result_type(work: Call[Any] | Graph) -> Any:
    """Return the return type that the task's function declares."""
    if isinstance(work, Graph):
        return Any
    return work.task.hints.get("return", Any)
