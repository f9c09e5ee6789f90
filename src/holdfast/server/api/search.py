"""Endpoints for services to search jobs and to list error groups."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast import search
from holdfast.engine import error_groups
from holdfast.engine import search as engine_search
from holdfast.server.api.identity import read_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_query

_SEARCH_ENDPOINT_OPTIONS: dict[str, Any] = {"tag": "jobs", "access": "service", "scope": "jobs"}


class JobSearchQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of a job search.

    `q` is a search such as `status:failed type:report older:1h`. `before` is the `next` value of the previous
    page.
    """

    q: Annotated[str, Meta(max_length=500)] = ""
    before: UUID | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class ErrorListQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of the error list. `owner` selects errors in the jobs of one owner."""

    owner: Annotated[str, Meta(max_length=200)] | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


@api_operation(
    "Search jobs, newest first",
    query=JobSearchQuery,
    response=engine_search.JobSearchPage,
    **_SEARCH_ENDPOINT_OPTIONS,
)
async def search_jobs(request: Request) -> Response:
    query = parse_query(request, JobSearchQuery)
    parsed = search.parse_search(query.q)
    page, source = await read_as_caller(
        request,
        lambda connection: engine_search.search_jobs(
            connection, parsed, before=query.before, limit=query.limit
        ),
    )
    return json_response(page, headers=source.headers)


@api_operation(
    "List the error groups of the last day: failed attempts with the same cause",
    query=ErrorListQuery,
    response=list[dict[str, Any]],
    **_SEARCH_ENDPOINT_OPTIONS,
)
async def list_error_groups(request: Request) -> Response:
    query = parse_query(request, ErrorListQuery)
    groups, source = await read_as_caller(
        request,
        lambda connection: error_groups.list_error_groups(connection, owner=query.owner, limit=query.limit),
    )
    return json_response(groups, headers=source.headers)


def build_search_routes() -> list[BaseRoute]:
    return [
        Route("/api/search", search_jobs, methods=["GET"]),
        Route("/api/errors", list_error_groups, methods=["GET"]),
    ]
