"""Search over HTTP, for services: jobs by the words of the dashboard, and what goes wrong, by cause."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast import search
from holdfast.engine import search as finding
from holdfast.server.api.bodies import answer, query_of
from holdfast.server.api.identity import acting
from holdfast.server.api.operations import operation

_SAID: dict[str, Any] = {"tag": "jobs", "access": "service", "scope": "jobs"}


class SearchQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`q` as in `status:failed type:report older:1h`."""

    q: Annotated[str, Meta(max_length=500)] = ""
    before: UUID | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class ErrorsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    owner: Annotated[str, Meta(max_length=200)] | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


@operation("Search jobs, newest first", query=SearchQuery, answer=finding.Page, **_SAID)
async def search_jobs(request: Request) -> Response:
    query = query_of(request, SearchQuery)
    wanted = search.parse(query.q)
    async with acting(request) as connection:
        return answer(await finding.search_jobs(connection, wanted, before=query.before, limit=query.limit))


@operation(
    "What went wrong in the last day, by cause", query=ErrorsQuery, answer=list[dict[str, Any]], **_SAID
)
async def errors(request: Request) -> Response:
    query = query_of(request, ErrorsQuery)
    async with acting(request) as connection:
        return answer(await finding.error_groups(connection, owner=query.owner, limit=query.limit))


def routes() -> list[BaseRoute]:
    return [
        Route("/api/search", search_jobs, methods=["GET"]),
        Route("/api/errors", errors, methods=["GET"]),
    ]
