"""The person at this terminal, and their entries in the audit log."""

from __future__ import annotations

import getpass
import socket
from typing import Any

from holdfast.client import Client
from holdfast.engine import audit
from holdfast.engine.connection import Connection, is_permission_error


def get_local_actor() -> str:
    """Return `user@host`, the name of the person at this terminal for the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


async def record_audit_event(
    connection: Connection, action: str, target: str | None = None, **details: Any
) -> None:
    """Write an action of this command to the audit log.

    If the database role may not write to the audit log, the action is not recorded and no error is raised.
    """
    fields = {name: value for name, value in details.items() if value is not None}
    try:
        await audit.record_audit_entry(connection, get_local_actor(), action, target, fields or None)
    except Exception as error:
        if not is_permission_error(error):
            raise


async def record_client_audit_event(
    client: Client, action: str, target: str | None = None, **details: Any
) -> None:
    """Write an action that the client performed to the audit log, as `record_audit_event` does."""
    if client.shard_numbers:  # the first shard has the audit log of what was done on all
        client = client.shard(client.shard_numbers[0])
    async with client.connection() as connection:
        await record_audit_event(connection, action, target, **details)
