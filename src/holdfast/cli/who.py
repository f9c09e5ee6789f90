"""Who acts at this terminal, and the line about it in the audit log."""

from __future__ import annotations

import getpass
import socket
from typing import Any

from holdfast.engine import access
from holdfast.engine.connection import Connection, is_refused


def somebody() -> str:
    """`ann@host`: the name that this machine knows them by."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return f"{name}@{socket.gethostname()}"


async def record(connection: Connection, action: str, target: str | None = None, **detail: Any) -> None:
    """Write down what was done. A role that may act and not write the log still acts."""
    said = {name: value for name, value in detail.items() if value is not None}
    try:
        await access.record(connection, somebody(), action, target, said or None)
    except Exception as problem:
        if not is_refused(problem):
            raise
