"""Workers in other languages: claim tasks, keep them, and hand in what became of them, over HTTP.

A claimed task comes with a `lease`, a word that is shown in every later call. When the lease has passed to
someone else the answer is 409, and the worker stops: nothing it says about that task is wanted any more.
"""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import outside
from holdfast.engine.leases import Lease
from holdfast.errors import InvalidError
from holdfast.model import Json
from holdfast.server.api.identity import transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_uuid

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
LeaseText = Annotated[str, Meta(pattern=r"^[0-9]{1,9}\.[0-9]{1,19}$")]
Seconds = Annotated[float, Meta(ge=0, le=31536000)]
_WORKING: dict[str, Any] = {"tag": "worker", "access": "service", "scope": "worker"}
_LEASED: dict[str, Any] = {**_WORKING, "other_responses": {409: "The lease has passed to someone else: stop"}}


class Claim(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    worker: Name
    max_tasks: Annotated[int, Meta(ge=1, le=100)] = 1
    types: list[Name] | None = None
    queues: list[Name] | None = None


class ClaimedTask(msgspec.Struct, kw_only=True):
    id: UUID
    job_id: UUID
    name: str
    type: str
    queue: str
    attempt: int
    lease: str
    args: dict[str, Json]
    parents: dict[str, Json]
    lease_s: float
    timeout_s: float


class Heartbeat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    lease: LeaseText
    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    phase: Annotated[str, Meta(max_length=200)] | None = None
    message: Annotated[str, Meta(max_length=2000)] | None = None


class Beaten(msgspec.Struct, kw_only=True):
    """Seconds until the lease ends unless the next heartbeat comes before."""

    lease_s: float


class Complete(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    lease: LeaseText
    output: Any = None


class Fail(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`retry` false: no other attempt will do better."""

    lease: LeaseText
    error: Annotated[str, Meta(max_length=100_000)] = ""
    type: Annotated[str, Meta(min_length=1, max_length=200)] = "Error"
    traceback: Annotated[str, Meta(max_length=200_000)] | None = None
    retry: bool = True
    retry_after_s: Seconds | None = None


class Snooze(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    lease: LeaseText
    delay_s: Seconds


class Release(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    lease: LeaseText


def lease_of(request: Request, text: str) -> Lease:
    attempt, _, nonce = text.partition(".")
    if int(nonce) >= 2**63:
        raise InvalidError("That is no lease.", field="lease")
    return Lease(id=parse_path_uuid(request), attempt=int(attempt), nonce=int(nonce))


@api_operation("Claim tasks for free slots", body=Claim, response=list[ClaimedTask], **_WORKING)
async def claim(request: Request) -> Response:
    wanted = await parse_body(request, Claim)
    async with transaction_as_caller(request) as connection:
        given = await outside.claim_tasks(
            connection, wanted.worker, wanted.max_tasks, wanted.types, wanted.queues
        )
    return json_response([_claimed(task) for task in given])


def _claimed(task: outside.Given) -> ClaimedTask:
    values = msgspec.structs.asdict(task)
    nonce = values.pop("nonce")
    return ClaimedTask(**values, lease=f"{task.attempt}.{nonce}")


@api_operation("Keep a task, and say how far it is", body=Heartbeat, response=Beaten, **_LEASED)
async def heartbeat(request: Request) -> Response:
    said = await parse_body(request, Heartbeat)
    async with transaction_as_caller(request) as connection:
        seconds = await outside.heartbeat_task(
            connection,
            lease_of(request, said.lease),
            percent=said.percent,
            phase=said.phase,
            message=said.message,
        )
    return json_response(Beaten(lease_s=seconds))


@api_operation("Hand in the result of a task", body=Complete, status=204, **_LEASED)
async def complete(request: Request) -> Response:
    said = await parse_body(request, Complete)
    async with transaction_as_caller(request) as connection:
        await outside.complete_task(connection, lease_of(request, said.lease), said.output)
    return Response(status_code=204)


@api_operation("Say that an attempt failed", body=Fail, status=204, **_LEASED)
async def fail(request: Request) -> Response:
    said = await parse_body(request, Fail)
    async with transaction_as_caller(request) as connection:
        await outside.fail_task(
            connection,
            lease_of(request, said.lease),
            error=said.error,
            kind=said.type,
            traceback=said.traceback,
            retry=said.retry,
            retry_after_s=said.retry_after_s,
        )
    return Response(status_code=204)


@api_operation("Put a task off without spending an attempt", body=Snooze, status=204, **_LEASED)
async def snooze(request: Request) -> Response:
    said = await parse_body(request, Snooze)
    async with transaction_as_caller(request) as connection:
        await outside.snooze_task(connection, lease_of(request, said.lease), said.delay_s)
    return Response(status_code=204)


@api_operation("Give a task back without spending an attempt", body=Release, status=204, **_LEASED)
async def release(request: Request) -> Response:
    said = await parse_body(request, Release)
    async with transaction_as_caller(request) as connection:
        await outside.release_task(connection, lease_of(request, said.lease))
    return Response(status_code=204)


def routes() -> list[BaseRoute]:
    ends = {"heartbeat": heartbeat, "complete": complete, "fail": fail, "snooze": snooze, "release": release}
    return [
        Route("/api/worker/claim", claim, methods=["POST"]),
        *(Route(f"/api/tasks/{{id}}/{name}", end, methods=["POST"]) for name, end in ends.items()),
    ]
