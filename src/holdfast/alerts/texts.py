"""Alerts in words, the same in notifications, on the dashboard and on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.engine.alerts import Alert
from holdfast.formatting import (
    format_count,
    format_long_duration,
    format_number,
    format_size,
    sanitize_text,
    shorten_id,
)

MAX_DETAIL_CHARS: Final = 160
_EVENT_TEXTS = {"firing": "", "reminder": " (still)", "resolved": " (resolved)"}


def format_alert_subject(alert: Alert) -> str:
    """Return the name of what an alert is about: a queue, a task type, a schedule or a part of the system."""
    if alert.kind == "webhook_failing":
        return f"Webhook {shorten_id(alert.subject)}"
    if alert.kind == "bulk_stopped":
        return f"Bulk {_get_text(alert, 'verb')}"
    return {"lost_workers": "Workers", "storage": alert.subject.capitalize(), "old_snapshot": "Database"}.get(
        alert.kind, sanitize_text(alert.subject)
    )


def describe_alert(alert: Alert) -> str:
    """Say what is wrong, as the rest of a sentence that starts with the subject."""
    describe = _DESCRIPTIONS.get(alert.kind)
    return describe(alert) if describe is not None else f"has the value {format_number(alert.value)}"


def format_alert_line(alert: Alert) -> str:
    """Return one line of a notification: severity, subject, what is wrong, and whether it ended."""
    event = _EVENT_TEXTS.get(alert.event or "", "")
    return f"[{alert.severity}] {format_alert_subject(alert)} {describe_alert(alert)}{event}"


def format_alert_value(alert: Alert) -> str:
    """Format the value of an alert in the unit of its kind."""
    return format_rule_value(alert.kind, alert.value)


def format_rule_value(kind: str, value: float | None) -> str:
    """Format a value or a threshold in the unit of a kind: a duration, a share, a size or a number."""
    if value is None:
        return "-"
    if kind in SECONDS_KINDS:
        return format_long_duration(value)
    if kind == "failure_rate":
        return f"{value * 100:.0f} %"
    return format_size(value) if kind == "storage" else format_number(value)


SECONDS_KINDS: Final = frozenset(
    {"queue_age", "no_worker", "schedule_missed", "old_snapshot", "queue_paused"}
)
RULE_KIND_TEXTS: Final[Mapping[str, str]] = {
    "queue_age": "the oldest ready task of a queue waits for longer than this",
    "no_worker": "tasks of a queue without a live worker wait for longer than this",
    "failure_rate": "more than this share of a task type's tasks failed for good",
    "failed_jobs": "more than this number of a task type's tasks failed for good",
    "dead_letters": "a message queue has more than this number of dead letters",
    "lost_workers": "more than this number of workers vanished",
    "schedule_missed": "a schedule is later than this, or could not submit its job",
    "storage": "the database (or, with the subject `files`, all files) is larger than this",
    "old_snapshot": "a transaction is open for longer than this, so vacuum cannot remove dead rows",
    "queue_paused": "a queue with waiting tasks is paused for longer than this",
    "webhook_failing": "a webhook failed more than this number of times, or was disabled",
    "bulk_stopped": "a bulk action stopped because jobs failed again",
}


def _get_text(alert: Alert, name: str) -> str:
    return sanitize_text(alert.detail.get(name) or "", MAX_DETAIL_CHARS)


def _count_tasks(alert: Alert) -> str:
    bound = "" if alert.detail.get("exact", True) else "at least "
    return bound + format_count(alert.size, "task")


def _describe_queue_age(alert: Alert) -> str:
    return f"has {_count_tasks(alert)} waiting, the oldest for {format_long_duration(alert.value or 0)}"


def _describe_missing_worker(alert: Alert) -> str:
    age = format_long_duration(alert.value or 0)
    return f"has no live worker: {_count_tasks(alert)} waiting, the oldest for {age}"


def _describe_failure_rate(alert: Alert) -> str:
    failed, ended = alert.detail.get("failed", alert.size), alert.detail.get("ended", 0)
    share = format_rule_value(alert.kind, alert.value)
    return f"fails: {format_number(failed)} of {format_count(ended, 'task')} ({share})"


def _describe_lost_workers(alert: Alert) -> str:
    names: list[Any] = alert.detail.get("names") or []
    more = f" and {alert.size - len(names)} more" if alert.size > len(names) else ""
    return f"lost: {', '.join(sanitize_text(name, 60) for name in names)}{more}"


def _describe_schedule(alert: Alert) -> str:
    error = _get_text(alert, "error")
    if error:
        return f"could not submit its job: {error}"
    return f"is {format_long_duration(alert.value or 0)} late"


def _describe_storage(alert: Alert) -> str:
    limit = "" if alert.threshold is None else f", more than {format_size(alert.threshold)}"
    return f"has {format_size(alert.value)}{limit}"


def _describe_old_snapshot(alert: Alert) -> str:
    age = format_long_duration(alert.value or 0)
    if alert.detail.get("prepared"):
        return f"has a prepared transaction for {age} ({_get_text(alert, 'prepared')})"
    who = _get_text(alert, "application") or _get_text(alert, "user")
    return f"has a transaction that is open for {age} (process {alert.detail.get('pid')}, {who})"


def _describe_paused_queue(alert: Alert) -> str:
    reason = _get_text(alert, "paused_reason")
    why = f" (“{reason}”)" if reason else ""
    return f"is paused by {_get_text(alert, 'paused_by')}{why}: {_count_tasks(alert)} waiting"


def _describe_webhook(alert: Alert) -> str:
    state = "is disabled" if alert.detail.get("disabled") else "fails"
    return f"{state}: {_get_text(alert, 'error')}"


def _describe_bulk_action(alert: Alert) -> str:
    return f"of {_get_text(alert, 'search') or 'all jobs'} stopped: {_get_text(alert, 'reason')}"


_DESCRIPTIONS: dict[str, Callable[[Alert], str]] = {
    "queue_age": _describe_queue_age,
    "no_worker": _describe_missing_worker,
    "failure_rate": _describe_failure_rate,
    "failed_jobs": lambda alert: f"has {format_count(alert.size, 'failed task')}",
    "dead_letters": lambda alert: f"has {format_count(alert.size, 'dead letter')}",
    "lost_workers": _describe_lost_workers,
    "schedule_missed": _describe_schedule,
    "storage": _describe_storage,
    "old_snapshot": _describe_old_snapshot,
    "queue_paused": _describe_paused_queue,
    "webhook_failing": _describe_webhook,
    "bulk_stopped": _describe_bulk_action,
}
