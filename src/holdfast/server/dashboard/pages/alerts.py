"""The alerts page: what fires, who takes care of it, and what is silenced."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from starlette.exceptions import HTTPException

from holdfast.alerts import texts
from holdfast.engine import alerts
from holdfast.engine.alerts import Alert
from holdfast.errors import InvalidError
from holdfast.server.dashboard.alert_links import list_alert_links
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest

MAX_RESOLVED_ALERTS = 20
SILENCE_DURATIONS = {
    "1h": timedelta(hours=1),
    "4h": timedelta(hours=4),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
}
SILENCE_TEXTS = {"1h": "1 hour", "4h": "4 hours", "1d": "1 day", "7d": "7 days"}


@register_page("/alerts", "system.view")
async def list_alerts(request: PageRequest) -> DashboardPage:
    connection = request.connection
    firing = await alerts.list_alerts(connection, limit=200)
    resolved = await alerts.list_alerts(connection, resolved=True, limit=MAX_RESOLVED_ALERTS)
    channels = await alerts.list_alert_channels(connection)
    values: dict[str, Any] = {
        "rows": [_format_alert(request, alert) for alert in firing],
        "resolved": [_format_alert(request, alert) for alert in resolved],
        "silences": await alerts.list_alert_silences(connection),
        "has_channels": any(channel.enabled for channel in channels),
        "failing_channels": [channel for channel in channels if channel.enabled and channel.failing_since],
        "silence_texts": SILENCE_TEXTS,
    }
    return DashboardPage("alerts.html", "Alerts", values)


def _format_alert(request: PageRequest, alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert,
        "subject": texts.format_alert_subject(alert),
        "text": texts.describe_alert(alert),
        "links": list_alert_links(request, alert),
    }


@register_action("/alerts/{id}/acknowledge", "alert.act")
async def acknowledge_alert(action: ActionRequest) -> tuple[str, str]:
    alert_id, note = action.request.parse_id(), action.get_text("note") or None
    changed = await alerts.acknowledge_alert(action.connection, alert_id, action.actor_name, note)
    if not changed:
        return "/alerts", "The alert does not fire any more."
    await action.record_audit("alert.acknowledge", alert_id, note=note)
    return "/alerts", "Alert acknowledged. It sends no reminders."


@register_action("/alerts/silence", "alert.act")
async def silence_alerts(action: ActionRequest) -> tuple[str, str]:
    span = action.get_text("span")
    if span not in SILENCE_DURATIONS:
        raise InvalidError(f"Choose a duration: {', '.join(SILENCE_DURATIONS)}.", field="span")
    rule, subject = action.get_text("rule") or None, action.get_text("subject") or None
    until: datetime = action.request.now + SILENCE_DURATIONS[span]
    silence_id = await alerts.silence_alerts(
        action.connection,
        until,
        action.actor_name,
        rule=rule,
        subject=subject,
        reason=action.get_text("reason") or None,
    )
    await action.record_audit("alert.silence", silence_id, rule=rule, subject=subject, span=span)
    return "/alerts", f"Silenced for {SILENCE_TEXTS[span]}."


@register_action("/alerts/silences/{id}/end", "alert.act")
async def end_silence(action: ActionRequest) -> tuple[str, str]:
    silence_id = action.request.parse_id()
    if not await alerts.end_alert_silence(action.connection, silence_id):
        raise HTTPException(404, "The silence does not exist or has ended.")
    await action.record_audit("alert.end_silence", silence_id)
    return "/alerts", "Silence ended."
