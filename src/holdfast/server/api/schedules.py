"""Schedules over HTTP, for operators."""

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
from holdfast.server.api.audit import OPERATING, operating
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.jobs import AcceptedJob
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_name, parse_query

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
_SAID: dict[str, Any] = {"tag": "schedules", **OPERATING}
_MISSING = {404: "There is no such schedule"}


class NewSchedule(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`cron` or `every_s`. `job` is what is submitted each time, as POST /api/jobs takes it."""

    job: dict[str, Any]
    cron: Annotated[str, Meta(max_length=200)] | None = None
    every_s: Annotated[float, Meta(gt=0, le=315360000)] | None = None
    timezone: Annotated[str, Meta(max_length=100)] = "UTC"
    missed: Literal["skip", "coalesce", "catch_up"] = "coalesce"
    max_catch_up: Annotated[int, Meta(ge=1, le=1000)] | None = None
    owner: Name | None = None


class SchedulesQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    owner: Name | None = None
    after: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


class TimesQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=100)] = 10


class Changed(msgspec.Struct, kw_only=True):
    """False when it was so already."""

    changed: bool


@api_operation("List schedules", query=SchedulesQuery, response=list[StoredSchedule], **_SAID)
async def list_schedules(request: Request) -> Response:
    query = parse_query(request, SchedulesQuery)
    async with transaction_as_caller(request) as connection:
        return json_response(
            await schedules.list_schedules(
                connection, owner=query.owner, after=query.after, limit=query.limit
            )
        )


@api_operation("Make or change a schedule", body=NewSchedule, response=StoredSchedule, **_SAID)
async def put_schedule(request: Request) -> Response:
    name, wanted = parse_path_name(request), await parse_body(request, NewSchedule)
    if (wanted.cron is None) == (wanted.every_s is None):
        raise InvalidError("Give cron or every_s, and not both.", field="cron")
    given = {**msgspec.structs.asdict(wanted), "name": name}
    async with operating(
        request, "schedule.put", name, cron=wanted.cron, every_s=wanted.every_s
    ) as connection:
        return json_response(await schedules.put_schedule(connection, given))


@api_operation("Read a schedule", response=StoredSchedule, other_responses=_MISSING, **_SAID)
async def get_schedule(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await schedules.get_schedule(connection, parse_path_name(request)))


@api_operation("Delete a schedule", status=204, other_responses=_MISSING, **_SAID)
async def delete_schedule(request: Request) -> Response:
    name = parse_path_name(request)
    async with operating(request, "schedule.delete", name) as connection:
        if not await schedules.delete_schedule(connection, name):
            raise NotFoundError("There is no such schedule.")
    return Response(status_code=204)


@api_operation("Pause a schedule", response=Changed, other_responses=_MISSING, **_SAID)
async def pause(request: Request) -> Response:
    name, caller = parse_path_name(request), await identify_caller(request)
    async with operating(request, "schedule.pause", name) as connection:
        return json_response(Changed(changed=await schedules.pause_schedule(connection, name, caller.name)))


@api_operation("Resume a schedule", response=Changed, other_responses=_MISSING, **_SAID)
async def resume(request: Request) -> Response:
    name = parse_path_name(request)
    async with operating(request, "schedule.resume", name) as connection:
        return json_response(Changed(changed=await schedules.resume_schedule(connection, name)))


@api_operation("Run a schedule now", response=AcceptedJob, status=202, other_responses=_MISSING, **_SAID)
async def run(request: Request) -> Response:
    name = parse_path_name(request)
    async with operating(request, "schedule.run", name) as connection:
        return json_response(await schedules.run_schedule(connection, name), 202)


@api_operation(
    "The next times of a schedule",
    query=TimesQuery,
    response=list[datetime],
    other_responses=_MISSING,
    **_SAID,
)
async def preview(request: Request) -> Response:
    query = parse_query(request, TimesQuery)
    async with transaction_as_caller(request) as connection:
        return json_response(
            await schedules.preview_schedule(connection, parse_path_name(request), query.count)
        )


def routes() -> list[BaseRoute]:
    verbs = {"pause": pause, "resume": resume, "run": run}
    return [
        Route("/api/schedules", list_schedules, methods=["GET"]),
        Route("/api/schedules/{name}", put_schedule, methods=["PUT"]),
        Route("/api/schedules/{name}", get_schedule, methods=["GET"]),
        Route("/api/schedules/{name}", delete_schedule, methods=["DELETE"]),
        Route("/api/schedules/{name}/preview", preview, methods=["GET"]),
        *(Route(f"/api/schedules/{{name}}/{verb}", end, methods=["POST"]) for verb, end in verbs.items()),
    ]
