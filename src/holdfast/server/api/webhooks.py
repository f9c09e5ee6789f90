"""Webhooks out, for users about their own jobs and for services about all; hooks in, by signature or key."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast import egress, webhooks
from holdfast.engine import access, jobs
from holdfast.engine import webhooks as stored
from holdfast.errors import InvalidError, NotFoundError
from holdfast.server.api.audit import OPERATING, operating
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.jobs import AcceptedJob
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_json, parse_path_uuid, read_body
from holdfast.server.api.services import get_services
from holdfast.server.api.token_verification import UnauthenticatedError

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Event = Literal[
    "job.succeeded", "job.partial", "job.failed", "job.cancelled", "batch.completed", "artifact.expiring"
]
_HOOKS: dict[str, Any] = {"tag": "hooks", **OPERATING}


class NewWebhook(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Without `types`, jobs of every type. `owner` is for services; without it, jobs of everybody."""

    url: Annotated[str, Meta(min_length=8, max_length=2000)]
    events: Annotated[list[Event], Meta(min_length=1, max_length=6)]
    types: Annotated[list[Name], Meta(min_length=1, max_length=50)] | None = None
    owner: Name | None = None


class Switch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """On again counts its failures anew; off keeps it and its secret."""

    active: bool


class MadeWebhook(msgspec.Struct, kw_only=True):
    """`secret` is shown here and never again."""

    id: UUID
    secret: str


class NewHook(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The job gets what was sent as its argument `payload`."""

    type: Name
    queue: Name = "default"
    owner: Name | None = None


class MadeHook(msgspec.Struct, kw_only=True):
    name: str
    secret: str


@api_operation(
    "Be told when jobs end", tag="webhooks", scope="jobs", body=NewWebhook, response=MadeWebhook, status=201
)
async def create(request: Request) -> Response:
    wanted = await parse_body(request, NewWebhook)
    caller = await identify_caller(request)
    if caller.kind == "user" and wanted.owner not in (None, caller.id):
        raise HTTPException(403, "owner is for services")
    egress.read(wanted.url)  # where it leads is looked at with every delivery
    secret = webhooks.new_secret()
    async with transaction_as_caller(request) as connection:
        made = await stored.create_webhook(
            connection,
            url=wanted.url,
            events=wanted.events,
            secret=secret,
            types=wanted.types,
            owner=wanted.owner,
        )
    async with transaction_as_caller(request, as_service=True) as connection:
        await access.record(
            connection, caller.name, "webhook.create", str(made), {"url": wanted.url.partition("?")[0]}
        )
    return json_response(MadeWebhook(id=made, secret=secret), 201)


@api_operation("List webhooks", tag="webhooks", scope="jobs", response=list[stored.Webhook])
async def list_webhooks(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await stored.list_webhooks(connection))


@api_operation(
    "Switch a webhook on or off",
    tag="webhooks",
    scope="jobs",
    body=Switch,
    status=204,
    other_responses={404: "There is no such webhook"},
)
async def switch(request: Request) -> Response:
    webhook_id, wanted = parse_path_uuid(request), await parse_body(request, Switch)
    caller = await identify_caller(request)
    async with transaction_as_caller(request) as connection:
        if not await stored.set_webhook_active(connection, webhook_id, on=wanted.active):
            raise NotFoundError("There is no such webhook.")
    async with transaction_as_caller(request, as_service=True) as connection:
        deed = "webhook.on" if wanted.active else "webhook.off"
        await access.record(connection, caller.name, deed, str(webhook_id))
    return Response(status_code=204)


@api_operation(
    "Delete a webhook",
    tag="webhooks",
    scope="jobs",
    status=204,
    other_responses={404: "There is no such webhook"},
)
async def delete(request: Request) -> Response:
    webhook_id = parse_path_uuid(request)
    async with transaction_as_caller(request) as connection:
        if not await stored.delete_webhook(connection, webhook_id):
            raise NotFoundError("There is no such webhook.")
    return Response(status_code=204)


@api_operation(
    "Make or change an inbound hook; its secret is new each time", body=NewHook, response=MadeHook, **_HOOKS
)
async def put_inbound_webhook(request: Request) -> Response:
    name, wanted = hook_in(request), await parse_body(request, NewHook)
    secret = webhooks.new_secret()
    async with operating(request, "hook.put", name, type=wanted.type, queue=wanted.queue) as connection:
        await stored.put_inbound_webhook(
            connection, name=name, type=wanted.type, queue=wanted.queue, owner=wanted.owner, secret=secret
        )
    return json_response(MadeHook(name=name, secret=secret))


@api_operation("List inbound hooks", response=list[stored.HookView], **_HOOKS)
async def list_inbound_webhooks(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await stored.list_inbound_webhooks(connection))


@api_operation("Delete an inbound hook", status=204, other_responses={404: "There is no such hook"}, **_HOOKS)
async def delete_inbound_webhook(request: Request) -> Response:
    name = hook_in(request)
    async with operating(request, "hook.delete", name) as connection:
        if not await stored.delete_inbound_webhook(connection, name):
            raise NotFoundError("There is no such hook.")
    return Response(status_code=204)


@api_operation(
    "Submit the job of an inbound hook",
    tag="hooks",
    access="anyone",  # a signature takes the place of a key
    scope="hooks",
    body=dict[str, Any],
    response=AcceptedJob,
    status=202,
    other_responses={200: "This message was here before"},
    request_headers=("webhook-id", "webhook-timestamp", "webhook-signature"),
)
async def receive(request: Request) -> Response:
    services, caller = get_services(request), await identify_caller(request)
    name, text = hook_in(request), await read_body(request)
    async with services.database.transaction() as connection:
        hook = await stored.get_inbound_webhook(connection, name)
        message_id = None if hook is None else webhooks.verify(hook.secret, request.headers, text)
        if caller.has_scope("hooks"):
            message_id = message_id or request.headers.get("idempotency-key")
        elif message_id is None:
            services.rate_limiter.take(f"stranger:{request.client.host if request.client else '-'}")
            raise UnauthenticatedError("The signature does not hold")
        if hook is None:
            raise NotFoundError("There is no such hook.")
        job: dict[str, Any] = {
            "type": hook.type,
            "queue": hook.queue,
            "args": {"payload": parse_json(text) if text.strip() else None},
        }
        if hook.owner is not None:
            job["owner"] = hook.owner
        if message_id is not None:
            job["key"] = f"hook:{name}:{message_id[:400]}"
        made = await jobs.submit(connection, msgspec.json.encode(job))
    accepted = AcceptedJob(id=made.id, status=made.status, created=made.created)
    return json_response(accepted, 202 if made.created else 200)


def hook_in(request: Request) -> str:
    name: str = request.path_params["name"]
    if not 0 < len(name) <= 63 or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        raise InvalidError("The name of a hook is letters, digits, - and _.", field="name")
    if name != name.lower() or name[0] in "-_":
        raise InvalidError("The name of a hook is in small letters.", field="name")
    return name


def routes() -> list[BaseRoute]:
    return [
        Route("/api/webhooks", create, methods=["POST"]),
        Route("/api/webhooks", list_webhooks, methods=["GET"]),
        Route("/api/webhooks/{id}", switch, methods=["PATCH"]),
        Route("/api/webhooks/{id}", delete, methods=["DELETE"]),
        Route("/api/hooks", list_inbound_webhooks, methods=["GET"]),
        Route("/api/hooks/{name}", put_inbound_webhook, methods=["PUT"]),
        Route("/api/hooks/{name}", delete_inbound_webhook, methods=["DELETE"]),
        Route("/hooks/{name}", receive, methods=["POST"]),
    ]
