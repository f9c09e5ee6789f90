"""`holdfast session`: list and end dashboard sessions."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast.cli.actor import get_local_actor
from holdfast.cli.identifiers import parse_uuid
from holdfast.cli.session import CliSession, confirmation_options, json_option, pass_session, row_limit_option
from holdfast.engine import audit, sessions
from holdfast.engine.sessions import ListedSession
from holdfast.errors import InvalidError, NotFoundError
from holdfast.formatting import format_count

SESSION_COLUMNS = ["id", "name", "role", "login", "key_prefix", "address", "created_at", "last_seen_at"]


@click.group("session")
def session_command() -> None:
    """List and end sessions of people who are signed in to the dashboard.

    A session also ends when its user signs out, after 12 hours, and when its service key is revoked.
    """


@session_command.command("list")
@row_limit_option
@json_option
@pass_session
def list_sessions(session: CliSession) -> None:
    """List active sessions, the last used first.

    `login` tells how a session was opened: `key` (a service key), `settings_key` (the setting `service_key`)
    or `link` (a login link).
    """
    listed = session.run_with_connection(sessions.list_sessions)
    session.output.print_rows([_format_session(each) for each in listed], SESSION_COLUMNS)


@session_command.command("end")
@click.argument("session_id", metavar="[ID]", required=False)
@click.option("--all", "end_all", is_flag=True, help="End all sessions. Default: end the session ID.")
@confirmation_options
@json_option
@pass_session
def end_session(session: CliSession, session_id: str | None, end_all: bool, yes: bool, dry_run: bool) -> None:
    """End the session ID, or all sessions, within a second.

    ID is printed by `holdfast session list`. To keep a user out, also revoke the service key:
    `holdfast key revoke PREFIX`.
    """
    if end_all == (session_id is not None):
        raise InvalidError(
            "Name one session, or end all of them.", fix="Pass either ID or --all.", field="id"
        )
    chosen = parse_uuid(session_id, "session") if session_id is not None else None
    consequence = "This ends all sessions." if chosen is None else f"This ends session {chosen}."
    if not session.confirm(consequence, yes=yes, dry_run=dry_run):
        return

    async def end_chosen_sessions() -> int:
        async with session.client() as client, client.transaction() as connection:
            if chosen is None:
                count = await sessions.end_sessions(connection)
                action, target, detail = "session.end_all", None, {"count": count}
            else:
                count = int(await sessions.end_session(connection, chosen))
                action, target, detail = "session.end", str(chosen), None
            if count:
                await audit.record_audit_entry(connection, get_local_actor(), action, target, detail)
            return count

    count = session.run_async(end_chosen_sessions())
    if chosen is not None and not count:
        raise NotFoundError(
            f"Session {chosen} does not exist or has ended already.", fix="See `holdfast session list`."
        )
    if session.output.json:
        session.output.print_value("ended", count)
    else:
        session.output.print_line(f"{format_count(count, 'session')} ended.")


def _format_session(listed: ListedSession) -> dict[str, Any]:
    return msgspec.structs.asdict(listed)
