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
from holdfast.server.api.bodies import answer, body_of, name_in, query_of
from holdfast.server.api.identity import acting, identify
from holdfast.server.api.jobs import Accepted
from holdfast.server.api.operating import OPERATING, operating
from holdfast.server.api.operations import operation

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
    most: Annotated[int, Meta(ge=1, le=1000)] | None = None
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


@operation("List schedules", query=SchedulesQuery, answer=list[StoredSchedule], **_SAID)
async def list_schedules(request: Request) -> Response:
    query = query_of(request, SchedulesQuery)
    async with acting(request) as connection:
        return answer(
            await schedules.list_schedules(
                connection, owner=query.owner, after=query.after, limit=query.limit
            )
        )


@operation("Make or change a schedule", body=NewSchedule, answer=StoredSchedule, **_SAID)
async def put_schedule(request: Request) -> Response:
    name, wanted = name_in(request), await body_of(request, NewSchedule)
    if (wanted.cron is None) == (wanted.every_s is None):
        raise InvalidError("Give cron or every_s, and not both.", field="cron")
    given = {**msgspec.structs.asdict(wanted), "name": name}
    async with operating(
        request, "schedule.put", name, cron=wanted.cron, every_s=wanted.every_s
    ) as connection:
        return answer(await schedules.put_schedule(connection, given))


@operation("Read a schedule", answer=StoredSchedule, others=_MISSING, **_SAID)
async def get_schedule(request: Request) -> Response:
    async with acting(request) as connection:
        return answer(await schedules.get_schedule(connection, name_in(request)))


@operation("Delete a schedule", status=204, others=_MISSING, **_SAID)
async def delete_schedule(request: Request) -> Response:
    name = name_in(request)
    async with operating(request, "schedule.delete", name) as connection:
        if not await schedules.delete_schedule(connection, name):
            raise NotFoundError("There is no such schedule.")
    return Response(status_code=204)


@operation("Pause a schedule", answer=Changed, others=_MISSING, **_SAID)
async def pause(request: Request) -> Response:
    name, caller = name_in(request), await identify(request)
    async with operating(request, "schedule.pause", name) as connection:
        return answer(Changed(changed=await schedules.pause_schedule(connection, name, caller.name)))


@operation("Resume a schedule", answer=Changed, others=_MISSING, **_SAID)
async def resume(request: Request) -> Response:
    name = name_in(request)
    async with operating(request, "schedule.resume", name) as connection:
        return answer(Changed(changed=await schedules.resume_schedule(connection, name)))


@operation("Run a schedule now", answer=Accepted, status=202, others=_MISSING, **_SAID)
async def run(request: Request) -> Response:
    name = name_in(request)
    async with operating(request, "schedule.run", name) as connection:
        return answer(await schedules.run_schedule(connection, name), 202)


@operation("The next times of a schedule", query=TimesQuery, answer=list[datetime], others=_MISSING, **_SAID)
async def preview(request: Request) -> Response:
    query = query_of(request, TimesQuery)
    async with acting(request) as connection:
        return answer(await schedules.preview_schedule(connection, name_in(request), query.count))


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
