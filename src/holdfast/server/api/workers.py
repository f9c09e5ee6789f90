"""Endpoints for workers and their task types, for operators."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import leases, task_types, workers
from holdfast.server.api.audit import OPERATOR_ENDPOINT_OPTIONS, audited_transaction
from holdfast.server.api.identity import transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_name, parse_query

_WORKER_ENDPOINT_OPTIONS: dict[str, Any] = {"tag": "workers", **OPERATOR_ENDPOINT_OPTIONS}


class WorkerListQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of a list of workers.

    `within_s` is the maximum age of the last heartbeat, in seconds.
    """

    within_s: Annotated[float, Meta(gt=0, le=31536000)] = 3600


class WorkerCommandRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to send a command to a worker.

    `drain`: finish the running tasks, then exit. `stop`: finish the running tasks within the grace period,
    then exit. null: withdraw the last command.
    """

    command: Literal["drain", "stop"] | None


class WorkerCommandResult(msgspec.Struct, kw_only=True):
    """Result of sending a command to a worker.

    `alive` is false if the worker has stopped or has sent no heartbeat for two minutes.
    """

    alive: bool


@api_operation(
    "List workers with a recent heartbeat",
    query=WorkerListQuery,
    response=list[dict[str, Any]],
    **_WORKER_ENDPOINT_OPTIONS,
)
async def list_workers(request: Request) -> Response:
    query = parse_query(request, WorkerListQuery)
    async with transaction_as_caller(request) as connection:
        return json_response(await workers.list_workers(connection, within_s=query.within_s))


@api_operation(
    "List the tasks that a worker is running", response=list[dict[str, Any]], **_WORKER_ENDPOINT_OPTIONS
)
async def list_running_tasks_of_worker(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await workers.list_running_tasks_of_worker(connection, parse_path_name(request)))


@api_operation(
    "Send a command to a worker: drain or stop",
    body=WorkerCommandRequest,
    response=WorkerCommandResult,
    other_responses={404: "The worker does not exist"},
    **_WORKER_ENDPOINT_OPTIONS,
)
async def send_worker_command(request: Request) -> Response:
    name, body = parse_path_name(request), await parse_body(request, WorkerCommandRequest)
    async with audited_transaction(request, "worker.command", name, command=body.command) as connection:
        alive = await leases.set_worker_command(connection, name, body.command)
    return json_response(WorkerCommandResult(alive=alive))


@api_operation(
    "List the task types that workers registered", response=list[dict[str, Any]], **_WORKER_ENDPOINT_OPTIONS
)
async def list_task_types(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await task_types.list_task_types(connection))


def build_worker_routes() -> list[BaseRoute]:
    return [
        Route("/api/workers", list_workers, methods=["GET"]),
        Route("/api/workers/{name}/tasks", list_running_tasks_of_worker, methods=["GET"]),
        Route("/api/workers/{name}/command", send_worker_command, methods=["POST"]),
        Route("/api/task-types", list_task_types, methods=["GET"]),
    ]
