"""`holdfast owner`: erase everything of an owner."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click
import msgspec

from holdfast.cli.actor import get_local_actor
from holdfast.cli.parameters import DURATION
from holdfast.cli.session import CliSession, confirmation_options, json_option, pass_session
from holdfast.client.erasures import DEFAULT_ERASURE_TIME
from holdfast.engine import erasures
from holdfast.engine.erasures import Erasure
from holdfast.errors import NotFoundError

ERASURE_COLUMNS = ["owner", "status", "requested_at", "finished_at", "requested_by", "deleted"]


@click.group("owner")
def owner_command() -> None:
    """Erase everything of an owner, such as a user who asks for it."""


@owner_command.command("erase")
@click.argument("owner")
@click.option(
    "--timeout",
    type=DURATION,
    default=DEFAULT_ERASURE_TIME,
    show_default="5m",
    help="Stop waiting after this time. Workers then finish the erasure.",
)
@confirmation_options
@json_option
@pass_session
def erase_owner(session: CliSession, owner: str, timeout: timedelta, yes: bool, dry_run: bool) -> None:
    """Delete everything of OWNER.

    This deletes its jobs, files, messages and settings, and its rows in all systems. Running jobs
    are cancelled. The request is in the audit log. If the command is interrupted, run it again.

    Example: holdfast owner erase 3f2504e0-4f89-41d3-9a0c-0305e82c3301
    """
    consequence = f"This deletes everything of owner {owner} for ever."
    if not session.confirm(consequence, yes=yes, dry_run=dry_run):
        return

    async def run_erasure() -> Erasure:
        async with session.client() as client:
            return await client.erase_owner(owner, by=get_local_actor(), within=timeout)

    _print_erasure(session, session.run_async(run_erasure()))


@owner_command.command("erasure")
@click.argument("owner")
@json_option
@pass_session
def show_erasure(session: CliSession, owner: str) -> None:
    """Show how far the erasure of OWNER is."""
    erasure = session.run_with_connection(lambda connection: erasures.find_erasure(connection, owner))
    if erasure is None:
        raise NotFoundError(
            f"Nobody asked to erase owner {owner!r}.",
            fix="Start with `holdfast owner erase OWNER`.",
            field="owner",
        )
    _print_erasure(session, erasure)


def _print_erasure(session: CliSession, erasure: Erasure) -> None:
    row: dict[str, Any] = msgspec.to_builtins(erasure, builtin_types=(type(erasure.requested_at),))
    if not session.output.json:
        row["status"] = "running" if erasure.finished_at is None else "finished"
        row["deleted"] = ", ".join(f"{count} {kind}" for kind, count in erasure.deleted.items()) or "nothing"
    session.output.print_rows([row], ERASURE_COLUMNS)
