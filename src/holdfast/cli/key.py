"""`holdfast key`: keys of services. A key is shown once, when it is made; the database keeps its hash."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click
import msgspec

from holdfast.cli.session import Session, destructive, json_option, pass_session
from holdfast.cli.values import SPAN
from holdfast.cli.who import somebody
from holdfast.client import Client
from holdfast.engine import access
from holdfast.engine.access import ServiceKey
from holdfast.errors import NotFoundError

COLUMNS = ["prefix", "name", "scopes", "state", "created_at", "last_used_at", "expires_at"]


@click.group()
def key() -> None:
    """Keys with which services call the API."""


@key.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="SCOPE",
    help=f"What it opens, once for each: {', '.join(access.SCOPES)}, or {access.ALL} for all.",
)
@click.option(
    "--expires", type=SPAN, metavar="SPAN", help="How long it lasts, as in 90d (default: for ever)."
)
@json_option
@pass_session
def create(session: Session, name: str, scopes: tuple[str, ...], expires: timedelta | None) -> None:
    """Make a key for the service NAME and print it, this once. Two of one name may live at the same time."""
    chosen = list(scopes) or ["jobs"]
    access.check_scopes(chosen)
    secret, shown, digest = access.new_key()

    async def work() -> ServiceKey:
        async with (
            Client(settings=session.settings) as client,
            (await client.open()).transaction() as connection,
        ):
            made = await access.create_key(
                connection,
                name=name,
                prefix=shown,
                digest=digest,
                scopes=chosen,
                expires_at=None if expires is None else datetime.now(UTC) + expires,
            )
            await access.record(connection, somebody(), "key.create", shown, {"name": name, "scopes": chosen})
            return made

    made = session.run(work())
    if session.out.json:
        session.out.record({**_shown(made), "key": secret.reveal()})
    else:
        session.out.value("key", secret.reveal())


@key.command("list")
@json_option
@pass_session
def list_keys(session: Session) -> None:
    """List the keys: what may be shown of them, what they open, when they were last used."""

    async def work() -> list[ServiceKey]:
        async with (
            Client(settings=session.settings) as client,
            (await client.open()).connection() as connection,
        ):
            return await access.list_keys(connection)

    session.out.rows([_shown(each) for each in session.run(work())], COLUMNS)


@key.command()
@click.argument("prefix")
@destructive
@json_option
@pass_session
def revoke(session: Session, prefix: str, yes: bool, dry_run: bool) -> None:
    """End the key that begins with PREFIX (hf_ and eight letters). It stops working at once."""
    if not session.confirm(f"The key {prefix} opens nothing any more.", yes=yes, dry_run=dry_run):
        return

    async def work() -> int:
        async with (
            Client(settings=session.settings) as client,
            (await client.open()).transaction() as connection,
        ):
            count = await access.revoke_key(connection, prefix)
            if count:
                await access.record(connection, somebody(), "key.revoke", prefix)
            return count

    if not session.run(work()):
        raise NotFoundError(f"There is no living key {prefix}.", fix="See: holdfast key list")
    session.out.line(f"Key {prefix} is revoked.")


def _shown(found: ServiceKey) -> dict[str, Any]:
    now = datetime.now(UTC)
    over = found.expires_at is not None and found.expires_at <= now
    state = "revoked" if found.revoked_at else "expired" if over else "live"
    row = msgspec.structs.asdict(found)
    return {**row, "scopes": ",".join(found.scopes), "state": state}
