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
from holdfast.server.api.bodies import answer, body_of, found, name_in, query_of
from holdfast.server.api.identity import acting, identify
from holdfast.server.api.operating import OPERATING, operating
from holdfast.server.api.operations import operation
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


@operation("Queues of tasks and what waits in them", answer=list[Row], **_QUEUES)
async def list_queues(request: Request) -> Response:
    async with acting(request) as connection:
        return answer(await operate.task_queues(connection))


@operation("One queue of tasks", answer=Row, others={404: "There is no such queue"}, **_QUEUES)
async def get_queue(request: Request) -> Response:
    async with acting(request) as connection:
        rows = await operate.task_queues(connection, name_in(request))
    return answer(found(rows[0] if rows else None, "queue"))


@operation("Claim nothing of a queue until it is resumed", body=Pause, status=204, **_QUEUES)
async def pause(request: Request) -> Response:
    name, wanted, caller = name_in(request), await body_of(request, Pause), await identify(request)
    async with operating(request, "queue.pause", name, why=wanted.why) as connection:
        await limits.pause_queue(connection, name, why=wanted.why, by=caller.name)
    return Response(status_code=204)


@operation("Let a queue go on", answer=Changed, **_QUEUES)
async def resume(request: Request) -> Response:
    name = name_in(request)
    async with operating(request, "queue.resume", name) as connection:
        return answer(Changed(changed=await limits.resume_queue(connection, name)))


@operation(
    "How many workers a queue could use, for autoscalers",
    query=ScaleQuery,
    answer=Scale,
    tag="queues",
    access="service",
    scope="metrics",
)
async def scale(request: Request) -> Response:
    query = query_of(request, ScaleQuery)
    async with acting(request) as connection:
        count = await operate.desired_workers(connection, name_in(request), per_worker=query.per_worker)
    return answer(Scale(workers=count))


@operation("Limits and how much of them is in use", answer=list[Row], **_LIMITS)
async def list_limits(request: Request) -> Response:
    async with acting(request) as connection:
        return answer(await operate.list_limits(connection))


@operation("Make or change a limit", body=NewLimit, status=204, **_LIMITS)
async def put_limit(request: Request) -> Response:
    name, wanted = name_in(request), await body_of(request, NewLimit)
    if wanted.max_running is None and wanted.rate is None:
        raise InvalidError("A limit limits something.", fix="Give max_running or rate.", field="max_running")
    given = msgspec.structs.asdict(wanted)
    async with operating(request, "limit.put", name, **given) as connection:
        await limits.put_limit(connection, limits.Limit(name=name, **given))
    return Response(status_code=204)


@operation("Take a limit away", status=204, others={404: "There is no such limit"}, **_LIMITS)
async def delete_limit(request: Request) -> Response:
    name = name_in(request)
    async with operating(request, "limit.delete", name) as connection:
        if not await limits.remove_limit(connection, name):
            raise NotFoundError("There is no such limit.")
    return Response(status_code=204)


@operation("Workers seen lately", query=WorkersQuery, answer=list[Row], **_WORKERS)
async def list_workers(request: Request) -> Response:
    query = query_of(request, WorkersQuery)
    async with acting(request) as connection:
        return answer(await operate.list_workers(connection, within_s=query.within_s))


@operation("What a worker runs now", answer=list[Row], **_WORKERS)
async def worker_tasks(request: Request) -> Response:
    async with acting(request) as connection:
        return answer(await operate.worker_tasks(connection, name_in(request)))


@operation(
    "Tell a worker to drain or stop",
    body=Command,
    answer=Heard,
    others={404: "There is no such worker"},
    **_WORKERS,
)
async def command(request: Request) -> Response:
    name, wanted = name_in(request), await body_of(request, Command)
    async with operating(request, "worker.command", name, command=wanted.command) as connection:
        return answer(Heard(heard=await outside.command_worker(connection, name, wanted.command)))


@operation("The figures of the whole", answer=Row, tag="figures", access="service", scope="metrics")
async def figures(request: Request) -> Response:
    async with acting(request) as connection:
        return answer(await insight.metrics(connection))


@operation("Types of tasks that workers have told of", answer=list[Row], **_WORKERS)
async def list_types(request: Request) -> Response:
    async with acting(request) as connection:
        return answer(await catalogue.list_types(connection))


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
        Route("/api/workers/{name}/tasks", worker_tasks, methods=["GET"]),
        Route("/api/workers/{name}/command", command, methods=["POST"]),
        Route("/api/figures", figures, methods=["GET"]),
        Route("/api/types", list_types, methods=["GET"]),
    ]
