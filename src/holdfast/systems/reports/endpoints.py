"""Reports over HTTP, at the source's paths, which are also the API's own.

Users are told of reports in the source's words. What is not a report, and whoever comes as a service for
nobody, is handed on to the API's route of the same path.
"""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message

from holdfast import Client
from holdfast.errors import InvalidError, NotFoundError, TooManyError
from holdfast.model import Artifact
from holdfast.server.api import RouteAhead, acting, identify, jobs, operation, stream
from holdfast.server.api.bodies import answer, parse, query_of, raw_body
from holdfast.server.api.operations import Endpoint
from holdfast.server.api.starting import key_of
from holdfast.server.api.tokens import UnauthenticatedError
from holdfast.server.api.views import job_view
from holdfast.systems.desk import client_of, is_uuid, owner_of
from holdfast.systems.reports.answers import STATUS, TYPES, Telling, shown
from holdfast.systems.reports.chapters import CHAPTERS
from holdfast.systems.reports.work import TYPE, nuclear_v2

ROOT = "/api/jobs"
LINK = timedelta(hours=1)
MOST_WAITING = 20  # reports of one user that have not ended
_submitter = Client()


def routes() -> list[BaseRoute]:
    events = "text/event-stream"
    shared: list[tuple[str, str, Endpoint, Endpoint]] = [
        ("POST", "/start", _described(start, "Start a report", status=202), jobs.start),
        ("GET", "", _described(list_jobs, "Your reports"), jobs.list_jobs),
        ("GET", "/{id}", _described(get_job, "A report, its progress and its files"), jobs.get_job),
        ("DELETE", "/{id}", _described(cancel, "Cancel a report"), jobs.cancel),
    ]
    watched = _described(watch, "Watch a report", access="anyone", media=events)
    return [
        *(RouteAhead(ROOT + path, _one_of(ours, core), methods=[verb]) for verb, path, ours, core in shared),
        Route(f"{ROOT}/{{id}}/stream", watched, methods=["GET"]),
    ]


def _described(endpoint: Any, summary: str, **more: Any) -> Any:
    return operation(summary, tag="reports", scope="jobs", **more)(endpoint)


def _one_of(ours: Endpoint, core: Endpoint) -> Endpoint:
    """Ours for users and for services that say for whom; each admits its callers itself."""

    async def endpoint(request: Request) -> Response:
        return await (ours if await _is_for_user(request) else core)(request)

    return endpoint


async def _is_for_user(request: Request) -> bool:
    try:
        caller = await identify(request)
    except UnauthenticatedError:
        return False
    if caller.kind == "service":
        return "x-user-id" in request.headers
    return caller.kind == "user" and is_uuid(caller.id)


async def _handed_on(core: Endpoint, request: Request) -> Response:
    """To the API's own endpoint; the caller was admitted already."""
    made: Response = await inspect.unwrap(core)(request)
    return made


async def start(request: Request) -> Response:
    text = await raw_body(request)
    given: Any = parse(text or b"{}")
    body = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if body.get("type") != TYPE:
        return await _handed_on(jobs.start, _again(request, text))
    params: Any = body.get("params")
    if not isinstance(params, dict):
        raise InvalidError("params must be an object.", field="params")
    owner, graph = await owner_of(request), nuclear_v2(cast("dict[str, Any]", params))
    async with acting(request, as_service=True) as connection:
        await _check_room(connection, owner)
        key = key_of(request, body.get("key"))
        handle = await _submitter.submit(graph, owner=owner, key=key, on=connection)
    told = {"id": handle.id, "jobId": handle.id, "status": "queued"}
    return answer(told, 202 if handle.created else 200, {"Location": f"{ROOT}/{handle.id}"})


def _again(request: Request, body: bytes) -> Request:
    """The request with its body unread."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)


async def _check_room(connection: Any, owner: str) -> None:
    waiting = await connection.fetchval(
        "select count(*) from holdfast.list_jobs($1, null, 200) as j"
        " where j ->> 'status' in ('queued', 'running')",
        msgspec.json.encode({"type": TYPE, "owner": owner}).decode(),
    )
    if waiting >= MOST_WAITING:
        raise TooManyError(
            f"{waiting} of your reports have not ended.", fix="Wait for one of them.", retry_after=60
        )


async def list_jobs(request: Request) -> Response:
    """Reports of the user, newest first. With a query it is the API's list, of all their jobs."""
    owner, query = await owner_of(request), query_of(request, jobs.JobsQuery)
    kind = query.type if request.query_params else TYPE
    where = {"owner": owner, "status": query.status, "type": kind, "queue": query.queue}
    async with acting(request) as connection:
        said = await connection.fetchval(
            "select holdfast.jobs_page($1, $2, $3)",
            msgspec.json.encode({name: value for name, value in where.items() if value is not None}).decode(),
            query.before,
            query.limit,
        )
    caller = await identify(request)
    page = msgspec.json.decode(said)
    found = [job_view(row, caller) for row in page["rows"]]
    told = [shown(job) if job["type"] == TYPE else job for job in found]
    return answer({"jobs": told, "next": page["next"]})


async def get_job(request: Request) -> Response:
    job = await _report(request)
    if job is None:
        return await _handed_on(jobs.get_job, request)
    async with acting(request) as connection:
        rows = await connection.fetch(
            "select a from holdfast.list_artifacts($1, null, 1000) as a",
            msgspec.json.encode({"job": job["id"]}).decode(),
        )
    files = [msgspec.json.decode(row["a"]) for row in rows]
    told = {**shown(job), "artifacts": [await _linked(request, file) for file in files]}
    return answer(told, headers={"Cache-Control": "private, no-store"})


async def cancel(request: Request) -> Response:
    job = await _report(request)
    if job is None:
        return await _handed_on(jobs.cancel, request)
    async with acting(request) as connection:
        told = msgspec.json.decode(
            await connection.fetchval("select holdfast.cancel_job($1)", UUID(job["id"]))
        )
    return answer({"id": job["id"], "status": STATUS[told["status"]], "cancelled": told["cancelled"]})


async def watch(request: Request) -> Response:
    """Open to whoever shows a ticket too, which is for one job and says whose."""
    if "ticket" not in request.query_params and await _report(request) is None:
        raise NotFoundError("There is no such report.")
    return await stream(request, _id(request), encode=Telling())


async def _linked(request: Request, told: dict[str, Any]) -> dict[str, Any]:
    """A file with a link that was made for this answer and is kept nowhere."""
    file = msgspec.convert({name: told[name] for name in Artifact.__struct_fields__}, Artifact)
    url = await client_of(request).files.sign(file, LINK, inline=file.kind in ("audio", "pdf"))
    return {
        "type": TYPES.get(file.kind, file.kind),
        "name": file.name,
        "title": _title(file.name),
        "url": url,
        "size": file.size,
        "duration": file.meta.get("duration"),
        "pages": file.meta.get("pages"),
    }


def _title(name: str) -> str | None:
    number = name.removeprefix("chapter").partition(".")[0]
    return CHAPTERS[int(number) - 1].title if number.isdigit() and 0 < int(number) <= len(CHAPTERS) else None


async def _report(request: Request) -> dict[str, Any] | None:
    """The job if it is a report; None if it is another job, 404 if there is none that the caller may see."""
    owner, job_id = await owner_of(request), _id(request)
    async with acting(request) as connection:
        text = await connection.fetchval("select holdfast.get_job($1)", job_id)
    job: dict[str, Any] = msgspec.json.decode(text) if text else {}
    if job.get("owner") != owner:
        raise NotFoundError("There is no such job.")
    return job_view(job, await identify(request)) if job["type"] == TYPE else None


def _id(request: Request) -> UUID:
    try:
        return UUID(request.path_params["id"])
    except ValueError:
        raise NotFoundError("There is no such job.") from None
