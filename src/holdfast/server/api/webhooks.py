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
from holdfast.server.api.bodies import answer, body_of, parse, raw_body, uuid_in
from holdfast.server.api.identity import acting, identify
from holdfast.server.api.jobs import Accepted
from holdfast.server.api.operating import OPERATING, operating
from holdfast.server.api.operations import operation
from holdfast.server.api.services import services_of
from holdfast.server.api.tokens import UnauthenticatedError

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


@operation(
    "Be told when jobs end", tag="webhooks", scope="jobs", body=NewWebhook, answer=MadeWebhook, status=201
)
async def create(request: Request) -> Response:
    wanted = await body_of(request, NewWebhook)
    caller = await identify(request)
    if caller.kind == "user" and wanted.owner not in (None, caller.id):
        raise HTTPException(403, "owner is for services")
    egress.read(wanted.url)  # where it leads is looked at with every delivery
    secret = webhooks.new_secret()
    async with acting(request) as connection:
        made = await stored.put_webhook(
            connection,
            url=wanted.url,
            events=wanted.events,
            secret=secret,
            types=wanted.types,
            owner=wanted.owner,
        )
    async with acting(request, as_service=True) as connection:
        await access.record(
            connection, caller.name, "webhook.create", str(made), {"url": wanted.url.partition("?")[0]}
        )
    return answer(MadeWebhook(id=made, secret=secret), 201)


@operation("List webhooks", tag="webhooks", scope="jobs", answer=list[stored.Webhook])
async def list_webhooks(request: Request) -> Response:
    async with acting(request) as connection:
        return answer(await stored.list_webhooks(connection))


@operation(
    "Switch a webhook on or off",
    tag="webhooks",
    scope="jobs",
    body=Switch,
    status=204,
    others={404: "There is no such webhook"},
)
async def switch(request: Request) -> Response:
    webhook_id, wanted = uuid_in(request), await body_of(request, Switch)
    caller = await identify(request)
    async with acting(request) as connection:
        if not await stored.switch_webhook(connection, webhook_id, on=wanted.active):
            raise NotFoundError("There is no such webhook.")
    async with acting(request, as_service=True) as connection:
        deed = "webhook.on" if wanted.active else "webhook.off"
        await access.record(connection, caller.name, deed, str(webhook_id))
    return Response(status_code=204)


@operation(
    "Delete a webhook", tag="webhooks", scope="jobs", status=204, others={404: "There is no such webhook"}
)
async def delete(request: Request) -> Response:
    webhook_id = uuid_in(request)
    async with acting(request) as connection:
        if not await stored.delete_webhook(connection, webhook_id):
            raise NotFoundError("There is no such webhook.")
    return Response(status_code=204)


@operation(
    "Make or change an inbound hook; its secret is new each time", body=NewHook, answer=MadeHook, **_HOOKS
)
async def put_hook(request: Request) -> Response:
    name, wanted = hook_in(request), await body_of(request, NewHook)
    secret = webhooks.new_secret()
    async with operating(request, "hook.put", name, type=wanted.type, queue=wanted.queue) as connection:
        await stored.put_hook(
            connection, name=name, type=wanted.type, queue=wanted.queue, owner=wanted.owner, secret=secret
        )
    return answer(MadeHook(name=name, secret=secret))


@operation("List inbound hooks", answer=list[stored.HookView], **_HOOKS)
async def list_hooks(request: Request) -> Response:
    async with acting(request) as connection:
        return answer(await stored.list_hooks(connection))


@operation("Delete an inbound hook", status=204, others={404: "There is no such hook"}, **_HOOKS)
async def delete_hook(request: Request) -> Response:
    name = hook_in(request)
    async with operating(request, "hook.delete", name) as connection:
        if not await stored.delete_hook(connection, name):
            raise NotFoundError("There is no such hook.")
    return Response(status_code=204)


@operation(
    "Submit the job of an inbound hook",
    tag="hooks",
    access="anyone",  # a signature takes the place of a key
    scope="hooks",
    body=dict[str, Any],
    answer=Accepted,
    status=202,
    others={200: "This message was here before"},
    headers=("webhook-id", "webhook-timestamp", "webhook-signature"),
)
async def receive(request: Request) -> Response:
    services, caller = services_of(request), await identify(request)
    name, text = hook_in(request), await raw_body(request)
    async with services.database.transaction() as connection:
        hook = await stored.get_hook(connection, name)
        message_id = None if hook is None else webhooks.verify(hook.secret, request.headers, text)
        if caller.may("hooks"):
            message_id = message_id or request.headers.get("idempotency-key")
        elif message_id is None:
            services.rates.take(f"stranger:{request.client.host if request.client else '-'}")
            raise UnauthenticatedError("The signature does not hold")
        if hook is None:
            raise NotFoundError("There is no such hook.")
        job: dict[str, Any] = {
            "type": hook.type,
            "queue": hook.queue,
            "args": {"payload": parse(text) if text.strip() else None},
        }
        if hook.owner is not None:
            job["owner"] = hook.owner
        if message_id is not None:
            job["key"] = f"hook:{name}:{message_id[:400]}"
        made = await jobs.submit(connection, msgspec.json.encode(job))
    accepted = Accepted(id=made.id, status=made.status, created=made.created)
    return answer(accepted, 202 if made.created else 200)


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
        Route("/api/hooks", list_hooks, methods=["GET"]),
        Route("/api/hooks/{name}", put_hook, methods=["PUT"]),
        Route("/api/hooks/{name}", delete_hook, methods=["DELETE"]),
        Route("/hooks/{name}", receive, methods=["POST"]),
    ]
