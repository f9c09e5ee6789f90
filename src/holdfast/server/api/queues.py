"""Endpoints for task queues, for operators: list, read, pause, resume and worker demand."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import limits, queues, workers
from holdfast.engine.connection import Connection
from holdfast.server.api.audit import OPERATOR_ENDPOINT_OPTIONS, audited_transaction
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.json_responses import ensure_exists, json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_name, parse_query
from holdfast.server.api.schedules import StateChangeResult
from holdfast.server.api.services import get_services
from holdfast.server.api.shard_requests import SELECTED_SHARD_SCOPE_KEY

_QUEUE_ENDPOINT_OPTIONS: dict[str, Any] = {"tag": "queues", **OPERATOR_ENDPOINT_OPTIONS}


class PauseQueueRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to pause a queue. `reason` is shown to other operators.

    `allow_new` accepts a queue that has no tasks yet, for deployments that pause before the first task.
    """

    reason: Annotated[str, Meta(max_length=500)] | None = None
    allow_new: bool = False


class WorkerDemandQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of the worker demand of a queue.

    `per_worker` is the number of tasks that one worker runs at once.
    """

    per_worker: Annotated[int, Meta(ge=1, le=10_000)] = 10  # as a worker has by default


class WorkerDemand(msgspec.Struct, kw_only=True):
    """Worker demand of a queue: the number of workers that the queue can keep busy."""

    workers: int


@api_operation(
    "List task queues with their task counts",
    response=list[dict[str, Any]],
    **_QUEUE_ENDPOINT_OPTIONS,
)
async def list_queues(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await queues.list_task_queues(connection))


@api_operation(
    "Read a task queue",
    response=dict[str, Any],
    other_responses={404: "The queue does not exist"},
    **_QUEUE_ENDPOINT_OPTIONS,
)
async def get_queue(request: Request) -> Response:
    name = parse_path_name(request)
    async with transaction_as_caller(request) as connection:
        rows = await queues.list_task_queues(connection, name)
    return json_response(ensure_exists(rows[0] if rows else None, f"Queue {name!r}"))


@api_operation(
    "Pause a queue: start no more tasks until it is resumed",
    body=PauseQueueRequest,
    status=204,
    other_responses={404: "The queue does not exist"},
    **_QUEUE_ENDPOINT_OPTIONS,
)
async def pause_queue(request: Request) -> Response:
    name, body = parse_path_name(request), await parse_body(request, PauseQueueRequest)
    caller = await identify_caller(request)
    async with audited_transaction(request, "queue.pause", name, reason=body.reason) as connection:
        if not body.allow_new:
            fix = "Send allow_new: true for a queue that has no tasks yet."
            queues.check_queue_name(name, await _list_queue_names(request, connection), fix=fix)
        await limits.pause_queue(connection, name, reason=body.reason, by=caller.name)
    return Response(status_code=204)


async def _list_queue_names(request: Request, connection: Connection) -> list[str]:
    """Return the names of all queues. A request to all shards accepts what any of them knows."""
    shards = get_services(request).shards
    if shards is None or SELECTED_SHARD_SCOPE_KEY in request.scope:
        return await queues.list_queue_names(connection)
    answers, _ = await shards.router.ask_all(queues.list_queue_names)
    return [name for names in answers.values() for name in names]


@api_operation("Resume a queue", response=StateChangeResult, **_QUEUE_ENDPOINT_OPTIONS)
async def resume_queue(request: Request) -> Response:
    name = parse_path_name(request)
    async with audited_transaction(request, "queue.resume", name) as connection:
        return json_response(StateChangeResult(changed=await limits.resume_queue(connection, name)))


@api_operation(
    "Get the number of workers that a queue can keep busy, for autoscalers",
    query=WorkerDemandQuery,
    response=WorkerDemand,
    tag="queues",
    access="service",
    scope="metrics",
)
async def get_worker_demand(request: Request) -> Response:
    name, query = parse_path_name(request), parse_query(request, WorkerDemandQuery)
    async with transaction_as_caller(request) as connection:
        count = await workers.count_desired_workers(connection, name, per_worker=query.per_worker)
    return json_response(WorkerDemand(workers=count))


def build_queue_routes() -> list[BaseRoute]:
    return [
        Route("/api/queues", list_queues, methods=["GET"]),
        Route("/api/queues/{name}", get_queue, methods=["GET"]),
        Route("/api/queues/{name}/pause", pause_queue, methods=["POST"]),
        Route("/api/queues/{name}/resume", resume_queue, methods=["POST"]),
        Route("/api/queues/{name}/scale", get_worker_demand, methods=["GET"]),
    ]
