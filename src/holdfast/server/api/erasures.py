"""Endpoints to erase everything of an owner, for services."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import erasures
from holdfast.engine.erasures import Erasure
from holdfast.errors import NotFoundError
from holdfast.server.api.audit import OPERATOR_ENDPOINT_OPTIONS
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_query
from holdfast.server.api.services import get_client

OwnerId = Annotated[str, Meta(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")]
_ERASURE_ENDPOINT_OPTIONS: dict[str, Any] = {"tag": "owners", **OPERATOR_ENDPOINT_OPTIONS}


class EraseOwnerRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to erase an owner. The response comes after `wait_s` seconds at the latest."""

    owner: OwnerId
    wait_s: Annotated[float, Meta(ge=0, le=20)] = 5


class ErasureQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters to read an erasure: the owner."""

    owner: OwnerId


@api_operation(
    "Erase everything of an owner: jobs, files, messages, settings and rows of all systems",
    body=EraseOwnerRequest,
    response=Erasure,
    status=202,
    other_responses={200: "Everything is erased"},
    **_ERASURE_ENDPOINT_OPTIONS,
)
async def erase_owner(request: Request) -> Response:
    """Start or continue an erasure. Workers finish what is left after the response."""
    body, caller = await parse_body(request, EraseOwnerRequest), await identify_caller(request)
    async with transaction_as_caller(request) as connection:
        await erasures.start_erasure(connection, body.owner, caller.name)
    erasure = await get_client(request).erase_owner(
        body.owner, by=caller.name, within=timedelta(seconds=body.wait_s)
    )
    return json_response(erasure, 202 if erasure.finished_at is None else 200)


@api_operation(
    "Read how far the erasure of an owner is",
    query=ErasureQuery,
    response=Erasure,
    other_responses={404: "Nobody asked to erase this owner"},
    **_ERASURE_ENDPOINT_OPTIONS,
)
async def get_erasure(request: Request) -> Response:
    query = parse_query(request, ErasureQuery)
    async with transaction_as_caller(request) as connection:
        erasure = await erasures.find_erasure(connection, query.owner)
    if erasure is None:
        raise NotFoundError(f"Nobody asked to erase owner {query.owner!r}.")
    return json_response(erasure)


def build_erasure_routes() -> list[BaseRoute]:
    return [
        Route("/api/erasures", erase_owner, methods=["POST"]),
        Route("/api/erasures", get_erasure, methods=["GET"]),
    ]
