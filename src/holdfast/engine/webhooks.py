"""Store, read and delete outbound and inbound webhooks. One coroutine per SQL function."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import cast
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """An outbound webhook: a URL that receives the events of jobs.

    `failing_since` is the time of the first failed delivery after the last success. `disabled_at` and
    `disabled_reason` say when and why the webhook was disabled.
    """

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
    disabled_at: datetime | None
    disabled_reason: str | None


class WebhookTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The URL that receives the deliveries of a webhook, and the secret that signs them."""

    url: str
    secret: str


class InboundWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """An inbound webhook: the job that its requests submit, and the secret that verifies requests."""

    job_type: str
    queue: str
    owner: str | None
    secret: str


class InboundWebhookSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An inbound webhook as it is listed, without its secret."""

    name: str
    type: str
    queue: str
    owner: str | None
    created_at: datetime


async def create_webhook(
    connection: Connection,
    *,
    url: str,
    events: Sequence[str],
    secret: str,
    types: Sequence[str] | None = None,
    owner: str | None = None,
) -> UUID:
    """Create an outbound webhook for these events and return its id."""
    call = "select holdfast.create_webhook($1, $2, $3, $4, $5)"
    type_names = None if types is None else list(types)
    return cast("UUID", await connection.fetchval(call, url, list(events), secret, type_names, owner))


async def list_webhooks(connection: Connection) -> list[Webhook]:
    """List outbound webhooks, newest first."""
    rows = await connection.fetch("select * from holdfast.list_webhooks()")
    return [Webhook(**dict(row)) for row in rows]


async def delete_webhook(connection: Connection, webhook_id: UUID) -> bool:
    """Delete an outbound webhook. Return False if it does not exist."""
    return bool(await connection.fetchval("select holdfast.delete_webhook($1)", webhook_id))


async def set_webhook_active(
    connection: Connection, webhook_id: UUID, *, on: bool, reason: str | None = None
) -> bool:
    """Enable a webhook, which clears its failures, or disable it. Return False if it does not exist."""
    call = "select holdfast.set_webhook_active($1, $2, $3)"
    return bool(await connection.fetchval(call, webhook_id, on, reason))


async def record_webhook_result(
    connection: Connection, webhook_id: UUID, error: str | None = None, *, gone: bool = False
) -> bool:
    """Record the result of a webhook delivery. A success has no `error`; `gone` means 410 Gone.

    Return True if this call disabled the webhook.
    """
    call = "select holdfast.record_webhook_result($1, $2, $3)"
    return bool(await connection.fetchval(call, webhook_id, error, gone))


async def find_webhook_url_and_secret(connection: Connection, webhook_id: UUID) -> WebhookTarget | None:
    """Return the URL and the secret of a webhook, or None if it was deleted or disabled."""
    row = await connection.fetchrow("select * from holdfast.find_webhook_url_and_secret($1)", webhook_id)
    return None if row is None else WebhookTarget(**dict(row))


async def put_inbound_webhook(
    connection: Connection,
    *,
    name: str,
    job_type: str,
    queue: str,
    owner: str | None,
    secret: str,
) -> None:
    """Create or replace the inbound webhook with this name."""
    call = "select holdfast.put_inbound_webhook($1, $2, $3, $4, $5)"
    await connection.execute(call, name, job_type, queue, owner, secret)


async def get_inbound_webhook(connection: Connection, name: str) -> InboundWebhook | None:
    """Return the inbound webhook with this name, or None."""
    row = await connection.fetchrow("select * from holdfast.get_inbound_webhook($1)", name)
    return None if row is None else InboundWebhook(**dict(row))


async def list_inbound_webhooks(connection: Connection) -> list[InboundWebhookSummary]:
    """List inbound webhooks by name."""
    rows = await connection.fetch("select * from holdfast.list_inbound_webhooks()")
    return [InboundWebhookSummary(**dict(row)) for row in rows]


async def delete_inbound_webhook(connection: Connection, name: str) -> bool:
    """Delete an inbound webhook. Return False if it does not exist."""
    return bool(await connection.fetchval("select holdfast.delete_inbound_webhook($1)", name))
