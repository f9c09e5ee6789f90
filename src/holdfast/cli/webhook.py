"""`holdfast webhook`: list, enable, disable and delete webhooks.

Holdfast disables a webhook by itself after its endpoint has failed for a long time.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import click
import msgspec

from holdfast.cli.actor import record_audit_event
from holdfast.cli.identifiers import parse_uuid
from holdfast.cli.session import (
    CliSession,
    confirmation_options,
    json_option,
    pass_session,
    row_limit_option,
    run_on_each_shard,
)
from holdfast.engine import webhooks
from holdfast.engine.connection import Connection
from holdfast.engine.webhooks import Webhook
from holdfast.errors import NotFoundError

WEBHOOK_COLUMNS = ["id", "state", "url", "events", "owner", "failures", "problem"]


@click.group("webhook")
def webhook_command() -> None:
    """List, enable, disable and delete webhooks, which call a URL when jobs end.

    Create webhooks through the HTTP API: POST /api/webhooks.
    """


@webhook_command.command("list")
@row_limit_option
@json_option
@pass_session
@run_on_each_shard
def list_webhooks(session: CliSession) -> None:
    """List webhooks, newest first, with their state and last error."""
    rows = [_format_webhook(each) for each in session.run_with_connection(webhooks.list_webhooks)]
    session.output.print_rows(rows, WEBHOOK_COLUMNS)


def _format_webhook(stored: Webhook) -> dict[str, Any]:
    state = "disabled" if not stored.active else "failing" if stored.failing_since else "active"
    return {
        **msgspec.structs.asdict(stored),
        "events": ",".join(stored.events),
        "state": state,
        "problem": stored.disabled_reason or stored.last_error,
    }


@webhook_command.command("enable")
@click.argument("webhook_id", metavar="ID")
@json_option
@pass_session
def enable_webhook(session: CliSession, webhook_id: str) -> None:
    """Enable a webhook and reset its count of failures."""
    _set_webhook_active(session, parse_uuid(webhook_id, "webhook"), active=True)


@webhook_command.command("disable")
@click.argument("webhook_id", metavar="ID")
@json_option
@pass_session
def disable_webhook(session: CliSession, webhook_id: str) -> None:
    """Disable a webhook: it receives no more events. It keeps its secret."""
    _set_webhook_active(session, parse_uuid(webhook_id, "webhook"), active=False)


def _set_webhook_active(session: CliSession, webhook_id: UUID, *, active: bool) -> None:
    async def save_active_flag(connection: Connection) -> None:
        if not await webhooks.set_webhook_active(connection, webhook_id, on=active):
            raise _build_webhook_not_found_error(webhook_id)
        await record_audit_event(
            connection, "webhook.enabled" if active else "webhook.disabled", str(webhook_id)
        )

    session.run_with_connection(save_active_flag)
    session.output.print_change(
        f"Webhook {webhook_id} is {'enabled' if active else 'disabled'}.", id=str(webhook_id), active=active
    )


def _build_webhook_not_found_error(webhook_id: UUID) -> NotFoundError:
    return NotFoundError(f"Webhook {webhook_id} does not exist.", fix="See `holdfast webhook list`.")


@webhook_command.command("delete")
@click.argument("webhook_id", metavar="ID")
@confirmation_options
@json_option
@pass_session
def delete_webhook(session: CliSession, webhook_id: str, yes: bool, dry_run: bool) -> None:
    """Delete a webhook and its secret."""
    webhook_uuid = parse_uuid(webhook_id, "webhook")
    stored = session.run_with_connection(webhooks.list_webhooks)
    url = next((each.url for each in stored if each.id == webhook_uuid), None)
    if url is None:
        raise _build_webhook_not_found_error(webhook_uuid)
    if session.confirm(f"This deletes the webhook for {url}.", yes=yes, dry_run=dry_run):

        async def delete_and_record(connection: Connection) -> None:
            await webhooks.delete_webhook(connection, webhook_uuid)
            await record_audit_event(connection, "webhook.delete", str(webhook_uuid))

        session.run_with_connection(delete_and_record)
        session.output.print_change(f"Webhook {webhook_uuid} is deleted.", deleted=str(webhook_uuid))
