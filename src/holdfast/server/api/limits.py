"""Endpoints for limits on running tasks and start rates, for operators."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import limits
from holdfast.engine.connection import Connection
from holdfast.errors import InvalidError, NotFoundError
from holdfast.server.api.audit import OPERATOR_ENDPOINT_OPTIONS, audited_transaction
from holdfast.server.api.identity import transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_name
from holdfast.server.api.services import get_services

NonEmptyName = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
_LIMIT_ENDPOINT_OPTIONS: dict[str, Any] = {"tag": "limits", **OPERATOR_ENDPOINT_OPTIONS}


class PutLimitRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to create or replace a limit on the tasks of a queue, a task type, or both.

    `max_running` is the number of tasks that run at once. `rate` is the number of tasks that start per
    second, and `burst` the number that may start at once. With `per_key`, the limit applies to each limit
    key. `allow_new` accepts a queue or a task that does not exist yet.
    """

    queue: NonEmptyName | None = None
    type: NonEmptyName | None = None
    per_key: bool = False
    max_running: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    rate: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    burst: Annotated[float, Meta(ge=1, le=1e6)] | None = None
    allow_new: bool = False


@api_operation(
    "List limits and their current usage", response=list[dict[str, Any]], **_LIMIT_ENDPOINT_OPTIONS
)
async def list_limits(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await limits.list_limits(connection))


@api_operation(
    "Create or replace a limit",
    body=PutLimitRequest,
    status=204,
    other_responses={404: "The queue or the task does not exist"},
    **_LIMIT_ENDPOINT_OPTIONS,
)
async def put_limit(request: Request) -> Response:
    name, body = parse_path_name(request), await parse_body(request, PutLimitRequest)
    if body.max_running is None and body.rate is None:
        raise InvalidError("The limit has no value.", fix="Set max_running or rate.", field="max_running")
    fields = msgspec.structs.asdict(body)
    allow_new = fields.pop("allow_new")
    limit = limits.LimitRule(name=name, **fields)
    async with audited_transaction(request, "limit.put", name, **fields) as connection:
        if not allow_new:
            fix = "Send allow_new: true for a queue or a task that does not exist yet."
            limits.check_names_of_limit(limit, await _list_known_names(request, connection, limit), fix=fix)
        await limits.put_limit(connection, limit)
    return Response(status_code=204)


async def _list_known_names(
    request: Request, connection: Connection, limit: limits.LimitRule
) -> list[limits.LimitedNames]:
    """Return the names of all shards: each of them gets this request, and one may not have the queue yet."""
    shards = get_services(request).shards
    if shards is None:
        return [await limits.list_limited_names(connection, limit)]
    answers, _ = await shards.router.ask_all(lambda each: limits.list_limited_names(each, limit))
    return list(answers.values())


@api_operation(
    "Delete a limit", status=204, other_responses={404: "The limit does not exist"}, **_LIMIT_ENDPOINT_OPTIONS
)
async def delete_limit(request: Request) -> Response:
    name = parse_path_name(request)
    async with audited_transaction(request, "limit.delete", name) as connection:
        if not await limits.delete_limit(connection, name):
            raise NotFoundError(f"Limit {name!r} does not exist.")
    return Response(status_code=204)


def build_limit_routes() -> list[BaseRoute]:
    return [
        Route("/api/limits", list_limits, methods=["GET"]),
        Route("/api/limits/{name}", put_limit, methods=["PUT"]),
        Route("/api/limits/{name}", delete_limit, methods=["DELETE"]),
    ]
