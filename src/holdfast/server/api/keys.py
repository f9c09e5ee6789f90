"""Service keys and the audit log over HTTP, for operators."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import access
from holdfast.errors import NotFoundError, RefusedError
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_name, parse_query


class NewKey(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
    scopes: Annotated[list[str], Meta(min_length=1, max_length=20)]
    expires_s: Annotated[float, Meta(gt=0, le=315360000)] | None = None


class MadeKey(access.ServiceKey, kw_only=True, frozen=True):
    """`key` is shown here and never again."""

    key: str


class AuditQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    before: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


@api_operation(
    "Make a service key",
    tag="keys",
    access="service",
    scope="keys",
    body=NewKey,
    response=MadeKey,
    status=201,
)
async def create(request: Request) -> Response:
    wanted = await parse_body(request, NewKey)
    access.check_scopes(wanted.scopes)
    caller = await identify_caller(request)
    for scope in wanted.scopes:
        if not caller.has_scope(scope):
            raise RefusedError("A key cannot give what it has not.", field="scopes")
    secret, shown, digest = access.new_key()
    expires = None if wanted.expires_s is None else datetime.now(UTC) + timedelta(seconds=wanted.expires_s)
    async with transaction_as_caller(request) as connection:
        made = await access.create_service_key(
            connection,
            name=wanted.name,
            prefix=shown,
            digest=digest,
            scopes=wanted.scopes,
            expires_at=expires,
        )
        await access.record(
            connection, caller.name, "key.create", shown, {"name": wanted.name, "scopes": wanted.scopes}
        )
    return json_response(MadeKey(**msgspec.structs.asdict(made), key=secret.reveal()), 201)


@api_operation(
    "List service keys", tag="keys", access="service", scope="keys", response=list[access.ServiceKey]
)
async def list_service_keys(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await access.list_service_keys(connection))


@api_operation(
    "Revoke a service key by its prefix or id",
    tag="keys",
    access="service",
    scope="keys",
    status=204,
    other_responses={404: "There is no such living key"},
)
async def revoke(request: Request) -> Response:
    prefix = parse_path_name(request, "key")
    caller = await identify_caller(request)
    async with transaction_as_caller(request) as connection:
        if not await access.revoke_service_key(connection, prefix):
            raise NotFoundError("There is no such living key.")
        await access.record(connection, caller.name, "key.revoke", prefix)
    return Response(status_code=204)


@api_operation(
    "What operators did, newest first",
    tag="audit",
    access="service",
    scope="operate",
    query=AuditQuery,
    response=list[access.AuditEntry],
)
async def audit(request: Request) -> Response:
    query = parse_query(request, AuditQuery)
    async with transaction_as_caller(request) as connection:
        return json_response(
            await access.list_audit_entries(connection, before=query.before, limit=query.limit)
        )


def routes() -> list[BaseRoute]:
    return [
        Route("/api/keys", create, methods=["POST"]),
        Route("/api/keys", list_service_keys, methods=["GET"]),
        Route("/api/keys/{key}", revoke, methods=["DELETE"]),
        Route("/api/audit", audit, methods=["GET"]),
    ]
