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
from holdfast.server.api.bodies import answer, body_of, name_in, query_of
from holdfast.server.api.identity import acting, identify
from holdfast.server.api.operations import operation


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


@operation(
    "Make a service key", tag="keys", access="service", scope="keys", body=NewKey, answer=MadeKey, status=201
)
async def create(request: Request) -> Response:
    wanted = await body_of(request, NewKey)
    access.check_scopes(wanted.scopes)
    caller = await identify(request)
    for scope in wanted.scopes:
        if not caller.may(scope):
            raise RefusedError("A key cannot give what it has not.", field="scopes")
    secret, shown, digest = access.new_key()
    expires = None if wanted.expires_s is None else datetime.now(UTC) + timedelta(seconds=wanted.expires_s)
    async with acting(request) as connection:
        made = await access.create_key(
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
    return answer(MadeKey(**msgspec.structs.asdict(made), key=secret.reveal()), 201)


@operation("List service keys", tag="keys", access="service", scope="keys", answer=list[access.ServiceKey])
async def list_keys(request: Request) -> Response:
    async with acting(request) as connection:
        return answer(await access.list_keys(connection))


@operation(
    "Revoke a service key by its prefix or id",
    tag="keys",
    access="service",
    scope="keys",
    status=204,
    others={404: "There is no such living key"},
)
async def revoke(request: Request) -> Response:
    prefix = name_in(request, "key")
    caller = await identify(request)
    async with acting(request) as connection:
        if not await access.revoke_key(connection, prefix):
            raise NotFoundError("There is no such living key.")
        await access.record(connection, caller.name, "key.revoke", prefix)
    return Response(status_code=204)


@operation(
    "What operators did, newest first",
    tag="audit",
    access="service",
    scope="operate",
    query=AuditQuery,
    answer=list[access.AuditEntry],
)
async def audit(request: Request) -> Response:
    query = query_of(request, AuditQuery)
    async with acting(request) as connection:
        return answer(await access.list_audit(connection, before=query.before, limit=query.limit))


def routes() -> list[BaseRoute]:
    return [
        Route("/api/keys", create, methods=["POST"]),
        Route("/api/keys", list_keys, methods=["GET"]),
        Route("/api/keys/{key}", revoke, methods=["DELETE"]),
        Route("/api/audit", audit, methods=["GET"]),
    ]
