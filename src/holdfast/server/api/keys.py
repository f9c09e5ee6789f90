"""Endpoints for service keys, for operators: create, list, revoke."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import access
from holdfast.errors import NotFoundError, RefusedError
from holdfast.server.api.audit import audited_transaction
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_name

_SERVICE_KEY_ENDPOINT_OPTIONS: dict[str, Any] = {"tag": "service keys", "access": "service", "scope": "keys"}


class CreateServiceKeyRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to create a service key.

    The key expires after `expires_s` seconds. The default is no expiry.
    """

    name: Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
    scopes: Annotated[list[str], Meta(min_length=1, max_length=20)]
    expires_s: Annotated[float, Meta(gt=0, le=315360000)] | None = None


class CreatedServiceKey(access.ServiceKey, kw_only=True, frozen=True):
    """A new service key. `key` is the secret, which cannot be read again."""

    key: str


@api_operation(
    "Create a service key",
    body=CreateServiceKeyRequest,
    response=CreatedServiceKey,
    status=201,
    **_SERVICE_KEY_ENDPOINT_OPTIONS,
)
async def create_service_key(request: Request) -> Response:
    body = await parse_body(request, CreateServiceKeyRequest)
    access.check_scopes(body.scopes)
    caller = await identify_caller(request)
    for scope in body.scopes:
        if not caller.has_scope(scope):
            raise RefusedError(
                f'Your key does not have the scope "{scope}", so it cannot create a key with it.',
                field="scopes",
            )
    secret, prefix, digest = access.generate_service_key()
    expires_at = None if body.expires_s is None else datetime.now(UTC) + timedelta(seconds=body.expires_s)
    async with audited_transaction(
        request, "key.create", prefix, name=body.name, scopes=body.scopes
    ) as connection:
        key = await access.create_service_key(
            connection,
            name=body.name,
            prefix=prefix,
            digest=digest,
            scopes=body.scopes,
            expires_at=expires_at,
        )
    return json_response(CreatedServiceKey(**msgspec.structs.asdict(key), key=secret.reveal()), 201)


@api_operation("List service keys", response=list[access.ServiceKey], **_SERVICE_KEY_ENDPOINT_OPTIONS)
async def list_service_keys(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await access.list_service_keys(connection))


@api_operation(
    "Revoke a service key by its prefix or id",
    status=204,
    other_responses={404: "The service key does not exist or is revoked already"},
    **_SERVICE_KEY_ENDPOINT_OPTIONS,
)
async def revoke_service_key(request: Request) -> Response:
    prefix_or_id = parse_path_name(request, "key")
    async with audited_transaction(request, "key.revoke", prefix_or_id) as connection:
        if not await access.revoke_service_key(connection, prefix_or_id):
            raise NotFoundError(f"Service key {prefix_or_id} does not exist or is revoked already.")
    return Response(status_code=204)


def build_service_key_routes() -> list[BaseRoute]:
    return [
        Route("/api/keys", create_service_key, methods=["POST"]),
        Route("/api/keys", list_service_keys, methods=["GET"]),
        Route("/api/keys/{key}", revoke_service_key, methods=["DELETE"]),
    ]
