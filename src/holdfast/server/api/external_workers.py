"""Endpoints for external workers, which are written in any language: claim tasks and report outcomes.

A claimed task comes with a `lease`, which the worker sends with every later request. If the lease has passed
to another worker, the response is 409. The worker must then stop working on the task: its reports are
ignored.
"""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import external_workers
from holdfast.engine.leases import Lease
from holdfast.errors import InvalidError
from holdfast.model import Json
from holdfast.server.api.identity import transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_uuid

NonEmptyName = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
LeaseText = Annotated[str, Meta(pattern=r"^[0-9]{1,9}\.[0-9]{1,19}$")]
BoundedSeconds = Annotated[float, Meta(ge=0, le=31536000)]
LEASE_LOST_RESPONSE = {409: "The lease has passed to another worker: stop working on the task"}
_WORKER_ENDPOINT_OPTIONS: dict[str, Any] = {"tag": "external workers", "access": "service", "scope": "worker"}
_LEASED_TASK_ENDPOINT_OPTIONS: dict[str, Any] = {
    **_WORKER_ENDPOINT_OPTIONS,
    "other_responses": LEASE_LOST_RESPONSE,
}


class ClaimTasksRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to claim tasks for an external worker.

    `worker` is the name of your worker. `types` and `queues` restrict the tasks that it gets. The default is
    tasks of all types and queues.
    """

    worker: NonEmptyName
    max_tasks: Annotated[int, Meta(ge=1, le=100)] = 1
    types: list[NonEmptyName] | None = None
    queues: list[NonEmptyName] | None = None


class ClaimedTask(msgspec.Struct, kw_only=True):
    """A claimed task with its arguments, the outputs of its parent tasks, and its lease.

    Send a heartbeat before `lease_s` seconds have passed. Give up after `timeout_s` seconds.
    """

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


class HeartbeatTaskRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to renew the lease of a task and report its progress."""

    lease: LeaseText
    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    phase: Annotated[str, Meta(max_length=200)] | None = None
    message: Annotated[str, Meta(max_length=2000)] | None = None


class LeaseRenewal(msgspec.Struct, kw_only=True):
    """Result of a heartbeat: the lease expires after `lease_s` seconds."""

    lease_s: float


class CompleteTaskRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to complete a task with its output."""

    lease: LeaseText
    output: Any = None


class FailTaskRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to report that an attempt of a task failed.

    Set `retry` to false if another attempt would fail too.
    """

    lease: LeaseText
    error: Annotated[str, Meta(max_length=100_000)] = ""
    type: Annotated[str, Meta(min_length=1, max_length=200)] = "Error"
    traceback: Annotated[str, Meta(max_length=200_000)] | None = None
    retry: bool = True
    retry_after_s: BoundedSeconds | None = None


class SnoozeTaskRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to run a task again after `delay_s` seconds."""

    lease: LeaseText
    delay_s: BoundedSeconds


class ReleaseTaskRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to give up the lease of a task."""

    lease: LeaseText


def parse_lease(request: Request, text: str) -> Lease:
    """Parse the lease that an external worker sent. The task id comes from the path of the request."""
    attempt, _, nonce = text.partition(".")
    if int(nonce) >= 2**63:
        raise InvalidError(
            "The lease is not valid.", fix="Send the lease of the claimed task.", field="lease"
        )
    return Lease(id=parse_path_uuid(request), attempt=int(attempt), nonce=int(nonce))


@api_operation(
    "Claim tasks to run", body=ClaimTasksRequest, response=list[ClaimedTask], **_WORKER_ENDPOINT_OPTIONS
)
async def claim_tasks(request: Request) -> Response:
    body = await parse_body(request, ClaimTasksRequest)
    async with transaction_as_caller(request) as connection:
        tasks = await external_workers.claim_tasks(
            connection, body.worker, body.max_tasks, body.types, body.queues
        )
    return json_response([_build_claimed_task(task) for task in tasks])


def _build_claimed_task(task: external_workers.ExternalTask) -> ClaimedTask:
    fields = msgspec.structs.asdict(task)
    nonce = fields.pop("nonce")
    return ClaimedTask(**fields, lease=f"{task.attempt}.{nonce}")


@api_operation(
    "Renew the lease of a task and report its progress",
    body=HeartbeatTaskRequest,
    response=LeaseRenewal,
    **_LEASED_TASK_ENDPOINT_OPTIONS,
)
async def heartbeat_task(request: Request) -> Response:
    body = await parse_body(request, HeartbeatTaskRequest)
    async with transaction_as_caller(request) as connection:
        lease_s = await external_workers.heartbeat_task(
            connection,
            parse_lease(request, body.lease),
            percent=body.percent,
            phase=body.phase,
            message=body.message,
        )
    return json_response(LeaseRenewal(lease_s=lease_s))


@api_operation(
    "Complete a task with its output", body=CompleteTaskRequest, status=204, **_LEASED_TASK_ENDPOINT_OPTIONS
)
async def complete_task(request: Request) -> Response:
    body = await parse_body(request, CompleteTaskRequest)
    async with transaction_as_caller(request) as connection:
        await external_workers.complete_task(connection, parse_lease(request, body.lease), body.output)
    return Response(status_code=204)


@api_operation(
    "Report that an attempt failed", body=FailTaskRequest, status=204, **_LEASED_TASK_ENDPOINT_OPTIONS
)
async def fail_task(request: Request) -> Response:
    body = await parse_body(request, FailTaskRequest)
    async with transaction_as_caller(request) as connection:
        await external_workers.fail_task(
            connection,
            parse_lease(request, body.lease),
            error=body.error,
            error_type=body.type,
            traceback=body.traceback,
            retry=body.retry,
            retry_after_s=body.retry_after_s,
        )
    return Response(status_code=204)


@api_operation(
    "Run a task later, without counting an attempt",
    body=SnoozeTaskRequest,
    status=204,
    **_LEASED_TASK_ENDPOINT_OPTIONS,
)
async def snooze_task(request: Request) -> Response:
    body = await parse_body(request, SnoozeTaskRequest)
    async with transaction_as_caller(request) as connection:
        await external_workers.snooze_task(connection, parse_lease(request, body.lease), body.delay_s)
    return Response(status_code=204)


@api_operation(
    "Give a task back to its queue, without counting an attempt",
    body=ReleaseTaskRequest,
    status=204,
    **_LEASED_TASK_ENDPOINT_OPTIONS,
)
async def release_task(request: Request) -> Response:
    body = await parse_body(request, ReleaseTaskRequest)
    async with transaction_as_caller(request) as connection:
        await external_workers.release_task(connection, parse_lease(request, body.lease))
    return Response(status_code=204)


def build_external_worker_routes() -> list[BaseRoute]:
    return [
        Route("/api/worker/claim", claim_tasks, methods=["POST"]),
        Route("/api/tasks/{id}/heartbeat", heartbeat_task, methods=["POST"]),
        Route("/api/tasks/{id}/complete", complete_task, methods=["POST"]),
        Route("/api/tasks/{id}/fail", fail_task, methods=["POST"]),
        Route("/api/tasks/{id}/snooze", snooze_task, methods=["POST"]),
        Route("/api/tasks/{id}/release", release_task, methods=["POST"]),
    ]
