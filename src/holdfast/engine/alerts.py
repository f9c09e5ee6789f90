"""Read and change alerts, their rules, silences and channels. One coroutine per SQL function."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, get_args
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection

AlertSeverity = Literal["critical", "warning", "info"]
AlertStatus = Literal["pending", "firing", "resolved"]
AlertChannelKind = Literal["webhook", "slack", "email"]
AlertKind = Literal[
    "queue_age",
    "no_worker",
    "failure_rate",
    "failed_jobs",
    "dead_letters",
    "lost_workers",
    "schedule_missed",
    "storage",
    "old_snapshot",
    "queue_paused",
    "webhook_failing",
    "bulk_stopped",
]
ALERT_KINDS: tuple[str, ...] = get_args(AlertKind)
ALERT_SEVERITIES: tuple[str, ...] = get_args(AlertSeverity)
ALERT_CHANNEL_KINDS: tuple[str, ...] = get_args(AlertChannelKind)


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that an alert rule found. `size` is the number of affected tasks, messages or workers.

    `event` is set in notifications only: why the notification is sent.

    >>> from holdfast import Alert, Client
    >>> client = Client()
    >>> async def main() -> None:
    ...     alerts: list[Alert] = await client.alerts.list()
    ...     for alert in alerts:
    ...         print(alert.severity, alert.rule, alert.subject, alert.size)
    """

    id: UUID
    rule: str
    kind: str
    subject: str
    severity: str
    status: str
    value: float | None
    threshold: float | None
    size: int
    detail: dict[str, Any]
    started_at: datetime
    fired_at: datetime | None = None
    seen_at: datetime | None = None
    resolved_at: datetime | None = None
    acknowledged_at: datetime | None = None
    acknowledged_by: str | None = None
    note: str | None = None
    silenced_until: datetime | None = None
    event: str | None = None


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """What is watched. `threshold` and `clear_below` are in the unit of the kind, as in `put_alert_rule`.

    `subject` limits the rule to one queue, task type or schedule, or to those that match `mail-*`.

    >>> from holdfast import AlertRule, Client
    >>> client = Client()
    >>> async def main() -> None:
    ...     rule = AlertRule(name="mail-age", kind="queue_age", subject="mail", threshold=300)
    ...     await client.alerts.put_rule(rule)
    """

    name: str
    kind: str
    threshold: float
    clear_below: float | None = None
    subject: str | None = None
    severity: str = "warning"
    for_s: float = 0
    clear_after_s: float = 60
    window_s: float = 900
    min_count: int = 1
    repeat_s: float | None = None
    channels: list[str] | None = None
    enabled: bool = True
    last_error: str | None = None
    firing: int = 0


class AlertSilence(msgspec.Struct, frozen=True, kw_only=True):
    """A time without notifications. Without `rule` and `subject` it is for all alerts.

    >>> from datetime import timedelta
    >>> from holdfast import AlertSilence, Client
    >>> client = Client()
    >>> async def main() -> None:
    ...     await client.alerts.silence(timedelta(hours=1), by="ann", subject="mail", reason="moving house")
    ...     silences: list[AlertSilence] = await client.alerts.list_silences()
    ...     print(silences[0].until)
    """

    id: UUID
    rule: str | None
    subject: str | None
    until: datetime
    created_by: str
    reason: str | None
    created_at: datetime


class AlertChannel(msgspec.Struct, frozen=True, kw_only=True):
    """Where notifications are sent. `target` leaves out the secret part of a URL."""

    name: str
    kind: str
    target: str
    enabled: bool
    created_at: datetime
    sent_at: datetime | None
    failing_since: datetime | None
    failures: int
    last_error: str | None


class AlertTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The complete address of a channel, and the secret that signs its requests."""

    kind: str
    target: str
    secret: str | None


async def evaluate_alerts(connection: Connection, *, force: bool = False) -> int | None:
    """Evaluate all rules, unless anybody did in the last 30 seconds. Return the number of changed alerts."""
    if force:
        count: int | None = await connection.fetchval("select holdfast.evaluate_alerts(0)")
    else:
        count = await connection.fetchval("select holdfast.evaluate_alerts()")
    return count


async def list_alerts(connection: Connection, *, resolved: bool = False, limit: int = 100) -> list[Alert]:
    """List the alerts that fire, by severity and size, or the resolved ones, newest first."""
    rows = await connection.fetch("select holdfast.list_alerts($1, $2)", resolved, limit)
    return [msgspec.json.decode(row[0], type=Alert) for row in rows]


async def get_alert(connection: Connection, alert_id: UUID) -> Alert:
    """Return an alert. Raise NotFoundError if it does not exist."""
    text = await connection.fetchval("select holdfast.get_alert($1)", alert_id)
    return msgspec.json.decode(text, type=Alert)


async def acknowledge_alert(connection: Connection, alert_id: UUID, by: str, note: str | None = None) -> bool:
    """Record that somebody takes care of an alert. Return False if it is not firing."""
    call = "select holdfast.acknowledge_alert($1, $2, $3)"
    return bool(await connection.fetchval(call, alert_id, by, note))


async def silence_alerts(
    connection: Connection,
    until: datetime,
    by: str,
    *,
    rule: str | None = None,
    subject: str | None = None,
    reason: str | None = None,
) -> UUID:
    """Send no notifications until a time, for a rule, a subject or everything. Return the silence's id."""
    call = "select holdfast.silence_alerts($1, $2, $3, $4, $5)"
    silence_id: UUID = await connection.fetchval(call, until, rule, subject, by, reason)
    return silence_id


async def end_alert_silence(connection: Connection, silence_id: UUID) -> bool:
    """End a silence. Return False if it does not exist or has ended."""
    return bool(await connection.fetchval("select holdfast.end_alert_silence($1)", silence_id))


async def list_alert_silences(connection: Connection) -> list[AlertSilence]:
    """List the silences that have not ended."""
    rows = await connection.fetch("select * from holdfast.list_alert_silences()")
    return [AlertSilence(**dict(row)) for row in rows]


async def list_alert_rules(connection: Connection) -> list[AlertRule]:
    """List alert rules by name."""
    rows = await connection.fetch("select holdfast.list_alert_rules()")
    return [msgspec.json.decode(row[0], type=AlertRule) for row in rows]


async def put_alert_rule(connection: Connection, rule: AlertRule) -> None:
    """Create or replace an alert rule."""
    call = "select holdfast.put_alert_rule($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
    await connection.execute(
        call,
        rule.name,
        rule.kind,
        rule.threshold,
        rule.clear_below,
        rule.subject,
        rule.severity,
        rule.for_s,
        rule.clear_after_s,
        rule.window_s,
        rule.min_count,
        rule.repeat_s,
        rule.channels,
        rule.enabled,
    )


async def set_alert_rule_enabled(connection: Connection, name: str, *, enabled: bool) -> bool:
    """Enable or disable a rule. Return False if it does not exist."""
    return bool(await connection.fetchval("select holdfast.set_alert_rule_enabled($1, $2)", name, enabled))


async def delete_alert_rule(connection: Connection, name: str) -> bool:
    """Delete a rule and end its alerts. Return False if it does not exist."""
    return bool(await connection.fetchval("select holdfast.delete_alert_rule($1)", name))


async def list_alert_channels(connection: Connection) -> list[AlertChannel]:
    """List channels by name, without their secrets."""
    rows = await connection.fetch("select * from holdfast.list_alert_channels()")
    return [AlertChannel(**dict(row)) for row in rows]


async def put_alert_channel(
    connection: Connection, name: str, kind: str, target: str, secret: str | None = None
) -> None:
    """Create or replace a channel. Raise InvalidError that names the field for a bad address."""
    call = "select holdfast.put_alert_channel($1, $2, $3, $4)"
    await connection.execute(call, name, kind, target, secret)


async def set_alert_channel_enabled(connection: Connection, name: str, *, enabled: bool) -> bool:
    """Enable a channel, which clears its failures, or disable it. Return False if it does not exist."""
    return bool(await connection.fetchval("select holdfast.set_alert_channel_enabled($1, $2)", name, enabled))


async def delete_alert_channel(connection: Connection, name: str) -> bool:
    """Delete a channel. Return False if it does not exist."""
    return bool(await connection.fetchval("select holdfast.delete_alert_channel($1)", name))


async def send_test_notification(connection: Connection, name: str) -> UUID:
    """Submit a test notification to a channel and return the id of its job."""
    job_id: UUID = await connection.fetchval("select holdfast.test_alert_channel($1)", name)
    return job_id


async def find_alert_channel_target(connection: Connection, name: str) -> AlertTarget | None:
    """Return the address of a channel, or None if it was deleted or disabled."""
    row = await connection.fetchrow("select * from holdfast.find_alert_channel_target($1)", name)
    return None if row is None else AlertTarget(**dict(row))


async def record_alert_delivery(connection: Connection, name: str, error: str | None = None) -> None:
    """Record the result of a notification. A success has no `error`."""
    await connection.execute("select holdfast.record_alert_delivery($1, $2)", name, error)


async def has_late_alert_notifications(connection: Connection, age_s: float) -> bool:
    """Return whether a notification waits for longer than `age_s`."""
    return bool(await connection.fetchval("select holdfast.has_late_alert_notifications($1)", age_s))
