"""Webhooks: signatures as Standard Webhooks has them, and the task that delivers.

Three headers: `webhook-id` is the same for every attempt at one delivery, `webhook-timestamp` is that of
the attempt, `webhook-signature` is `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`. Whoever
receives checks the signature, that the time is near, and that the id is new. Our own inbound hooks check
exactly the same.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import time
from collections.abc import Collection, Mapping
from datetime import timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

from holdfast import egress, telemetry
from holdfast.definitions.tasks import Task, task
from holdfast.engine import webhooks as stored
from holdfast.engine.connection import Database
from holdfast.errors import RefusedError, Reject

TYPE = "holdfast.webhook"
QUEUE = "webhooks"
PREFIX = "whsec_"
NEAR_SECONDS = 300


class UndeliveredError(Exception):
    """The other side did not say yes; tried again later."""

    def __init__(self, message: str, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def signature(secret: str, message_id: str, timestamp: str, body: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, sha256)).decode()


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float | None = None) -> str | None:
    """The id of a message whose signature holds and whose time is near; None of any other."""
    message_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not 0 < len(message_id) <= 200 or not message_id.isprintable() or not timestamp.isascii():
        return None
    if not timestamp.isdigit() or len(timestamp) > 12:
        return None
    if abs((time.time() if now is None else now) - int(timestamp)) > NEAR_SECONDS:
        return None
    try:
        expected = signature(secret, message_id, timestamp, body).encode()
    except (binascii.Error, ValueError):
        return None
    given = headers.get("webhook-signature", "")[:2000].split(" ")
    holds = [hmac.compare_digest(each.encode("latin-1", "replace"), expected) for each in given]
    return message_id if any(holds) else None


def delivery(database: Database) -> Task[..., dict[str, Any]]:
    """The task that delivers, for the workers of this database."""
    allowed = egress.Allowed.parse(database.settings.egress_allow)

    @task(name=TYPE, queue=QUEUE, retries=8, timeout=timedelta(seconds=60))
    async def deliver(webhook: UUID, event: str, delivery: str, body: dict[str, Any]) -> dict[str, Any]:
        async with database.connection() as connection:
            to = await stored.get_webhook_target(connection, webhook)
        if to is None:
            raise Reject("The webhook was deleted or is switched off.")
        text = msgspec.json.encode({"type": event, "data": body})
        try:
            target = await egress.resolve(to.url, allowed)
            answer = await egress.post(target, text, headers(to.secret, delivery, text))
            _refuse(answer)
        except Exception as problem:
            await _note(webhook, _told(problem), gone=isinstance(problem, Reject))
            raise
        await _note(webhook)
        return {"status": answer.status}

    async def _note(webhook: UUID, error: str | None = None, *, gone: bool = False) -> None:
        async with database.connection() as connection:
            if await stored.record_webhook_delivery(connection, webhook, error, gone=gone):
                telemetry.emit("webhook.off", webhook=str(webhook), error=error or "")

    return deliver


def with_delivery(
    tasks: Mapping[str, Task[..., Any]], queues: Collection[object], database: Database
) -> dict[str, Task[..., Any]]:
    """The tasks of an application with the one that delivers, unless it was told to serve other queues."""
    if queues:
        return dict(tasks)
    return {TYPE: delivery(database), **tasks}


def headers(secret: str, message_id: str, body: bytes) -> dict[str, str]:
    now = str(int(time.time()))
    return {
        "Content-Type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": now,
        "webhook-signature": signature(secret, message_id, now, body),
    }


def _told(problem: Exception) -> str:
    """For the owner of the webhook, who is not to learn what our network looks like."""
    if isinstance(problem, (Reject, UndeliveredError)):
        return str(problem)
    if isinstance(problem, RefusedError):
        return "The host is not known, or not one that may be called."
    if isinstance(problem, TimeoutError):
        return "The other side did not answer in time."
    return "The other side could not be reached."


def _refuse(answer: egress.Answer) -> None:
    if 200 <= answer.status < 300:
        return
    if answer.status == 410:
        raise Reject("The other side says that this address is gone.")
    wait = answer.headers.get("retry-after", "")
    later = timedelta(seconds=min(int(wait), 86_400)) if wait.isdigit() and len(wait) < 9 else None
    raise UndeliveredError(f"The other side answered {answer.status}.", later)
