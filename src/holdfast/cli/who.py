"""Who acts at this terminal, for pauses, bulk actions and the audit log."""

from __future__ import annotations

import getpass
import socket


def somebody() -> str:
    """`ann@host`: the name that this machine knows them by."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return f"{name}@{socket.gethostname()}"
