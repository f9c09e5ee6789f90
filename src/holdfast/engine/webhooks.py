"""Webhooks out and hooks in, as the database keeps them. One coroutine per SQL function."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import cast
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """`failing_since` is when the first attempt failed since one was well; `off_why` says why it is off."""

    id: UUID
    owner: str | None
    url: str
    events: list[str]
    types: list[str] | None
    active: bool
    created_at: datetime
    failing_since: datetime | None
    failures: int
    last_error: str | None
    off_at: datetime | None
    off_why: str | None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    secret: str


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A door for one type of job, and what opens it."""

    type: str
    queue: str
    owner: str | None
    secret: str


class HookView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: str
    queue: str
    owner: str | None
    created_at: datetime


async def put_webhook(
    connection: Connection,
    *,
    url: str,
    events: Sequence[str],
    secret: str,
    types: Sequence[str] | None = None,
    owner: str | None = None,
) -> UUID:
    call = "select holdfast.put_webhook($1, $2, $3, $4, $5)"
    chosen = None if types is None else list(types)
    return cast("UUID", await connection.fetchval(call, url, list(events), secret, chosen, owner))


async def list_webhooks(connection: Connection) -> list[Webhook]:
    rows = await connection.fetch("select * from holdfast.list_webhooks()")
    return [Webhook(**dict(row)) for row in rows]


async def delete_webhook(connection: Connection, webhook_id: UUID) -> bool:
    return bool(await connection.fetchval("select holdfast.delete_webhook($1)", webhook_id))


async def switch_webhook(
    connection: Connection, webhook_id: UUID, *, on: bool, why: str | None = None
) -> bool:
    return bool(await connection.fetchval("select holdfast.switch_webhook($1, $2, $3)", webhook_id, on, why))


async def note_delivery(
    connection: Connection, webhook_id: UUID, error: str | None = None, *, gone: bool = False
) -> bool:
    """How an attempt ended. True when the webhook was switched off by it."""
    return bool(
        await connection.fetchval("select holdfast.note_delivery($1, $2, $3)", webhook_id, error, gone)
    )


async def get_delivery(connection: Connection, webhook_id: UUID) -> Delivery | None:
    """None when the webhook was deleted or switched off since."""
    row = await connection.fetchrow("select * from holdfast.get_delivery($1)", webhook_id)
    return None if row is None else Delivery(**dict(row))


async def put_hook(
    connection: Connection,
    *,
    name: str,
    type: str,  # noqa: A002
    queue: str,
    owner: str | None,
    secret: str,
) -> None:
    call = "select holdfast.put_hook($1, $2, $3, $4, $5)"
    await connection.execute(call, name, type, queue, owner, secret)


async def get_hook(connection: Connection, name: str) -> Hook | None:
    row = await connection.fetchrow("select * from holdfast.get_hook($1)", name)
    return None if row is None else Hook(**dict(row))


async def list_hooks(connection: Connection) -> list[HookView]:
    rows = await connection.fetch("select * from holdfast.list_hooks()")
    return [HookView(**dict(row)) for row in rows]


async def delete_hook(connection: Connection, name: str) -> bool:
    return bool(await connection.fetchval("select holdfast.delete_hook($1)", name))
