"""The page of alert rules and channels: what is watched, and who is notified."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import msgspec
from starlette.exceptions import HTTPException

from holdfast import egress, webhooks
from holdfast.alerts import texts
from holdfast.engine import alerts
from holdfast.engine.alerts import AlertRule
from holdfast.errors import InvalidError
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest

_UNIT_TEXTS = {"failure_rate": "from 0 to 1", "storage": "bytes"}


@register_page("/alerts/rules", "system.view")
async def list_alert_rules(request: PageRequest) -> DashboardPage:
    rules = await alerts.list_alert_rules(request.connection)
    values: dict[str, Any] = {
        "rows": [_format_rule(rule) for rule in rules],
        "channels": await alerts.list_alert_channels(request.connection),
        "kind_texts": texts.RULE_KIND_TEXTS,
        "kinds": {kind: f"{kind}: {text}" for kind, text in texts.RULE_KIND_TEXTS.items()},
        "severities": {name: name for name in alerts.ALERT_SEVERITIES},
        "channel_kinds": {
            "slack": "Slack-compatible webhook",
            "email": "e-mail",
            "webhook": "webhook, signed",
        },
    }
    return DashboardPage("alert_rules.html", "Alert rules", values)


def _format_rule(rule: AlertRule) -> dict[str, Any]:
    unit = "seconds" if rule.kind in texts.SECONDS_KINDS else _UNIT_TEXTS.get(rule.kind, "number")
    return {
        "rule": rule,
        "unit": unit,
        "above": texts.format_rule_value(rule.kind, rule.threshold),
        "until": texts.format_rule_value(rule.kind, rule.clear_below),
    }


@register_action("/alerts/rules/set", "alert.edit")
async def set_alert_rule(action: ActionRequest) -> tuple[str, str]:
    name, threshold = action.get_required_text("name"), action.get_number("threshold")
    if threshold is None:
        raise InvalidError("A rule needs a threshold.", field="threshold")
    stored = {rule.name: rule for rule in await alerts.list_alert_rules(action.connection)}.get(name)
    rule = stored or AlertRule(name=name, kind=action.get_required_text("kind"), threshold=threshold)
    rule = msgspec.structs.replace(
        rule,
        threshold=threshold,
        clear_below=action.get_number("clear_below"),
        subject=action.get_text("subject") or None,
        severity=action.get_text("severity") or rule.severity,
        for_s=action.get_number("for_s") or 0,
        repeat_s=action.get_number("repeat_s"),
        channels=[text.strip() for text in action.get_text("channels").split(",") if text.strip()] or None,
    )
    await alerts.put_alert_rule(action.connection, rule)
    await action.record_audit(
        "alert_rule.put", name, kind=rule.kind, threshold=threshold, severity=rule.severity
    )
    return "/alerts/rules", f"Rule {name} saved."


@register_action("/alerts/rules/switch", "alert.edit")
async def switch_alert_rule(action: ActionRequest) -> tuple[str, str]:
    enable = action.get_text("on") == "yes"
    name = action.get_required_text("name")
    change = alerts.set_alert_rule_enabled(action.connection, name, enabled=enable)
    word = "enabled" if enable else "disabled"
    return await _apply(action, change, f"alert_rule.{word}", name, f"Rule {name} {word}.")


@register_action("/alerts/rules/delete", "alert.edit")
async def delete_alert_rule(action: ActionRequest) -> tuple[str, str]:
    name = action.get_required_text("name")
    change = alerts.delete_alert_rule(action.connection, name)
    return await _apply(action, change, "alert_rule.delete", name, f"Rule {name} deleted.")


@register_action("/alerts/channels/add", "alert.edit")
async def add_alert_channel(action: ActionRequest) -> tuple[str, str]:
    name, kind = action.get_required_text("name"), action.get_text("kind")
    target, secret = action.get_required_text("target"), None
    if kind != "email":
        try:
            egress.parse_egress_url(target)
        except egress.EgressError as error:
            raise InvalidError(error.message, field="target") from None
    if kind == "webhook":
        secret = webhooks.generate_webhook_secret()
    await alerts.put_alert_channel(action.connection, name, kind, target, secret)
    await action.record_audit("alert_channel.put", name, kind=kind)
    return "/alerts/rules", f"Channel {name} added." + (
        f" Its secret, shown only now: {secret}" if secret else ""
    )


@register_action("/alerts/channels/test", "alert.edit")
async def send_test_notification(action: ActionRequest) -> tuple[str, str]:
    name = action.get_required_text("name")
    job_id = await alerts.send_test_notification(action.connection, name)
    await action.record_audit("alert_channel.test", name)
    return f"/jobs/{job_id}", f"Test notification to {name} submitted."


@register_action("/alerts/channels/switch", "alert.edit")
async def switch_alert_channel(action: ActionRequest) -> tuple[str, str]:
    enable = action.get_text("on") == "yes"
    name = action.get_required_text("name")
    change = alerts.set_alert_channel_enabled(action.connection, name, enabled=enable)
    word = "enabled" if enable else "disabled"
    return await _apply(action, change, f"alert_channel.{word}", name, f"Channel {name} {word}.")


@register_action("/alerts/channels/delete", "alert.edit")
async def delete_alert_channel(action: ActionRequest) -> tuple[str, str]:
    name = action.get_required_text("name")
    change = alerts.delete_alert_channel(action.connection, name)
    return await _apply(action, change, "alert_channel.delete", name, f"Channel {name} deleted.")


async def _apply(
    action: ActionRequest, change: Awaitable[bool], audit_action: str, name: str, message: str
) -> tuple[str, str]:
    if not await change:
        raise HTTPException(404, f"{name} does not exist.")
    await action.record_audit(audit_action, name)
    return "/alerts/rules", message
