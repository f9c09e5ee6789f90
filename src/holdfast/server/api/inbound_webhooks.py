"""Endpoints for inbound webhooks. A signed call of another service submits a job."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast import webhooks
from holdfast.engine import jobs
from holdfast.engine import webhooks as engine_webhooks
from holdfast.errors import InvalidError, NotFoundError
from holdfast.server.api.audit import OPERATOR_ENDPOINT_OPTIONS, audited_transaction
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.jobs import AcceptedJob
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation, count_unauthenticated_request
from holdfast.server.api.request_parsing import parse_body, parse_json, read_body
from holdfast.server.api.services import get_services
from holdfast.server.api.token_verification import UnauthenticatedError

NonEmptyName = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
MAX_WEBHOOK_NAME_CHARS = 63
MAX_WEBHOOK_MESSAGE_ID_CHARS = 400
_INBOUND_WEBHOOK_ENDPOINT_OPTIONS: dict[str, Any] = {"tag": "inbound webhooks", **OPERATOR_ENDPOINT_OPTIONS}


class PutInboundWebhookRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to create or replace an inbound webhook: the job that each call submits.

    The job gets the body of the call as its argument `payload`.
    """

    type: NonEmptyName
    queue: NonEmptyName = "default"
    owner: NonEmptyName | None = None


class InboundWebhookSecret(msgspec.Struct, kw_only=True):
    """The signing secret of a new inbound webhook. The secret cannot be read again."""

    name: str
    secret: str


@api_operation(
    "Create or replace an inbound webhook, with a new secret",
    body=PutInboundWebhookRequest,
    response=InboundWebhookSecret,
    **_INBOUND_WEBHOOK_ENDPOINT_OPTIONS,
)
async def put_inbound_webhook(request: Request) -> Response:
    name, body = _parse_webhook_name(request), await parse_body(request, PutInboundWebhookRequest)
    secret = webhooks.generate_webhook_secret()
    async with audited_transaction(request, "hook.put", name, type=body.type, queue=body.queue) as connection:
        await engine_webhooks.put_inbound_webhook(
            connection, name=name, job_type=body.type, queue=body.queue, owner=body.owner, secret=secret
        )
    return json_response(InboundWebhookSecret(name=name, secret=secret))


@api_operation(
    "List inbound webhooks",
    response=list[engine_webhooks.InboundWebhookSummary],
    **_INBOUND_WEBHOOK_ENDPOINT_OPTIONS,
)
async def list_inbound_webhooks(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await engine_webhooks.list_inbound_webhooks(connection))


@api_operation(
    "Delete an inbound webhook",
    status=204,
    other_responses={404: "The inbound webhook does not exist"},
    **_INBOUND_WEBHOOK_ENDPOINT_OPTIONS,
)
async def delete_inbound_webhook(request: Request) -> Response:
    name = _parse_webhook_name(request)
    async with audited_transaction(request, "hook.delete", name) as connection:
        if not await engine_webhooks.delete_inbound_webhook(connection, name):
            raise NotFoundError(f"Inbound webhook {name!r} does not exist.")
    return Response(status_code=204)


@api_operation(
    "Call an inbound webhook: submit its job",
    tag="inbound webhooks",
    access="anyone",  # a signature can replace the key
    scope="hooks",
    body=dict[str, Any],
    response=AcceptedJob,
    status=202,
    other_responses={200: "The message was received before"},
    request_headers=("webhook-id", "webhook-timestamp", "webhook-signature"),
)
async def receive_webhook(request: Request) -> Response:
    services, caller = get_services(request), await identify_caller(request)
    name, text = _parse_webhook_name(request), await read_body(request)
    async with services.database.transaction() as connection:
        webhook = await engine_webhooks.get_inbound_webhook(connection, name)
        message_id = None
        if webhook is not None:
            message_id = webhooks.verify_webhook(webhook.secret, request.headers, text)
        if caller.has_scope("hooks"):
            message_id = message_id or request.headers.get("idempotency-key")
        elif message_id is None:
            # The response for an unknown name is the same, so that nobody can guess names.
            count_unauthenticated_request(request)
            raise UnauthenticatedError("The signature is not valid")
        if webhook is None:
            raise NotFoundError(f"Inbound webhook {name!r} does not exist.")
        job: dict[str, Any] = {
            "type": webhook.job_type,
            "queue": webhook.queue,
            "args": {"payload": parse_json(text) if text.strip() else None},
        }
        if webhook.owner is not None:
            job["owner"] = webhook.owner
        if message_id is not None:
            job["key"] = f"hook:{name}:{message_id[:MAX_WEBHOOK_MESSAGE_ID_CHARS]}"
        submitted = await jobs.submit(connection, msgspec.json.encode(job))
    accepted = AcceptedJob(id=submitted.id, status=submitted.status, created=submitted.created)
    return json_response(accepted, 202 if submitted.created else 200)


def _parse_webhook_name(request: Request) -> str:
    name: str = request.path_params["name"]
    letters = name.replace("-", "").replace("_", "")
    if not 0 < len(name) <= MAX_WEBHOOK_NAME_CHARS or not name.isascii() or not letters.isalnum():
        raise InvalidError(
            f"The name of an inbound webhook must be 1 to {MAX_WEBHOOK_NAME_CHARS} letters, digits, - and _.",
            field="name",
        )
    if name != name.lower() or name[0] in "-_":
        raise InvalidError(
            "The name of an inbound webhook must be lower case and start with a letter or digit.",
            field="name",
        )
    return name


def build_inbound_webhook_routes() -> list[BaseRoute]:
    return [
        Route("/api/hooks", list_inbound_webhooks, methods=["GET"]),
        Route("/api/hooks/{name}", put_inbound_webhook, methods=["PUT"]),
        Route("/api/hooks/{name}", delete_inbound_webhook, methods=["DELETE"]),
        Route("/hooks/{name}", receive_webhook, methods=["POST"]),
    ]
