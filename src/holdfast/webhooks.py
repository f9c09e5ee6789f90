"""Webhooks: signatures as Standard Webhooks defines them, and the task that delivers them.

A delivery has three headers. `webhook-id` is the same for every attempt of one delivery. `webhook-timestamp`
is the time of the attempt. `webhook-signature` is `v1,` and the base64 of HMAC-SHA256 over
`id.timestamp.body`. A receiver checks the signature, that the timestamp is recent, and that the id is new.
Inbound webhooks of Holdfast check the same.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

from holdfast import telemetry
from holdfast.definitions.tasks import Task, task
from holdfast.egress import EgressClient, EgressError, EgressPolicy, EgressStream
from holdfast.engine import webhooks as stored_webhooks
from holdfast.engine.connection import Database
from holdfast.errors import Reject
from holdfast.settings import Settings

WEBHOOK_TASK_TYPE = "holdfast.webhook"
WEBHOOK_QUEUE = "webhooks"
WEBHOOK_SECRET_PREFIX = "whsec_"  # noqa: S105  (a prefix, no secret)
MAX_TIMESTAMP_DIFFERENCE_S = 300
MAX_RETRY_AFTER_S = 86_400
WEBHOOK_TIMEOUT = timedelta(seconds=15)


class WebhookDeliveryError(Exception):
    """A webhook delivery failed. The retry waits for `retry_after`, or for the delay of the retry policy."""

    def __init__(self, message: str, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def generate_webhook_secret() -> str:
    """Return a new random secret for a webhook."""
    return WEBHOOK_SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def sign_webhook(secret: str, message_id: str, timestamp: str, body: bytes) -> str:
    """Return the value of the header `webhook-signature`."""
    key = base64.b64decode(secret.removeprefix(WEBHOOK_SECRET_PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, sha256)).decode()


def verify_webhook(
    secret: str, headers: Mapping[str, str], body: bytes, now: float | None = None
) -> str | None:
    """Verify the signature and timestamp of a webhook request. Return its message id, or None if invalid."""
    message_id, timestamp = (
        headers.get("webhook-id", ""),
        headers.get("webhook-timestamp", ""),
    )
    if not 0 < len(message_id) <= 200 or not message_id.isprintable() or not timestamp.isascii():
        return None
    if not timestamp.isdigit() or len(timestamp) > 12:
        return None
    if abs((time.time() if now is None else now) - int(timestamp)) > MAX_TIMESTAMP_DIFFERENCE_S:
        return None
    try:
        expected = sign_webhook(secret, message_id, timestamp, body).encode()
    except (binascii.Error, ValueError):
        return None
    signatures = headers.get("webhook-signature", "")[:2000].split(" ")
    matches = [hmac.compare_digest(each.encode("latin-1", "replace"), expected) for each in signatures]
    return message_id if any(matches) else None


def build_webhook_delivery_task(database: Database) -> Task[..., dict[str, Any]]:
    """Return the task that delivers webhooks, for the workers of a database."""
    policy = replace(EgressPolicy.from_settings(database.settings), total_timeout=WEBHOOK_TIMEOUT)

    @task(name=WEBHOOK_TASK_TYPE, queue=WEBHOOK_QUEUE, retries=8, timeout=timedelta(seconds=60))
    async def deliver(webhook: UUID, event: str, delivery: str, body: dict[str, Any]) -> dict[str, Any]:
        async with database.connection() as connection:
            webhook_target = await stored_webhooks.find_webhook_url_and_secret(connection, webhook)
        if webhook_target is None:
            raise Reject("The webhook was deleted or switched off.")
        text = msgspec.json.encode(
            {"type": event, "data": {**body, **_build_link(database.settings, event, body)}}
        )
        try:
            headers = build_webhook_headers(webhook_target.secret, delivery, text)
            status = await post_webhook(policy, webhook_target.url, text, headers)
        except Exception as error:
            await record_result(webhook, format_delivery_error(error), gone=isinstance(error, Reject))
            raise
        await record_result(webhook)
        return {"status": status}

    async def record_result(webhook: UUID, error: str | None = None, *, gone: bool = False) -> None:
        async with database.connection() as connection:
            if await stored_webhooks.record_webhook_result(connection, webhook, error, gone=gone):
                telemetry.emit("webhook.disabled", webhook=str(webhook), error=error or "")

    return deliver


def _build_link(settings: Settings, event: str, body: Mapping[str, Any]) -> dict[str, str]:
    """Return the link to the job or batch of an event, if the public URL of the API is known."""
    kind = {"job": "jobs", "batch": "batches"}.get(event.partition(".")[0])
    if kind is None or not (settings.public_url or "").startswith("http") or "id" not in body:
        return {}
    return {"url": f"{settings.public_url}/api/{kind}/{body['id']}"}


def add_webhook_delivery_task(
    tasks: Mapping[str, Task[..., Any]], queues: Collection[object], database: Database
) -> dict[str, Task[..., Any]]:
    """Add the task that delivers webhooks to the tasks of a worker that serves all queues."""
    if queues:
        return dict(tasks)
    return {WEBHOOK_TASK_TYPE: build_webhook_delivery_task(database), **tasks}


def build_webhook_headers(secret: str, message_id: str, body: bytes) -> dict[str, str]:
    """Return the headers of a delivery, with its signature."""
    now = str(int(time.time()))
    return {
        "Content-Type": "application/json",
        "User-Agent": "holdfast-webhook",
        "webhook-id": message_id,
        "webhook-timestamp": now,
        "webhook-signature": sign_webhook(secret, message_id, now, body),
    }


async def post_webhook(policy: EgressPolicy, url: str, body: bytes, headers: Mapping[str, str]) -> int:
    """Send a delivery without following redirects, and return the status of the response."""
    async with (
        EgressClient(policy) as client,
        client.stream("POST", url, body, headers=headers, follow_redirects=False) as response,
    ):
        _raise_unless_delivered(response)
        return response.status


_DELIVERY_ERROR_BY_REASON = {
    "refused": "The host does not exist or is not allowed.",
    "dns": "The host does not exist or is not allowed.",
    "timeout": "The endpoint did not respond in time.",
    "tls": "The endpoint has no valid TLS certificate.",
    "response": "The endpoint did not send a valid HTTP response.",
}


def format_delivery_error(error: Exception) -> str:
    """Format a delivery error for the owner of the webhook, without details of our network."""
    if isinstance(error, (Reject, WebhookDeliveryError)):
        return str(error)
    reason = error.reason if isinstance(error, EgressError) else ""
    return _DELIVERY_ERROR_BY_REASON.get(reason, "The endpoint could not be reached.")


def _raise_unless_delivered(response: EgressStream) -> None:
    if 200 <= response.status < 300:
        return
    if response.status == 410:
        raise Reject("The endpoint returned 410 Gone.")
    seconds = response.headers.get("retry-after", "")
    is_number = seconds.isdigit() and len(seconds) < 9
    retry_after = timedelta(seconds=min(int(seconds), MAX_RETRY_AFTER_S)) if is_number else None
    raise WebhookDeliveryError(f"The endpoint returned {response.status}.", retry_after)
