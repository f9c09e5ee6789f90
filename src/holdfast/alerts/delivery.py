"""The task that sends notifications of alerts, and the ways to send them.

A notification is an ordinary job in the queue `alerts`. Every worker for all queues takes such jobs; the API
process takes them when no worker does (`server.api.alert_service`). Either way the lease of the task decides
who sends, so a notification is sent once unless a process dies between sending and recording.
"""

from __future__ import annotations

import asyncio
import smtplib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import msgspec

from holdfast import webhooks
from holdfast.alerts import mail, texts
from holdfast.definitions.tasks import Task, task
from holdfast.egress import EgressPolicy
from holdfast.engine import alerts as stored_alerts
from holdfast.engine.alerts import Alert, AlertTarget
from holdfast.engine.connection import Database
from holdfast.errors import HoldfastError, Reject
from holdfast.settings import Settings

ALERT_TASK_TYPE: Final = "holdfast.alert"
ALERT_QUEUE: Final = "alerts"
TEST_LINE: Final = "This is a test notification of Holdfast. Nothing is wrong."
_SLACK_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class AlertSender:
    """Sends notifications of one database to webhooks, Slack and e-mail."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._policy = replace(EgressPolicy.from_settings(settings), total_timeout=webhooks.WEBHOOK_TIMEOUT)

    async def send(self, target: AlertTarget, alerts: Sequence[Alert], more: int, delivery: str) -> None:
        """Send alerts to one channel. Without alerts, send a test."""
        match target.kind:
            case "webhook":
                await self._send_webhook(target, alerts, more, delivery)
            case "slack":
                body = msgspec.json.encode(
                    {"text": self._format_text(alerts, more).translate(_SLACK_ESCAPES)}
                )
                headers = {"Content-Type": "application/json", "User-Agent": "holdfast-alert"}
                await webhooks.post_webhook(self._policy, target.target, body, headers)
            case _:
                await self._send_mail(target, alerts, more)

    async def _send_webhook(
        self, target: AlertTarget, alerts: Sequence[Alert], more: int, delivery: str
    ) -> None:
        rows = [{**msgspec.structs.asdict(alert), "text": texts.format_alert_line(alert)} for alert in alerts]
        body = msgspec.json.encode(
            {"type": "alerts.changed" if alerts else "alerts.test", "data": {"alerts": rows, "more": more}}
        )
        headers = webhooks.build_webhook_headers(target.secret or "", delivery, body)
        await webhooks.post_webhook(self._policy, target.target, body, headers)

    async def _send_mail(self, target: AlertTarget, alerts: Sequence[Alert], more: int) -> None:
        server = mail.SmtpServer.from_settings(self._settings)
        recipients = [address.strip() for address in target.target.split(",")]
        subject = texts.format_alert_line(alerts[0]) if alerts else TEST_LINE
        if len(alerts) + more > 1:
            subject += f" (and {len(alerts) + more - 1} more)"
        text = self._format_text(alerts, more)
        await asyncio.to_thread(mail.send_mail, server, recipients, subject, text)

    def _format_text(self, alerts: Sequence[Alert], more: int) -> str:
        lines = [texts.format_alert_line(alert) for alert in alerts] or [TEST_LINE]
        if more:
            lines.append(f"and {more} more")
        if self._settings.public_url:
            lines.append(f"{self._settings.public_url.rstrip('/')}/dashboard/alerts")
        return "\n".join(lines)


async def deliver_notification(database: Database, sender: AlertSender, arguments: dict[str, Any]) -> None:
    """Send the notification of a job and record the result with its channel. Raise if it was not sent."""
    channel = str(arguments["channel"])
    async with database.connection() as connection:
        target = await stored_alerts.find_alert_channel_target(connection, channel)
    if target is None:
        raise Reject("The alert channel was deleted or disabled.")
    alerts = msgspec.convert(arguments.get("alerts") or [], list[Alert])
    more, delivery = int(arguments.get("more") or 0), str(arguments.get("delivery") or "")
    error: str | None = None
    try:
        await sender.send(target, alerts, more, delivery)
    except Exception as failure:
        error = format_delivery_error(failure)
        raise
    finally:
        async with database.connection() as connection:
            await stored_alerts.record_alert_delivery(connection, channel, error)


def format_delivery_error(error: Exception) -> str:
    """Say in one sentence why a notification was not sent."""
    if isinstance(error, smtplib.SMTPResponseException):
        text = error.smtp_error
        reason = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        return f"The SMTP server returned {error.smtp_code}: {reason}"
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return f"The SMTP server refused the recipients: {', '.join(error.recipients)}"
    if isinstance(error, smtplib.SMTPException):
        return str(error) or type(error).__name__
    if isinstance(error, HoldfastError) and error.field == "smtp_url":
        return error.message
    return webhooks.format_delivery_error(error)


def build_alert_task(database: Database) -> Task[..., None]:
    """Return the task that sends notifications, for the workers of a database."""
    sender = AlertSender(database.settings)

    @task(name=ALERT_TASK_TYPE, queue=ALERT_QUEUE, retries=7, timeout=timedelta(seconds=60))
    async def send_alert_notification(
        channel: str, delivery: str, alerts: list[dict[str, Any]], more: int = 0
    ) -> None:
        arguments = {"channel": channel, "delivery": delivery, "alerts": alerts, "more": more}
        await deliver_notification(database, sender, arguments)

    return send_alert_notification
