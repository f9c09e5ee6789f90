"""Endpoints for schedules, for operators: create, read, delete, pause, resume, run and preview."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import schedules
from holdfast.errors import InvalidError, NotFoundError
from holdfast.model import StoredSchedule
from holdfast.server.api.audit import OPERATOR_ENDPOINT_OPTIONS, audited_transaction
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.jobs import AcceptedJob
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_name, parse_query

NonEmptyName = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
_SCHEDULE_ENDPOINT_OPTIONS: dict[str, Any] = {"tag": "schedules", **OPERATOR_ENDPOINT_OPTIONS}
_SCHEDULE_NOT_FOUND_RESPONSE = {404: "The schedule does not exist"}


class PutScheduleRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to create or replace a schedule.

    Set either `cron` or `every_s`. `job` is the job to submit, in the format of POST /api/jobs. `missed` is
    the policy for runs that were missed while no worker was running: `skip` them, run once (`coalesce`), or
    run all of them (`catch_up`), but at most `max_catch_up`.
    """

    job: dict[str, Any]
    cron: Annotated[str, Meta(max_length=200)] | None = None
    every_s: Annotated[float, Meta(gt=0, le=315360000)] | None = None
    timezone: Annotated[str, Meta(max_length=100)] = "UTC"
    missed: Literal["skip", "coalesce", "catch_up"] = "coalesce"
    max_catch_up: Annotated[int, Meta(ge=1, le=1000)] | None = None
    owner: NonEmptyName | None = None


class ScheduleListQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of a list of schedules.

    `after` is the name of the last schedule of the previous page.
    """

    owner: NonEmptyName | None = None
    after: NonEmptyName | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


class SchedulePreviewQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters for previewing a schedule. `count` is the number of run times to return."""

    count: Annotated[int, Meta(ge=1, le=100)] = 10


class StateChangeResult(msgspec.Struct, kw_only=True):
    """Result of pausing or resuming. `changed` is false if the state was as requested before."""

    changed: bool


@api_operation(
    "List schedules", query=ScheduleListQuery, response=list[StoredSchedule], **_SCHEDULE_ENDPOINT_OPTIONS
)
async def list_schedules(request: Request) -> Response:
    query = parse_query(request, ScheduleListQuery)
    async with transaction_as_caller(request) as connection:
        page = await schedules.list_schedules(
            connection, owner=query.owner, after=query.after, limit=query.limit
        )
    return json_response(page)


@api_operation(
    "Create or replace a schedule",
    body=PutScheduleRequest,
    response=StoredSchedule,
    **_SCHEDULE_ENDPOINT_OPTIONS,
)
async def put_schedule(request: Request) -> Response:
    name, body = parse_path_name(request), await parse_body(request, PutScheduleRequest)
    if (body.cron is None) == (body.every_s is None):
        raise InvalidError("A schedule needs either cron or every_s.", fix="Set one of them.", field="cron")
    schedule = {**msgspec.structs.asdict(body), "name": name}
    async with audited_transaction(
        request, "schedule.put", name, cron=body.cron, every_s=body.every_s
    ) as connection:
        return json_response(await schedules.put_schedule(connection, schedule))


@api_operation(
    "Read a schedule",
    response=StoredSchedule,
    other_responses=_SCHEDULE_NOT_FOUND_RESPONSE,
    **_SCHEDULE_ENDPOINT_OPTIONS,
)
async def get_schedule(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await schedules.get_schedule(connection, parse_path_name(request)))


@api_operation(
    "Delete a schedule",
    status=204,
    other_responses=_SCHEDULE_NOT_FOUND_RESPONSE,
    **_SCHEDULE_ENDPOINT_OPTIONS,
)
async def delete_schedule(request: Request) -> Response:
    name = parse_path_name(request)
    async with audited_transaction(request, "schedule.delete", name) as connection:
        if not await schedules.delete_schedule(connection, name):
            raise NotFoundError(f"Schedule {name!r} does not exist.")
    return Response(status_code=204)


@api_operation(
    "Pause a schedule",
    response=StateChangeResult,
    other_responses=_SCHEDULE_NOT_FOUND_RESPONSE,
    **_SCHEDULE_ENDPOINT_OPTIONS,
)
async def pause_schedule(request: Request) -> Response:
    name, caller = parse_path_name(request), await identify_caller(request)
    async with audited_transaction(request, "schedule.pause", name) as connection:
        changed = await schedules.pause_schedule(connection, name, caller.name)
    return json_response(StateChangeResult(changed=changed))


@api_operation(
    "Resume a schedule",
    response=StateChangeResult,
    other_responses=_SCHEDULE_NOT_FOUND_RESPONSE,
    **_SCHEDULE_ENDPOINT_OPTIONS,
)
async def resume_schedule(request: Request) -> Response:
    name = parse_path_name(request)
    async with audited_transaction(request, "schedule.resume", name) as connection:
        return json_response(StateChangeResult(changed=await schedules.resume_schedule(connection, name)))


@api_operation(
    "Run a schedule now",
    response=AcceptedJob,
    status=202,
    other_responses=_SCHEDULE_NOT_FOUND_RESPONSE,
    **_SCHEDULE_ENDPOINT_OPTIONS,
)
async def run_schedule(request: Request) -> Response:
    name = parse_path_name(request)
    async with audited_transaction(request, "schedule.run", name) as connection:
        return json_response(await schedules.run_schedule(connection, name), 202)


@api_operation(
    "List the next run times of a schedule",
    query=SchedulePreviewQuery,
    response=list[datetime],
    other_responses=_SCHEDULE_NOT_FOUND_RESPONSE,
    **_SCHEDULE_ENDPOINT_OPTIONS,
)
async def preview_schedule(request: Request) -> Response:
    name, query = parse_path_name(request), parse_query(request, SchedulePreviewQuery)
    async with transaction_as_caller(request) as connection:
        return json_response(await schedules.preview_schedule(connection, name, query.count))


def build_schedule_routes() -> list[BaseRoute]:
    return [
        Route("/api/schedules", list_schedules, methods=["GET"]),
        Route("/api/schedules/{name}", put_schedule, methods=["PUT"]),
        Route("/api/schedules/{name}", get_schedule, methods=["GET"]),
        Route("/api/schedules/{name}", delete_schedule, methods=["DELETE"]),
        Route("/api/schedules/{name}/preview", preview_schedule, methods=["GET"]),
        Route("/api/schedules/{name}/pause", pause_schedule, methods=["POST"]),
        Route("/api/schedules/{name}/resume", resume_schedule, methods=["POST"]),
        Route("/api/schedules/{name}/run", run_schedule, methods=["POST"]),
    ]
