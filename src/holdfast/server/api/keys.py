"""Endpoints for service keys, for operators: create, list, revoke.

A key cannot manage keys above itself: it creates and revokes only keys whose scopes it has itself, and a key
that expires cannot create a key that lives longer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import access
from holdfast.engine.connection import Connection
from holdfast.errors import NotFoundError, RefusedError
from holdfast.server.api.audit import audited_transaction
from holdfast.server.api.identity import Caller, identify_caller, transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_name
from holdfast.server.api.services import get_services

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
    _reject_missing_scopes(caller, body.scopes, "create")
    secret, prefix, digest = access.generate_service_key()
    expires_at = None if body.expires_s is None else datetime.now(UTC) + timedelta(seconds=body.expires_s)

    async def create_key(connection: Connection) -> access.ServiceKey:
        return await access.create_service_key(
            connection,
            name=body.name,
            prefix=prefix,
            digest=digest,
            scopes=body.scopes,
            expires_at=expires_at,
        )

    async with audited_transaction(
        request, "key.create", prefix, name=body.name, scopes=body.scopes
    ) as connection:
        await _reject_longer_life(connection, caller, expires_at)
        key = await create_key(connection)
    await _change_other_shards(request, create_key)
    return json_response(CreatedServiceKey(**msgspec.structs.asdict(key), key=secret.reveal()), 201)


def _reject_missing_scopes(caller: Caller, scopes: Sequence[str], verb: str) -> None:
    """Raise RefusedError if the caller's key lacks one of the scopes. `*` is a scope of its own here."""
    for scope in scopes:
        if not caller.has_scope(scope):
            raise RefusedError(
                f'Your key does not have the scope "{scope}", so it cannot {verb} a key with it.',
                field="scopes",
            )


async def _reject_longer_life(connection: Connection, caller: Caller, expires_at: datetime | None) -> None:
    """Raise RefusedError if the new key would live longer than the caller's key."""
    own_key = await access.find_service_key(connection, caller.id or "")
    if own_key is None or own_key.expires_at is None:
        return
    if expires_at is None or expires_at > own_key.expires_at:
        raise RefusedError(
            f"Your key expires at {own_key.expires_at:%Y-%m-%d %H:%M} UTC, before the new key would.",
            fix="Set expires_s to an earlier time.",
            field="expires_s",
        )


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
        key = await access.find_service_key(connection, prefix_or_id)
        if key is not None:
            _reject_missing_scopes(await identify_caller(request), key.scopes, "revoke")
        if key is None or not await access.revoke_service_key(connection, prefix_or_id):
            raise NotFoundError(f"Service key {prefix_or_id} does not exist or is revoked already.")

    await _change_other_shards(request, lambda connection: access.revoke_service_key(connection, key.prefix))
    return Response(status_code=204)


async def _change_other_shards(request: Request, change: Callable[[Connection], Awaitable[object]]) -> None:
    """Make the change of a key on the other shards, which verify keys with their own database."""
    services = get_services(request)
    others = services.shards.by_number.values() if services.shards is not None else ()
    for other in others:
        if other is not services:
            async with other.database.connection() as connection:
                await change(connection)


def build_service_key_routes() -> list[BaseRoute]:
    return [
        Route("/api/keys", create_service_key, methods=["POST"]),
        Route("/api/keys", list_service_keys, methods=["GET"]),
        Route("/api/keys/{key}", revoke_service_key, methods=["DELETE"]),
    ]
