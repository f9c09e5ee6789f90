"""Reports over HTTP, in the source's paths below a prefix of your choice."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal, cast
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast import Client
from holdfast.api import acting, identify, operation, stream
from holdfast.api.bodies import answer, json_body
from holdfast.api.views import job_view
from holdfast.errors import InvalidError, NotFoundError, TooManyError
from holdfast.model import Artifact
from holdfast.systems.desk import client_of, owner_of
from holdfast.systems.reports.answers import STATUS, TYPES, Telling, shown
from holdfast.systems.reports.chapters import CHAPTERS
from holdfast.systems.reports.people import ReportParams
from holdfast.systems.reports.work import TYPE, nuclear_v2

LINK = timedelta(hours=1)
MOST_WAITING = 20  # reports of one user that have not ended
_submitter = Client()


class StartReport(msgspec.Struct):
    type: Literal["nuclear_v2"]
    params: ReportParams


def routes(prefix: str) -> list[BaseRoute]:
    root = f"{prefix}/api/jobs"
    listed: list[tuple[str, str, Any]] = [
        ("POST", "/start", _described(start, "Start a report", body=StartReport, status=202)),
        ("GET", "", _described(list_jobs, "Your reports, newest first")),
        ("GET", "/{id}", _described(get_job, "A report, its progress and its files")),
        ("DELETE", "/{id}", _described(cancel, "Cancel a report")),
        (
            "GET",
            "/{id}/stream",
            _described(watch, "Watch a report", access="anyone", media="text/event-stream"),
        ),
    ]
    return [Route(root + path, endpoint, methods=[method]) for method, path, endpoint in listed]


def _described(endpoint: Any, summary: str, **more: Any) -> Any:
    return operation(summary, tag="reports", **more)(endpoint)


async def start(request: Request) -> Response:
    owner, body = await owner_of(request), await json_body(request)
    wanted = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    if wanted.get("type") != TYPE:
        raise InvalidError(f"type must be {TYPE}.", field="type")
    params: Any = wanted.get("params")
    if not isinstance(params, dict):
        raise InvalidError("params must be an object.", field="params")
    graph = nuclear_v2(cast("dict[str, Any]", params))
    async with acting(request, as_service=True) as connection:
        await _check_room(connection, owner)
        handle = await _submitter.submit(graph, owner=owner, on=connection)
    told = {"id": handle.id, "jobId": handle.id, "status": "queued"}
    return answer(told, 202, {"Location": f"{request.url.path.removesuffix('/start')}/{handle.id}"})


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
    await owner_of(request)
    async with acting(request) as connection:
        rows = await connection.fetch(
            "select j from holdfast.list_jobs($1, null, 50) as j",
            msgspec.json.encode({"type": TYPE}).decode(),
        )
    caller = await identify(request)
    jobs = [shown(job_view(msgspec.json.decode(row["j"]), caller)) for row in rows]
    return answer({"jobs": jobs})


async def get_job(request: Request) -> Response:
    job_id = _id(request)
    job = await _read(request, job_id)
    async with acting(request) as connection:
        rows = await connection.fetch(
            "select a from holdfast.list_artifacts($1, null, 1000) as a",
            msgspec.json.encode({"job": job_id}).decode(),
        )
    files = [msgspec.json.decode(row["a"]) for row in rows]
    return answer({**shown(job), "artifacts": [await _linked(request, file) for file in files]})


async def cancel(request: Request) -> Response:
    job_id = _id(request)
    await _read(request, job_id)
    async with acting(request) as connection:
        told = msgspec.json.decode(await connection.fetchval("select holdfast.cancel_job($1)", job_id))
    return answer({"id": job_id, "status": STATUS[told["status"]]})


async def watch(request: Request) -> Response:
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


async def _read(request: Request, job_id: UUID) -> dict[str, Any]:
    await owner_of(request)
    async with acting(request) as connection:
        text = await connection.fetchval("select holdfast.get_job($1)", job_id)
    job: dict[str, Any] = msgspec.json.decode(text) if text else {}
    if job.get("type") != TYPE:
        raise NotFoundError("There is no such report.")
    return job_view(job, await identify(request))


def _id(request: Request) -> UUID:
    try:
        return UUID(request.path_params["id"])
    except ValueError:
        raise NotFoundError("There is no such report.") from None
