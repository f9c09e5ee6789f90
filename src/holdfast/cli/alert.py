"""`holdfast alert`: list, acknowledge and silence alerts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import click
import msgspec

from holdfast.alerts import texts
from holdfast.cli.actor import get_local_actor, record_audit_event
from holdfast.cli.identifiers import parse_uuid
from holdfast.cli.parameters import DURATION
from holdfast.cli.session import CliSession, json_option, pass_session, run_on_each_shard
from holdfast.engine import alerts
from holdfast.engine.alerts import Alert, AlertSilence
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, NotFoundError
from holdfast.formatting import format_age, format_time_until, shorten_id

ALERT_COLUMNS = ["id", "severity", "subject", "problem", "for", "state", "rule"]
SILENCE_COLUMNS = ["id", "rule", "subject", "ends", "by", "reason"]


@click.group("alert")
def alert_command() -> None:
    """List, acknowledge and silence alerts, and manage their rules and channels.

    Rules watch queues, failures, dead letters, workers, schedules, storage and old snapshots. Channels are
    webhooks, Slack-compatible webhooks and e-mail addresses that are notified.
    """


@alert_command.command("list")
@click.option("--resolved", is_flag=True, help="List alerts that have ended. Default: alerts that fire.")
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="List at most this many alerts.",
)
@json_option
@pass_session
@run_on_each_shard
def list_alerts(session: CliSession, resolved: bool, limit: int) -> None:
    """List the alerts that fire, the worst and largest first."""

    async def load_alerts(connection: Connection) -> list[Alert]:
        return await alerts.list_alerts(connection, resolved=resolved, limit=limit)

    rows = [_format_alert(alert) for alert in session.run_with_connection(load_alerts)]
    session.output.print_rows(rows, ALERT_COLUMNS)
    if not rows and session.output.console.is_terminal:
        session.output.print_line("No alerts.")


def _format_alert(alert: Alert) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(alert),
        "subject": texts.format_alert_subject(alert),
        "problem": texts.describe_alert(alert),
        "for": format_age(alert.fired_at, alert.resolved_at),
        "state": _format_state(alert),
    }


def _format_state(alert: Alert) -> str:
    if alert.status == "resolved":
        return f"resolved {format_age(alert.resolved_at)} ago"
    if alert.silenced_until is not None:
        return f"silenced, ends {format_time_until(alert.silenced_until)}"
    return f"acknowledged by {alert.acknowledged_by}" if alert.acknowledged_at else alert.status


@alert_command.command("show")
@click.argument("alert_id", metavar="ID")
@json_option
@pass_session
def show_alert(session: CliSession, alert_id: str) -> None:
    """Show one alert with its value, threshold and details."""
    alert = session.run_with_connection(lambda connection: _find_alert(connection, alert_id))
    if session.output.json:
        session.output.print_record(_format_alert(alert))
        return
    record = _format_alert(alert)
    record["value"] = texts.format_alert_value(alert)
    record["threshold"] = texts.format_rule_value(alert.kind, alert.threshold)
    session.output.print_record({name: value for name, value in record.items() if value is not None})


async def _find_alert(connection: Connection, alert_id: str) -> Alert:
    """Find an alert by its id, or a firing one by the first or last characters of its id."""
    if len(alert_id) < 36:
        matches = [
            a
            for a in await alerts.list_alerts(connection)
            if str(a.id).startswith(alert_id) or str(a.id).endswith(alert_id)
        ]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise ConflictError(f"{alert_id!r} matches {len(matches)} alerts.", fix="Write more of the id.")
        raise NotFoundError(f"No firing alert has the id {alert_id!r}.", fix="See `holdfast alert list`.")
    return await alerts.get_alert(connection, parse_uuid(alert_id, "alert"))


@alert_command.command("ack")
@click.argument("alert_id", metavar="ID")
@click.option("--note", help="Add a note that others see. Default: none.")
@json_option
@pass_session
def acknowledge_alert(session: CliSession, alert_id: str, note: str | None) -> None:
    """Acknowledge an alert, so that it sends no reminders."""

    async def acknowledge(connection: Connection) -> Alert:
        alert = await _find_alert(connection, alert_id)
        if not await alerts.acknowledge_alert(connection, alert.id, get_local_actor(), note):
            raise ConflictError(f"Alert {alert.id} does not fire any more.")
        await record_audit_event(connection, "alert.acknowledge", str(alert.id), note=note)
        return alert

    alert = session.run_with_connection(acknowledge)
    if session.output.json:
        session.output.print_value("acknowledged", str(alert.id))
    session.output.print_line(f"Acknowledged: {texts.format_alert_line(alert)}.")


@alert_command.command("silence")
@click.argument("alert_id", metavar="[ID]", required=False)
@click.option("--rule", help="Silence all alerts of this rule. Default: any rule.")
@click.option("--subject", help="Silence alerts of this queue, task type or schedule. Default: any subject.")
@click.option(
    "--for", "duration", type=DURATION, required=True, help="Send no notifications for this long, such as 2h."
)
@click.option("--reason", help="Store the reason for the silence. Default: none.")
@json_option
@pass_session
@run_on_each_shard
def silence_alerts(
    session: CliSession,
    alert_id: str | None,
    rule: str | None,
    subject: str | None,
    duration: timedelta,
    reason: str | None,
) -> None:
    """Send no notifications for a while.

    Silences one alert, all alerts of --rule, of --subject, or of both. Without any of them, silences all.
    """

    async def silence(connection: Connection) -> UUID:
        chosen_rule, chosen_subject = rule, subject
        if alert_id is not None:
            alert = await _find_alert(connection, alert_id)
            chosen_rule, chosen_subject = alert.rule, alert.subject
        until = datetime.now(UTC) + duration
        silence_id = await alerts.silence_alerts(
            connection, until, get_local_actor(), rule=chosen_rule, subject=chosen_subject, reason=reason
        )
        details = {
            "rule": chosen_rule,
            "subject": chosen_subject,
            "until": until.isoformat(),
            "reason": reason,
        }
        await record_audit_event(connection, "alert.silence", str(silence_id), **details)
        return silence_id

    session.output.print_value("silence", str(session.run_with_connection(silence)))


@alert_command.command("silences")
@json_option
@pass_session
@run_on_each_shard
def list_silences(session: CliSession) -> None:
    """List the silences that have not ended."""
    rows = [_format_silence(each) for each in session.run_with_connection(alerts.list_alert_silences)]
    session.output.print_rows(rows, SILENCE_COLUMNS)


def _format_silence(silence: AlertSilence) -> dict[str, Any]:
    ends = format_time_until(silence.until)
    return {**msgspec.structs.asdict(silence), "ends": ends, "by": silence.created_by}


@alert_command.command("unsilence")
@click.argument("silence_id", metavar="SILENCE_ID")
@json_option
@pass_session
def end_silence(session: CliSession, silence_id: str) -> None:
    """End a silence before its time."""
    parsed = parse_uuid(silence_id, "silence")

    async def end_and_record(connection: Connection) -> None:
        if not await alerts.end_alert_silence(connection, parsed):
            raise NotFoundError(f"Silence {parsed} does not exist.", fix="See `holdfast alert silences`.")
        await record_audit_event(connection, "alert.end_silence", str(parsed))

    session.run_with_connection(end_and_record)
    if session.output.json:
        session.output.print_value("ended", str(parsed))
    session.output.print_line(f"Silence {shorten_id(parsed)} has ended.")


@alert_command.command("check")
@json_option
@pass_session
@run_on_each_shard
def evaluate_alerts(session: CliSession) -> None:
    """Evaluate all rules now and print how many alerts changed."""

    async def evaluate(connection: Connection) -> int | None:
        return await alerts.evaluate_alerts(connection, force=True)

    session.output.print_value("changed", session.run_with_connection(evaluate) or 0)
