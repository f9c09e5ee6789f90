"""Starting jobs for callers. A user chooses a type that was opened and its parameters, and nothing else.

The graph of a job type is built here, by the application, so it is submitted as the application: in the
caller's name (`owner`), after the caller's quota was checked, in one transaction. Where no job type has the
name, the engine decides whether this caller may submit a task of that type.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.client.bodies import Options, job_body
from holdfast.definitions.job_types import JobType
from holdfast.engine import access, jobs
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, InvalidError
from holdfast.model import Json
from holdfast.server.api.identity import Caller, acting, identify
from holdfast.server.api.services import services_of

Name = Annotated[str, Meta(min_length=1, max_length=200)]
LONGEST_KEY = 500


class Start(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`params` are those of the job type, or the arguments of a task. `owner`, `queue`: for services."""

    type: Name
    params: dict[str, Any] = {}
    key: Annotated[str, Meta(min_length=1, max_length=LONGEST_KEY)] | None = None
    unique: Annotated[str, Meta(min_length=1, max_length=LONGEST_KEY)] | None = None
    labels: dict[Name, Annotated[str, Meta(max_length=500)]] | None = None
    delay_s: Annotated[float, Meta(ge=0, le=315360000)] | None = None
    run_at: datetime | None = None
    expires_at: datetime | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    batch: UUID | None = None
    owner: Name | None = None
    queue: Name | None = None


async def start(request: Request, wanted: Start) -> jobs.Submitted:
    caller = await identify(request)
    _refuse_for_users(caller, wanted)
    chosen = services_of(request).types.get(wanted.type)
    key = key_of(request, wanted.key)
    if chosen is None:
        body: dict[str, Json] = {"type": wanted.type, "args": wanted.params, **_said(wanted)}
        if wanted.queue is not None:
            body["queue"] = wanted.queue
        known = services_of(request).tasks.get(wanted.type)
        if known is not None:
            body.setdefault("queue", known.queue)
        return await submit(request, body, key)
    return await _start_type(request, caller, chosen, wanted, key)


async def _start_type(
    request: Request, caller: Caller, chosen: JobType[Any], wanted: Start, key: str | None
) -> jobs.Submitted:
    if caller.kind == "user" and not chosen.public:
        raise HTTPException(403, "Jobs of this type are not open to users")
    body = job_body(chosen(wanted.params), Options()) | _said(wanted)
    if key is not None:
        body["key"] = key
    if caller.owner is not None:
        body["owner"] = caller.owner
    async with acting(request, as_service=True) as connection:
        if caller.owner is not None:
            await _refuse_foreign_batch(connection, wanted.batch, caller.owner)
        return await _submit(request, connection, caller, body)


async def _refuse_foreign_batch(connection: Connection, batch: UUID | None, owner: str) -> None:
    """The same answer as the engine gives for a batch that is not there."""
    if batch is None:
        return
    there = await jobs.get_batch(connection, batch)
    if there is None or there["owner"] != owner:
        raise ConflictError(f"There is no open batch {batch}.", fix="Open a new one.", field="batch")


async def submit(request: Request, body: dict[str, Json], key: str | None = None) -> jobs.Submitted:
    """A job in the engine's own words; for users the engine asks whether its types are open to them."""
    caller = await identify(request)
    key = key or key_of(request, body.get("key"))
    body = {**body, "check": True}
    if key is not None:
        body["key"] = key
    async with acting(request) as connection:
        return await _submit(request, connection, caller, body)


async def _submit(
    request: Request, connection: Connection, caller: Caller, body: dict[str, Json]
) -> jobs.Submitted:
    text = msgspec.json.encode(body)
    if caller.owner is None:
        return await jobs.submit(connection, text)
    return await access.submit_within(connection, text, caller.owner, services_of(request).settings.user_jobs)


def _refuse_for_users(caller: Caller, wanted: Start) -> None:
    if caller.kind == "service":
        return
    for field in ("owner", "queue", "priority"):
        if getattr(wanted, field) is not None and getattr(wanted, field) != caller.id:
            raise HTTPException(403, f"{field} is for services")


def _said(wanted: Start) -> dict[str, Json]:
    for field in ("run_at", "expires_at"):
        moment: datetime | None = getattr(wanted, field)
        if moment is not None and moment.tzinfo is None:
            raise InvalidError(f"{field} has no time zone.", field=field)
    said = {
        "unique_key": wanted.unique,
        "labels": wanted.labels,
        "delay_s": wanted.delay_s,
        "run_at": wanted.run_at,
        "expires_at": wanted.expires_at,
        "priority": wanted.priority,
        "batch": wanted.batch,
        "owner": wanted.owner,
    }
    return {name: value for name, value in said.items() if value is not None}


def key_of(request: Request, said: object) -> str | None:
    """The key under which a repeated request finds the same job: from the body or the header."""
    header = request.headers.get("idempotency-key")
    if header is None:
        return said if isinstance(said, str) else None
    if not header or len(header) > LONGEST_KEY or not header.isprintable():
        raise InvalidError(f"Idempotency-Key is 1 to {LONGEST_KEY} printable characters.", field="key")
    if said is not None and said != header:
        raise InvalidError("The body and Idempotency-Key name different keys.", field="key")
    return header
