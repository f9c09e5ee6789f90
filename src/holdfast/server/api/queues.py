"""Queues of tasks, limits and workers over HTTP, for operators."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import catalogue, insight, limits, operate, outside
from holdfast.errors import InvalidError, NotFoundError
from holdfast.server.api.audit import OPERATING, operating
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.json_responses import ensure_exists, json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_name, parse_query
from holdfast.server.api.schedules import Changed

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Row = dict[str, Any]
_QUEUES: dict[str, Any] = {"tag": "queues", **OPERATING}
_LIMITS: dict[str, Any] = {"tag": "limits", **OPERATING}
_WORKERS: dict[str, Any] = {"tag": "workers", **OPERATING}


class Pause(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    why: Annotated[str, Meta(max_length=500)] | None = None


class ScaleQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    per_worker: Annotated[int, Meta(ge=1, le=10_000)] = 8


class Scale(msgspec.Struct, kw_only=True):
    workers: int


class NewLimit(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many at once and how many a second, for what fits queue and type, or for each key of it."""

    queue: Name | None = None
    type: Name | None = None
    per_key: bool = False
    max_running: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    rate: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    burst: Annotated[float, Meta(ge=1, le=1e6)] | None = None


class WorkersQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    within_s: Annotated[float, Meta(gt=0, le=31536000)] = 3600


class Command(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`drain`: finish what runs and end. `stop`: the same within the grace. null: take it back."""

    command: Literal["drain", "stop"] | None


class Heard(msgspec.Struct, kw_only=True):
    heard: bool


@api_operation("Queues of tasks and what waits in them", response=list[Row], **_QUEUES)
async def list_queues(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await operate.list_task_queues(connection))


@api_operation("One queue of tasks", response=Row, other_responses={404: "There is no such queue"}, **_QUEUES)
async def get_queue(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        rows = await operate.list_task_queues(connection, parse_path_name(request))
    return json_response(ensure_exists(rows[0] if rows else None, "queue"))


@api_operation("Claim nothing of a queue until it is resumed", body=Pause, status=204, **_QUEUES)
async def pause(request: Request) -> Response:
    name, wanted, caller = (
        parse_path_name(request),
        await parse_body(request, Pause),
        await identify_caller(request),
    )
    async with operating(request, "queue.pause", name, why=wanted.why) as connection:
        await limits.pause_queue(connection, name, why=wanted.why, by=caller.name)
    return Response(status_code=204)


@api_operation("Let a queue go on", response=Changed, **_QUEUES)
async def resume(request: Request) -> Response:
    name = parse_path_name(request)
    async with operating(request, "queue.resume", name) as connection:
        return json_response(Changed(changed=await limits.resume_queue(connection, name)))


@api_operation(
    "How many workers a queue could use, for autoscalers",
    query=ScaleQuery,
    response=Scale,
    tag="queues",
    access="service",
    scope="metrics",
)
async def scale(request: Request) -> Response:
    query = parse_query(request, ScaleQuery)
    async with transaction_as_caller(request) as connection:
        count = await operate.desired_workers(
            connection, parse_path_name(request), per_worker=query.per_worker
        )
    return json_response(Scale(workers=count))


@api_operation("Limits and how much of them is in use", response=list[Row], **_LIMITS)
async def list_limits(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await operate.list_limits(connection))


@api_operation("Make or change a limit", body=NewLimit, status=204, **_LIMITS)
async def put_limit(request: Request) -> Response:
    name, wanted = parse_path_name(request), await parse_body(request, NewLimit)
    if wanted.max_running is None and wanted.rate is None:
        raise InvalidError("A limit limits something.", fix="Give max_running or rate.", field="max_running")
    given = msgspec.structs.asdict(wanted)
    async with operating(request, "limit.put", name, **given) as connection:
        await limits.put_limit(connection, limits.Limit(name=name, **given))
    return Response(status_code=204)


@api_operation("Take a limit away", status=204, other_responses={404: "There is no such limit"}, **_LIMITS)
async def delete_limit(request: Request) -> Response:
    name = parse_path_name(request)
    async with operating(request, "limit.delete", name) as connection:
        if not await limits.delete_limit(connection, name):
            raise NotFoundError("There is no such limit.")
    return Response(status_code=204)


@api_operation("Workers seen lately", query=WorkersQuery, response=list[Row], **_WORKERS)
async def list_workers(request: Request) -> Response:
    query = parse_query(request, WorkersQuery)
    async with transaction_as_caller(request) as connection:
        return json_response(await operate.list_workers(connection, within_s=query.within_s))


@api_operation("What a worker runs now", response=list[Row], **_WORKERS)
async def list_worker_tasks(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await operate.list_worker_tasks(connection, parse_path_name(request)))


@api_operation(
    "Tell a worker to drain or stop",
    body=Command,
    response=Heard,
    other_responses={404: "There is no such worker"},
    **_WORKERS,
)
async def command(request: Request) -> Response:
    name, wanted = parse_path_name(request), await parse_body(request, Command)
    async with operating(request, "worker.command", name, command=wanted.command) as connection:
        return json_response(Heard(heard=await outside.set_worker_command(connection, name, wanted.command)))


@api_operation("The figures of the whole", response=Row, tag="figures", access="service", scope="metrics")
async def figures(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await insight.metrics(connection))


@api_operation("Types of tasks that workers have told of", response=list[Row], **_WORKERS)
async def list_task_types(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await catalogue.list_task_types(connection))


def routes() -> list[BaseRoute]:
    return [
        Route("/api/queues", list_queues, methods=["GET"]),
        Route("/api/queues/{name}", get_queue, methods=["GET"]),
        Route("/api/queues/{name}/pause", pause, methods=["POST"]),
        Route("/api/queues/{name}/resume", resume, methods=["POST"]),
        Route("/api/queues/{name}/scale", scale, methods=["GET"]),
        Route("/api/limits", list_limits, methods=["GET"]),
        Route("/api/limits/{name}", put_limit, methods=["PUT"]),
        Route("/api/limits/{name}", delete_limit, methods=["DELETE"]),
        Route("/api/workers", list_workers, methods=["GET"]),
        Route("/api/workers/{name}/tasks", list_worker_tasks, methods=["GET"]),
        Route("/api/workers/{name}/command", command, methods=["POST"]),
        Route("/api/figures", figures, methods=["GET"]),
        Route("/api/types", list_task_types, methods=["GET"]),
    ]
