"""The endpoint for database webhooks of Supabase, for tables whose trigger is switched off."""

from __future__ import annotations

import hmac
from functools import wraps
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.errors import InvalidError
from holdfast.server import (
    api_operation,
    get_client,
    get_settings,
    json_response,
    parse_body,
)
from holdfast.systems.clips import clip_queries as queries
from holdfast.systems.clips.clip_endpoints import CLIPS_API_PATH
from holdfast.systems.clips.messages import parse_clip_id
from holdfast.systems.request_context import get_systems_schema

SECRET_HEADER: Final = "x-webhook-secret"  # noqa: S105  (the name of a header)
TABLE: Final = "clipnest_videos"


class WebhookRequest(msgspec.Struct):
    """The body that a database webhook sends. `record` is the new row."""

    type: str
    table: str
    record: dict[str, Any] | None = None


class IngestResponse(msgspec.Struct):
    """Whether a message was sent. It is not if the clip already has one, or is finished or deleted."""

    queued: bool


def create_ingest_routes() -> list[BaseRoute]:
    """Create the route that receives database webhooks."""
    receive_from_service = api_operation(
        "Receive a database webhook for a new clip",
        tag="clips",
        access="service",
        scope="jobs",
        body=WebhookRequest,
        response=IngestResponse,
    )(receive_webhook)

    @wraps(receive_from_service)
    async def choose_caller(request: Request) -> Response:
        """Treat a request with the secret of the webhook as one of a service."""
        receive = receive_webhook if has_webhook_secret(request) else receive_from_service
        return await receive(request)

    return [Route(f"{CLIPS_API_PATH}/ingest", choose_caller, methods=["POST"])]


async def receive_webhook(request: Request) -> Response:
    """Send the message of an inserted row, unless it has one: trigger and webhook do not double it."""
    body = await parse_body(request, WebhookRequest)
    if body.table != TABLE:
        raise InvalidError(f"table must be {TABLE}.", field="table")
    if body.type != "INSERT":
        return json_response(IngestResponse(queued=False))
    clip_id = parse_clip_id({"id": (body.record or {}).get("id")})
    if clip_id is None or "\0" in clip_id:
        raise InvalidError("record must have the id of the new row.", field="record.id")
    async with get_client(request).transaction() as connection:
        queued = await queries.enqueue_clip(connection, get_systems_schema(request), clip_id)
    return json_response(IngestResponse(queued=queued))


def has_webhook_secret(request: Request) -> bool:
    """Return whether the bearer token, or the header x-webhook-secret, is the setting clips_ingest_secret."""
    secret = get_settings(request).clips_ingest_secret
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    bearer_token = token.strip() if scheme.lower() == "bearer" else ""
    candidates = (bearer_token, request.headers.get(SECRET_HEADER, ""))
    return secret is not None and any(
        hmac.compare_digest(text.encode(), secret.reveal().encode()) for text in candidates
    )
