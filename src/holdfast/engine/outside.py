"""The plain calls of workers in any language (functions/outside.sql), for the API to pass on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.leases import Lease
from holdfast.model import Json

_json = msgspec.json.Decoder()


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A task that was handed to a worker, with the lease it has to show from now on."""

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
    most: int,
    types: Sequence[str] | None = None,
    queues: Sequence[str] | None = None,
) -> list[Given]:
    rows = await connection.fetch(
        "select * from holdfast.claim_tasks($1, $2, $3, $4)",
        worker,
        most,
        None if types is None else list(types),
        None if queues is None else list(queues),
    )
    return [_given(row) for row in rows]


def _given(row: Any) -> Given:
    values = dict(row)
    for name in ("args", "parents"):
        values[name] = _json.decode(values[name]) if values[name] else {}
    return Given(**values)


async def heartbeat_task(
    connection: Connection,
    lease: Lease,
    *,
    percent: float | None = None,
    phase: str | None = None,
    message: str | None = None,
) -> float:
    """Seconds that the lease lasts from now."""
    call = "select holdfast.heartbeat_task($1, $2, $3, $4, $5, $6)"
    return float(
        await connection.fetchval(call, lease.id, lease.attempt, lease.nonce, percent, phase, message)
    )


async def complete_task(connection: Connection, lease: Lease, output: Json) -> None:
    text = None if output is None else msgspec.json.encode(output).decode()
    call = "select holdfast.complete_task($1, $2, $3, $4)"
    await connection.execute(call, lease.id, lease.attempt, lease.nonce, text)


async def fail_task(
    connection: Connection,
    lease: Lease,
    *,
    error: str,
    kind: str,
    traceback: str | None,
    retry: bool,
    retry_after_s: float | None,
) -> None:
    call = "select holdfast.fail_task($1, $2, $3, $4, $5, $6, $7, $8)"
    await connection.execute(
        call, lease.id, lease.attempt, lease.nonce, error, kind, traceback, retry, retry_after_s
    )


async def snooze_task(connection: Connection, lease: Lease, delay_s: float) -> None:
    call = "select holdfast.snooze_task($1, $2, $3, $4)"
    await connection.execute(call, lease.id, lease.attempt, lease.nonce, delay_s)


async def release_task(connection: Connection, lease: Lease) -> None:
    call = "select holdfast.release_task($1, $2, $3)"
    await connection.execute(call, lease.id, lease.attempt, lease.nonce)


async def command_worker(connection: Connection, worker: str, command: str | None) -> bool:
    """Whether the worker was there to hear it."""
    return bool(await connection.fetchval("select holdfast.command_worker($1, $2)", worker, command))
