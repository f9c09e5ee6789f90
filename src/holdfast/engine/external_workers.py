"""Claim and finish tasks for external workers, which use the HTTP API. One coroutine per SQL function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import decode_object
from holdfast.engine.leases import Lease
from holdfast.model import Json


class ExternalTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that an external worker claimed. Later calls must present its id, attempt and nonce."""

    id: UUID
    job_id: UUID
    name: str
    type: str
    queue: str
    attempt: int
    nonce: int
    args: dict[str, Json]
    parents: dict[str, Json]
    lease_s: float
    timeout_s: float


async def claim_tasks(
    connection: Connection,
    worker: str,
    max_tasks: int,
    types: Sequence[str] | None = None,
    queues: Sequence[str] | None = None,
) -> list[ExternalTask]:
    """Claim up to `max_tasks` ready tasks. `types` None claims all task types, `queues` None all queues."""
    rows = await connection.fetch(
        "select * from holdfast.claim_tasks($1, $2, $3, $4)",
        worker,
        max_tasks,
        None if types is None else list(types),
        None if queues is None else list(queues),
    )
    return [_task_from_row(row) for row in rows]


def _task_from_row(row: Any) -> ExternalTask:
    fields = dict(row)
    for name in ("args", "parents"):
        fields[name] = decode_object(fields[name]) if fields[name] else {}
    return ExternalTask(**fields)


async def heartbeat_task(
    connection: Connection,
    lease: Lease,
    *,
    percent: float | None = None,
    phase: str | None = None,
    message: str | None = None,
) -> float:
    """Renew the lease of a task, store its progress, and return the seconds until the lease expires."""
    call = "select holdfast.heartbeat_task($1, $2, $3, $4, $5, $6)"
    return float(
        await connection.fetchval(call, lease.id, lease.attempt, lease.nonce, percent, phase, message)
    )


async def complete_task(connection: Connection, lease: Lease, output: Json) -> None:
    """Complete a task of an external worker and store its output."""
    text = None if output is None else msgspec.json.encode(output).decode()
    call = "select holdfast.complete_task($1, $2, $3, $4)"
    await connection.execute(call, lease.id, lease.attempt, lease.nonce, text)


async def fail_task(
    connection: Connection,
    lease: Lease,
    *,
    error: str,
    error_type: str,
    traceback: str | None,
    retry: bool,
    retry_after_s: float | None,
) -> None:
    """Fail a task of an external worker. With `retry` False the task is not retried."""
    call = "select holdfast.fail_task($1, $2, $3, $4, $5, $6, $7, $8)"
    await connection.execute(
        call, lease.id, lease.attempt, lease.nonce, error, error_type, traceback, retry, retry_after_s
    )


async def snooze_task(connection: Connection, lease: Lease, delay_s: float) -> None:
    """Snooze a task of an external worker: it runs again after `delay_s` seconds. Counts no attempt."""
    call = "select holdfast.snooze_task($1, $2, $3, $4)"
    await connection.execute(call, lease.id, lease.attempt, lease.nonce, delay_s)


async def release_task(connection: Connection, lease: Lease) -> None:
    """Return a task of an external worker to its queue, so that another worker can claim it."""
    call = "select holdfast.release_task($1, $2, $3)"
    await connection.execute(call, lease.id, lease.attempt, lease.nonce)
