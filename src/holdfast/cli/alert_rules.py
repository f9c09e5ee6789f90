"""`holdfast alert rule` and `holdfast alert channel`: what is watched, and who is notified."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import click
import msgspec

from holdfast import egress, webhooks
from holdfast.alerts import texts
from holdfast.cli.actor import record_audit_event
from holdfast.cli.alert import alert_command
from holdfast.cli.parameters import DURATION
from holdfast.cli.session import (
    CliSession,
    confirmation_options,
    json_option,
    pass_session,
    row_limit_option,
    run_on_each_shard,
)
from holdfast.engine import alerts
from holdfast.engine.alerts import AlertChannel, AlertRule
from holdfast.engine.connection import Connection
from holdfast.errors import InvalidError, NotFoundError
from holdfast.formatting import format_age
from holdfast.settings import parse_duration

RULE_COLUMNS = ["name", "kind", "subject", "severity", "above", "until", "enabled", "firing", "last_error"]
CHANNEL_COLUMNS = ["name", "kind", "target", "enabled", "sent", "problem"]
_RULE_DURATIONS = {
    "for_duration": "for_s",
    "clear_after": "clear_after_s",
    "window": "window_s",
    "repeat": "repeat_s",
}
_BYTES_PER_UNIT = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@alert_command.group("rule")
def rule_command() -> None:
    """List, set, enable, disable and delete alert rules."""


@rule_command.command("list")
@row_limit_option
@json_option
@pass_session
@run_on_each_shard
def list_rules(session: CliSession) -> None:
    """List alert rules, their thresholds and how many fire."""
    rules = session.run_with_connection(alerts.list_alert_rules)
    session.output.print_rows([_format_rule(rule) for rule in rules], RULE_COLUMNS)


def _format_rule(rule: AlertRule) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(rule),
        "above": texts.format_rule_value(rule.kind, rule.threshold),
        "until": texts.format_rule_value(rule.kind, rule.clear_below),
    }


def parse_rule_value(kind: str, text: str, field: str) -> float:
    """Parse a threshold in the unit of a kind: `10m`, `25%`, `50GB` or a number."""
    try:
        if kind in texts.SECONDS_KINDS and not text.replace(".", "").isdigit():
            return parse_duration(text).total_seconds()
        if text.endswith("%"):
            return float(text[:-1]) / 100
        if kind == "storage" and text[-2:].upper() in _BYTES_PER_UNIT:
            return float(text[:-2]) * _BYTES_PER_UNIT[text[-2:].upper()]
        return float(text)
    except (ValueError, OverflowError):
        units = "10m" if kind in texts.SECONDS_KINDS else "25%" if kind == "failure_rate" else "5 or 50GB"
        raise InvalidError(
            f"{text!r} is not a value for {kind}.", fix=f"Write {units}.", field=field
        ) from None


@rule_command.command("set", epilog="\b\n" + "\n".join(f"{k}: {v}" for k, v in texts.RULE_KIND_TEXTS.items()))
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(alerts.ALERT_KINDS),
    help="Watch this kind of problem; the list below explains each. Required for a new rule.",
)
@click.option(
    "--above",
    metavar="VALUE",
    help="Fire while the value is above VALUE: a duration (10m), a share (25%), a size (50GB) or a number. "
    "Required for a new rule.",
)
@click.option(
    "--until",
    "clear_below",
    metavar="VALUE",
    help="Keep firing until the value is at most VALUE. Default: the value of --above.",
)
@click.option(
    "--subject",
    metavar="NAME",
    help="Watch only this queue, task type or schedule; * stands for any text, as in mail-*. Default: all.",
)
@click.option(
    "--severity",
    type=click.Choice(alerts.ALERT_SEVERITIES),
    help="Set the severity of the alerts. Default: warning.",
)
@click.option(
    "--for",
    "for_duration",
    type=DURATION,
    help="Fire only after the value has been above --above for this long. Default: fire at once.",
)
@click.option(
    "--clear-after",
    type=DURATION,
    help="End the alert after the value has been at most --until for this long. Default: 1m.",
)
@click.option(
    "--window",
    type=DURATION,
    help="Count the failures, dead letters and lost workers of this last period. Default: 15m.",
)
@click.option(
    "--min-count",
    type=click.IntRange(1),
    help="Ignore a failure rate of fewer ended tasks than this. Default: 1.",
)
@click.option(
    "--repeat", type=DURATION, help="Repeat the notification this often while it fires. Default: never."
)
@click.option(
    "--channel",
    "channels",
    multiple=True,
    metavar="NAME",
    help="Notify this channel; repeat the option to notify several. Default: all channels.",
)
@json_option
@pass_session
@run_on_each_shard
def set_rule(session: CliSession, /, name: str, kind: str | None, **options: Any) -> None:
    """Create a rule, or change the given options of an existing one."""

    async def save_rule(connection: Connection) -> AlertRule:
        stored = {rule.name: rule for rule in await alerts.list_alert_rules(connection)}.get(name)
        rule = _apply_rule_options(name, stored, kind, options)
        await alerts.put_alert_rule(connection, rule)
        details = {"kind": rule.kind, "threshold": rule.threshold, "severity": rule.severity}
        await record_audit_event(connection, "alert_rule.put", name, subject=rule.subject, **details)
        return rule

    rule = session.run_with_connection(save_rule)
    if session.output.json:
        session.output.print_record(_format_rule(rule))
    above = texts.format_rule_value(rule.kind, rule.threshold)
    session.output.print_line(f"Rule {name} fires above {above} ({rule.severity}).")


def _apply_rule_options(
    name: str, stored: AlertRule | None, kind: str | None, options: dict[str, Any]
) -> AlertRule:
    kind = kind or (stored.kind if stored is not None else None)
    if kind is None:
        choices = ", ".join(alerts.ALERT_KINDS)
        raise InvalidError(f"Rule {name!r} does not exist.", field="kind", fix=f"Add --kind: {choices}.")
    if options["above"] is None and (stored is None or stored.kind != kind):
        raise InvalidError("A new rule needs --above.", field="threshold", fix="Write --above 10m.")
    changes: dict[str, Any] = {"kind": kind, **_collect_rule_changes(kind, options)}
    return AlertRule(name=name, **changes) if stored is None else msgspec.structs.replace(stored, **changes)


def _collect_rule_changes(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    changes = {
        name: options[name] for name in ("subject", "severity", "min_count") if options[name] is not None
    }
    for option, field in _RULE_DURATIONS.items():
        if options[option] is not None:
            changes[field] = options[option].total_seconds()
    if options["above"] is not None:
        changes["threshold"] = parse_rule_value(kind, options["above"], "threshold")
        changes["clear_below"] = None
    if options["clear_below"] is not None:
        changes["clear_below"] = parse_rule_value(kind, options["clear_below"], "clear_below")
    if options["channels"]:
        changes["channels"] = list(options["channels"])
    return changes


@rule_command.command("enable")
@click.argument("name")
@json_option
@pass_session
@run_on_each_shard
def enable_rule(session: CliSession, name: str) -> None:
    """Enable a rule."""
    _change(session, "alert_rule.enable", name, "enabled", "rule", _set_rule_enabled(name, enabled=True))


@rule_command.command("disable")
@click.argument("name")
@json_option
@pass_session
@run_on_each_shard
def disable_rule(session: CliSession, name: str) -> None:
    """Disable a rule and end its alerts."""
    _change(session, "alert_rule.disable", name, "disabled", "rule", _set_rule_enabled(name, enabled=False))


def _set_rule_enabled(name: str, *, enabled: bool) -> Callable[[Connection], Awaitable[bool]]:
    return lambda connection: alerts.set_alert_rule_enabled(connection, name, enabled=enabled)


@rule_command.command("delete")
@click.argument("name")
@confirmation_options
@json_option
@pass_session
@run_on_each_shard
def delete_rule(session: CliSession, name: str, yes: bool, dry_run: bool) -> None:
    """Delete a rule and end its alerts."""
    if session.confirm(f"This deletes the alert rule {name} and ends its alerts.", yes=yes, dry_run=dry_run):
        _change(session, "alert_rule.delete", name, "deleted", "rule",
                lambda connection: alerts.delete_alert_rule(connection, name))  # fmt: skip


def _change(
    session: CliSession,
    action: str,
    name: str,
    outcome: str,
    noun: str,
    change: Callable[[Connection], Awaitable[bool]],
) -> None:
    async def change_and_record(connection: Connection) -> None:
        if not await change(connection):
            raise NotFoundError(
                f"Alert {noun} {name!r} does not exist.", fix=f"See `holdfast alert {noun} list`."
            )
        await record_audit_event(connection, action, name)

    session.run_with_connection(change_and_record)
    if session.output.json:
        session.output.print_value(outcome, name)
    session.output.print_line(f"Alert {noun} {name} is {outcome}.")


@alert_command.group("channel")
def channel_command() -> None:
    """Manage the channels that are notified."""


@channel_command.command("list")
@row_limit_option
@json_option
@pass_session
@run_on_each_shard
def list_channels(session: CliSession) -> None:
    """List channels with the last delivery and its error."""
    channels = session.run_with_connection(alerts.list_alert_channels)
    session.output.print_rows([_format_channel(channel) for channel in channels], CHANNEL_COLUMNS)


def _format_channel(channel: AlertChannel) -> dict[str, Any]:
    sent = f"{format_age(channel.sent_at)} ago" if channel.sent_at else None
    return {**msgspec.structs.asdict(channel), "sent": sent, "problem": channel.last_error}


@channel_command.command("add")
@click.argument("name")
@click.argument("kind", type=click.Choice(alerts.ALERT_CHANNEL_KINDS))
@click.argument("target", metavar="URL_OR_ADDRESSES")
@json_option
@pass_session
@run_on_each_shard
def add_channel(session: CliSession, name: str, kind: str, target: str) -> None:
    """Add or replace a channel.

    A channel is a webhook, a Slack-compatible webhook, or e-mail addresses. The secret that signs a webhook's
    requests is printed once. E-mails need the setting `smtp_url` where workers and the API run.
    """
    if kind != "email":
        _check_channel_url(target)
    secret = webhooks.generate_webhook_secret() if kind == "webhook" else None

    async def save_channel(connection: Connection) -> None:
        await alerts.put_alert_channel(connection, name, kind, target, secret)
        await record_audit_event(connection, "alert_channel.put", name, kind=kind)

    session.run_with_connection(save_channel)
    if session.output.json:
        session.output.print_record({"name": name, "kind": kind, "secret": secret})
    elif secret is not None:
        session.output.print_line(f"Channel {name} is added. Its secret, shown only now: {secret}")
    else:
        session.output.print_line(f"Channel {name} is added. Try it: holdfast alert channel test {name}")


def _check_channel_url(url: str) -> None:
    try:
        egress.parse_egress_url(url)
    except egress.EgressError as error:
        raise InvalidError(error.message, fix=error.fix, field="target") from None


@channel_command.command("test")
@click.argument("name")
@json_option
@pass_session
@run_on_each_shard
def send_test_notification(session: CliSession, name: str) -> None:
    """Send a test notification, and print the id of its job."""

    async def send_test(connection: Connection) -> str:
        job_id = await alerts.send_test_notification(connection, name)
        await record_audit_event(connection, "alert_channel.test", name)
        return str(job_id)

    session.output.print_value("job", session.run_with_connection(send_test))


@channel_command.command("enable")
@click.argument("name")
@json_option
@pass_session
@run_on_each_shard
def enable_channel(session: CliSession, name: str) -> None:
    """Enable a channel and forget its failures."""
    _change(session, "alert_channel.enable", name, "enabled", "channel",
            lambda connection: alerts.set_alert_channel_enabled(connection, name, enabled=True))  # fmt: skip


@channel_command.command("disable")
@click.argument("name")
@json_option
@pass_session
@run_on_each_shard
def disable_channel(session: CliSession, name: str) -> None:
    """Disable a channel: it is not notified."""
    _change(session, "alert_channel.disable", name, "disabled", "channel",
            lambda connection: alerts.set_alert_channel_enabled(connection, name, enabled=False))  # fmt: skip


@channel_command.command("delete")
@click.argument("name")
@confirmation_options
@json_option
@pass_session
@run_on_each_shard
def delete_channel(session: CliSession, name: str, yes: bool, dry_run: bool) -> None:
    """Delete a channel, also from the rules that name it."""
    if session.confirm(f"This deletes the alert channel {name}.", yes=yes, dry_run=dry_run):
        _change(session, "alert_channel.delete", name, "deleted", "channel",
                lambda connection: alerts.delete_alert_channel(connection, name))  # fmt: skip
