"""`holdfast webhook`: who is told when jobs end, and those that were switched off because nobody listened."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import click
import msgspec

from holdfast.cli.naming import uuid_named
from holdfast.cli.session import Session, destructive, json_option, pass_session
from holdfast.cli.who import record
from holdfast.engine import webhooks
from holdfast.engine.connection import Connection
from holdfast.engine.webhooks import Webhook
from holdfast.errors import NotFoundError

COLUMNS = ["id", "state", "url", "events", "owner", "failures", "trouble"]


@click.group()
def webhook() -> None:
    """Webhooks: who is told when jobs end. They are made over HTTP."""


@webhook.command("list")
@json_option
@pass_session
def list_webhooks(session: Session) -> None:
    """List them, newest first, with what is wrong."""
    session.out.rows([_shown(each) for each in session.ask(webhooks.list_webhooks)], COLUMNS)


def _shown(found: Webhook) -> dict[str, Any]:
    state = "off" if not found.active else "failing" if found.failing_since else "on"
    row = msgspec.structs.asdict(found)
    return {
        **row,
        "events": ",".join(found.events),
        "state": state,
        "trouble": found.off_why or found.last_error,
    }


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@pass_session
def on(session: Session, webhook_id: str) -> None:
    """Switch one on again; its failures are counted anew."""
    _switch(session, uuid_named(webhook_id, "webhook"), on=True)


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@pass_session
def off(session: Session, webhook_id: str) -> None:
    """Switch one off. It stays, with its secret, and is told of nothing."""
    _switch(session, uuid_named(webhook_id, "webhook"), on=False)


def _switch(session: Session, webhook_id: UUID, *, on: bool) -> None:
    async def work(connection: Connection) -> None:
        if not await webhooks.switch_webhook(connection, webhook_id, on=on):
            raise NotFoundError(f"There is no webhook {webhook_id}.", fix="See: holdfast webhook list")
        await record(connection, "webhook.on" if on else "webhook.off", str(webhook_id))

    session.ask(work)
    session.out.line(f"Webhook {webhook_id} is {'on' if on else 'off'}.")


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@destructive
@pass_session
def rm(session: Session, webhook_id: str, yes: bool, dry_run: bool) -> None:
    """Delete one, and its secret with it."""
    asked = uuid_named(webhook_id, "webhook")
    found = [each for each in session.ask(webhooks.list_webhooks) if each.id == asked]
    if not found:
        raise NotFoundError(f"There is no webhook {asked}.", fix="See: holdfast webhook list")
    if session.confirm(f"{found[0].url} is told of nothing any more.", yes=yes, dry_run=dry_run):

        async def work(connection: Connection) -> None:
            await webhooks.delete_webhook(connection, asked)
            await record(connection, "webhook.delete", str(asked))

        session.ask(work)
        session.out.line(f"Webhook {asked} is gone.")
