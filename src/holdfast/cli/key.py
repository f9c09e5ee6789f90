"""`holdfast key`: create, list and revoke service keys.

A key is shown once, when it is created. The database stores its hash.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click
import msgspec

from holdfast.cli.actor import get_local_actor
from holdfast.cli.parameters import DURATION
from holdfast.cli.session import (
    CliSession,
    confirmation_options,
    json_option,
    pass_session,
    row_limit_option,
    run_on_each_shard,
)
from holdfast.engine import access, audit
from holdfast.engine.access import ServiceKey
from holdfast.errors import NotFoundError

SERVICE_KEY_COLUMNS = ["prefix", "name", "scopes", "state", "created_at", "last_used_at", "expires_at"]
DEFAULT_KEY_SCOPE = "jobs"


@click.group("key")
def key_command() -> None:
    """Manage service keys, with which programs call the HTTP API."""


@key_command.command("create")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="SCOPE",
    help=f"Allow the key to use this scope: {', '.join(access.SCOPE_DESCRIPTIONS)}, "
    f"or {access.ALL_SCOPES_WILDCARD} for all. "
    f"Repeat the option to allow several scopes. Default: {DEFAULT_KEY_SCOPE}.",
)
@click.option(
    "--expires", type=DURATION, help="Make the key expire after this duration, such as 90d. Default: never."
)
@json_option
@pass_session
def create_service_key(
    session: CliSession, name: str, scopes: tuple[str, ...], expires: timedelta | None
) -> None:
    """Create a service key for the service NAME and print the key. It is not shown again.

    A service can have several keys at the same time, so that you can replace one without downtime.
    """
    chosen = list(scopes) or [DEFAULT_KEY_SCOPE]
    access.check_scopes(chosen)
    secret, prefix, digest = access.generate_service_key()

    async def store_key() -> ServiceKey:
        async with session.client() as client, client.transaction() as connection:
            created = await access.create_service_key(
                connection,
                name=name,
                prefix=prefix,
                digest=digest,
                scopes=chosen,
                expires_at=None if expires is None else datetime.now(UTC) + expires,
            )
            details = {"name": name, "scopes": chosen}
            await audit.record_audit_entry(connection, get_local_actor(), "key.create", prefix, details)
            return created

    created = session.run_async(store_key())
    if session.output.json:
        session.output.print_record({**_format_service_key(created), "key": secret.reveal()})
    else:
        session.output.print_value("key", secret.reveal())


@key_command.command("list")
@row_limit_option
@json_option
@pass_session
@run_on_each_shard
def list_service_keys(session: CliSession) -> None:
    """List service keys with prefix, scopes, state and last use. The keys themselves are not stored."""
    keys = session.run_with_connection(access.list_service_keys)
    session.output.print_rows([_format_service_key(each) for each in keys], SERVICE_KEY_COLUMNS)


@key_command.command("revoke")
@click.argument("prefix")
@confirmation_options
@json_option
@pass_session
@run_on_each_shard
def revoke_service_key(session: CliSession, prefix: str, yes: bool, dry_run: bool) -> None:
    """Revoke the service key that starts with PREFIX, at once.

    PREFIX is hf_ and eight characters, as `holdfast key list` prints it.
    """
    if not session.confirm(f"This revokes key {prefix}.", yes=yes, dry_run=dry_run):
        return

    async def revoke_stored_key() -> int:
        async with session.client() as client, client.transaction() as connection:
            count = await access.revoke_service_key(connection, prefix)
            if count:
                await audit.record_audit_entry(connection, get_local_actor(), "key.revoke", prefix)
            return count

    if not session.run_async(revoke_stored_key()):
        raise NotFoundError(
            f"Service key {prefix} does not exist or is revoked already.", fix="See `holdfast key list`."
        )
    session.output.print_line(f"Key {prefix} is revoked.")


def _format_service_key(service_key: ServiceKey) -> dict[str, Any]:
    expired = service_key.expires_at is not None and service_key.expires_at <= datetime.now(UTC)
    state = "revoked" if service_key.revoked_at else "expired" if expired else "active"
    row = msgspec.structs.asdict(service_key)
    return {**row, "scopes": ",".join(service_key.scopes), "state": state}
