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
from holdfast.server.api.identity import transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_query

_SAID: dict[str, Any] = {"tag": "jobs", "access": "service", "scope": "jobs"}


class SearchQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`q` as in `status:failed type:report older:1h`."""

    q: Annotated[str, Meta(max_length=500)] = ""
    before: UUID | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class ErrorsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    owner: Annotated[str, Meta(max_length=200)] | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


@api_operation("Search jobs, newest first", query=SearchQuery, response=finding.Page, **_SAID)
async def search_jobs(request: Request) -> Response:
    query = parse_query(request, SearchQuery)
    wanted = search.parse(query.q)
    async with transaction_as_caller(request) as connection:
        return json_response(
            await finding.search_jobs(connection, wanted, before=query.before, limit=query.limit)
        )


@api_operation(
    "What went wrong in the last day, by cause", query=ErrorsQuery, response=list[dict[str, Any]], **_SAID
)
async def errors(request: Request) -> Response:
    query = parse_query(request, ErrorsQuery)
    async with transaction_as_caller(request) as connection:
        return json_response(
            await finding.list_error_groups(connection, owner=query.owner, limit=query.limit)
        )


def routes() -> list[BaseRoute]:
    return [
        Route("/api/search", search_jobs, methods=["GET"]),
        Route("/api/errors", errors, methods=["GET"]),
    ]
