"""Endpoints for outbound webhooks, which send job events to a URL."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast import egress, webhooks
from holdfast.engine import audit
from holdfast.engine import webhooks as engine_webhooks
from holdfast.errors import NotFoundError
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_uuid

NonEmptyName = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
WebhookEvent = Literal[
    "job.succeeded", "job.partial", "job.failed", "job.cancelled", "batch.completed", "artifact.expiring"
]
_WEBHOOK_NOT_FOUND_RESPONSE = {404: "The webhook does not exist"}


class CreateWebhookRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to create an outbound webhook.

    `url` receives the events. `types` limits the webhook to jobs of these types. Only services may set
    `owner`, which limits it to the jobs of one owner.
    """

    url: Annotated[str, Meta(min_length=8, max_length=2000)]
    events: Annotated[list[WebhookEvent], Meta(min_length=1, max_length=6)]
    types: Annotated[list[NonEmptyName], Meta(min_length=1, max_length=50)] | None = None
    owner: NonEmptyName | None = None


class UpdateWebhookRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to enable or disable a webhook.

    Enabling a webhook resets its failure count. A disabled webhook keeps its secret.
    """

    active: bool


class CreatedWebhook(msgspec.Struct, kw_only=True):
    """The id and signing secret of a new webhook. The secret cannot be read again."""

    id: UUID
    secret: str


@api_operation(
    "Create a webhook that is called when jobs end",
    tag="webhooks",
    scope="jobs",
    body=CreateWebhookRequest,
    response=CreatedWebhook,
    status=201,
)
async def create_webhook(request: Request) -> Response:
    body = await parse_body(request, CreateWebhookRequest)
    caller = await identify_caller(request)
    if caller.kind == "user" and body.owner not in (None, caller.id):
        raise HTTPException(403, "Only services may set owner")
    egress.parse_egress_url(body.url)  # checks the syntax; the address is checked before every delivery
    secret = webhooks.generate_webhook_secret()
    async with transaction_as_caller(request) as connection:
        webhook_id = await engine_webhooks.create_webhook(
            connection,
            url=body.url,
            events=body.events,
            secret=secret,
            types=body.types,
            owner=body.owner,
        )
    async with transaction_as_caller(request, as_service=True) as connection:
        details = {"url": body.url.partition("?")[0]}
        await audit.record_audit_entry(connection, caller.name, "webhook.create", str(webhook_id), details)
    return json_response(CreatedWebhook(id=webhook_id, secret=secret), 201)


@api_operation("List webhooks", tag="webhooks", scope="jobs", response=list[engine_webhooks.Webhook])
async def list_webhooks(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await engine_webhooks.list_webhooks(connection))


@api_operation(
    "Enable or disable a webhook",
    tag="webhooks",
    scope="jobs",
    body=UpdateWebhookRequest,
    status=204,
    other_responses=_WEBHOOK_NOT_FOUND_RESPONSE,
)
async def update_webhook(request: Request) -> Response:
    webhook_id, body = parse_path_uuid(request), await parse_body(request, UpdateWebhookRequest)
    caller = await identify_caller(request)
    async with transaction_as_caller(request) as connection:
        if not await engine_webhooks.set_webhook_active(connection, webhook_id, on=body.active):
            raise NotFoundError(f"Webhook {webhook_id} does not exist.")
    async with transaction_as_caller(request, as_service=True) as connection:
        action = "webhook.enabled" if body.active else "webhook.disabled"
        await audit.record_audit_entry(connection, caller.name, action, str(webhook_id))
    return Response(status_code=204)


@api_operation(
    "Delete a webhook", tag="webhooks", scope="jobs", status=204, other_responses=_WEBHOOK_NOT_FOUND_RESPONSE
)
async def delete_webhook(request: Request) -> Response:
    webhook_id, caller = parse_path_uuid(request), await identify_caller(request)
    async with transaction_as_caller(request) as connection:
        if not await engine_webhooks.delete_webhook(connection, webhook_id):
            raise NotFoundError(f"Webhook {webhook_id} does not exist.")
    async with transaction_as_caller(request, as_service=True) as connection:
        await audit.record_audit_entry(connection, caller.name, "webhook.delete", str(webhook_id))
    return Response(status_code=204)


def build_webhook_routes() -> list[BaseRoute]:
    return [
        Route("/api/webhooks", create_webhook, methods=["POST"]),
        Route("/api/webhooks", list_webhooks, methods=["GET"]),
        Route("/api/webhooks/{id}", update_webhook, methods=["PATCH"]),
        Route("/api/webhooks/{id}", delete_webhook, methods=["DELETE"]),
    ]
