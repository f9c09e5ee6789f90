"""Submit jobs on behalf of callers. The application decides how the jobs of users run.

The application builds the graph of a job type, so the graph is submitted with the rights of the application.
The user becomes its owner, and the limit of unfinished jobs is checked in the same transaction. If no job
type has the name, the engine decides whether the user may submit a task of that type and which options the
user may set (`holdfast.check_user_submission`). It also enforces the limit for every other way to submit as a
user.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.client.submit_options import build_job_request
from holdfast.definitions.job_types import JobType
from holdfast.engine import jobs, quotas
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, InvalidError
from holdfast.model import Json
from holdfast.server.api.identity import (
    Caller,
    choose_role_and_claims,
    identify_caller,
    transaction_as_caller,
)
from holdfast.server.api.request_parsing import MAX_IDEMPOTENCY_KEY_CHARS, get_idempotency_key
from holdfast.server.api.services import get_services
from holdfast.server.api.shard_requests import use_submit_shard
from holdfast.server.api.submit_batches import SubmitCall
from holdfast.tracing import get_current_trace_labels

NonEmptyName = Annotated[str, Meta(min_length=1, max_length=200)]
NonEmptyKey = Annotated[str, Meta(min_length=1, max_length=MAX_IDEMPOTENCY_KEY_CHARS)]
OPTIONS_WITH_LOCKS = frozenset({"key", "unique_key", "debounce_s", "throttle_s", "batch"})
SERVICE_ONLY_FIELDS = ("owner", "queue", "priority")


class StartJobRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to start a job.

    `type` is a job type of the application or a task type, and `params` are its parameters. A repeated
    request with the same `key` returns the same job. While a job with the same `unique` value has not ended,
    no second job is created. Only services may set `owner`, `queue` and `priority`.
    """

    type: NonEmptyName
    params: dict[str, Any] = {}
    key: NonEmptyKey | None = None
    unique: NonEmptyKey | None = None
    labels: dict[NonEmptyName, Annotated[str, Meta(max_length=500)]] | None = None
    delay_s: Annotated[float, Meta(ge=0, le=315360000)] | None = None
    run_at: datetime | None = None
    expires_at: datetime | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    batch: UUID | None = None
    owner: NonEmptyName | None = None
    queue: NonEmptyName | None = None


async def start_job_for_caller(request: Request, body: StartJobRequest) -> jobs.SubmitResult:
    """Submit a job of the requested job type, or of one task if `type` is a task type."""
    caller = await identify_caller(request)
    _reject_service_only_fields(caller, body)
    services = get_services(request)
    job_type = services.job_types.get(body.type)
    key = get_idempotency_key(request, body.key)
    if job_type is not None:
        return await _submit_job_of_type(request, caller, job_type, body, key)
    job: dict[str, Json] = {"type": body.type, "args": body.params, **_build_submit_options(body)}
    if body.queue is not None:
        job["queue"] = body.queue
    task = services.tasks.get(body.type)
    if task is not None:
        job.setdefault("queue", task.queue)
        if caller.owner is not None:
            return await _submit_public_task(request, caller.owner, job, key)
    return await submit_job_for_caller(request, job, key)


async def _submit_public_task(
    request: Request, owner: str, job: dict[str, Json], key: str | None
) -> jobs.SubmitResult:
    """Submit a task for a user to the queue that the application declares, which users may not choose."""
    job = {**job, "check": True} if key is None else {**job, "check": True, "key": key}
    await use_submit_shard(request, job, owner)
    max_jobs = get_services(request).settings.user_jobs
    batch_id = UUID(str(job["batch"])) if "batch" in job else None
    if batch_id is None and await get_services(request).can_submit_as_role():
        return await _submit_in_one_call(request, job, as_service=True, owner=owner, only_public=True)
    async with transaction_as_caller(request, as_service=True) as connection:
        await _check_batch_owner(connection, batch_id, owner)
        return await quotas.submit_public_job(connection, msgspec.json.encode(job), owner, max_jobs)


async def _submit_in_one_call(
    request: Request,
    job: dict[str, Json],
    *,
    as_service: bool,
    owner: str | None = None,
    only_public: bool = False,
) -> jobs.SubmitResult:
    """Submit without opening a transaction first, which would cost three more round trips."""
    services = get_services(request)
    role, claims = await choose_role_and_claims(request, as_service=as_service)
    call = SubmitCall(
        msgspec.json.encode(job),
        role,
        msgspec.json.encode(claims),
        services.settings.user_jobs,
        owner,
        only_public,
        alone=only_public or role == "authenticated" or _needs_more_than_an_insert(job),
    )
    return await services.submit_batcher.submit(call)


def _needs_more_than_an_insert(job: dict[str, Json]) -> bool:
    has_several_tasks = isinstance(job.get("tasks"), list) and len(job["tasks"]) > 1
    return has_several_tasks or not OPTIONS_WITH_LOCKS.isdisjoint(job)


async def _submit_job_of_type(
    request: Request, caller: Caller, job_type: JobType[Any], body: StartJobRequest, key: str | None
) -> jobs.SubmitResult:
    if caller.kind == "user" and not job_type.public:
        raise HTTPException(403, f'The job type "{job_type.name}" is not public')
    job = build_job_request(job_type(body.params), {}) | _build_submit_options(body)
    if key is not None:
        job["key"] = key
    await use_submit_shard(request, job, caller.owner)
    if body.batch is None and await get_services(request).can_submit_as_role():
        return await _submit_in_one_call(request, job, as_service=True, owner=caller.owner)
    async with transaction_as_caller(request, as_service=True) as connection:
        text = msgspec.json.encode(job)
        if caller.owner is None:
            return await jobs.submit(connection, text)
        await _check_batch_owner(connection, body.batch, caller.owner)
        max_jobs = get_services(request).settings.user_jobs
        return await quotas.submit_within_job_limit(connection, text, caller.owner, max_jobs)


async def _check_batch_owner(connection: Connection, batch_id: UUID | None, owner: str) -> None:
    """Reject a batch of another owner with the same error as for a missing batch."""
    if batch_id is None:
        return
    batch = await jobs.get_batch(connection, batch_id)
    if batch is None or batch["owner"] != owner:
        raise ConflictError(
            f"Batch {batch_id} does not exist or is closed.", fix="Open a new one.", field="batch"
        )


async def submit_job_for_caller(
    request: Request, job: dict[str, Json], key: str | None = None
) -> jobs.SubmitResult:
    """Submit a job in the format of the SQL function `submit`, which checks the caller's permissions."""
    key = key or get_idempotency_key(request, job.get("key"))
    job = {**job, "check": True}
    if trace_labels := get_current_trace_labels():  # workers continue the trace of the request
        job["labels"] = {**(job.get("labels") or {}), **trace_labels}
    if key is not None:
        job["key"] = key
    await use_submit_shard(request, job, (await identify_caller(request)).owner)
    if await get_services(request).can_submit_as_role():
        return await _submit_in_one_call(request, job, as_service=False)
    async with transaction_as_caller(request) as connection:
        return await jobs.submit(connection, msgspec.json.encode(job))


def _reject_service_only_fields(caller: Caller, body: StartJobRequest) -> None:
    if caller.kind == "service":
        return
    for field in SERVICE_ONLY_FIELDS:
        if getattr(body, field) is not None and getattr(body, field) != caller.id:
            raise HTTPException(403, f"Only services may set {field}")


def _build_submit_options(body: StartJobRequest) -> dict[str, Json]:
    for field in ("run_at", "expires_at"):
        moment: datetime | None = getattr(body, field)
        if moment is not None and moment.tzinfo is None:
            raise InvalidError(f"{field} has no time zone.", fix="Append Z or an offset.", field=field)
    options = {
        "unique_key": body.unique,
        "labels": body.labels,
        "delay_s": body.delay_s,
        "run_at": body.run_at,
        "expires_at": body.expires_at,
        "priority": body.priority,
        "batch": body.batch,
        "owner": body.owner,
    }
    return {name: value for name, value in options.items() if value is not None}
