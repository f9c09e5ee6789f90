"""Keep the message of a queue while a system works on it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any


async def extend_message_lease(connection: Any, queue: str, receipt: str, vt: timedelta) -> None:
    """Keep a message invisible. Raise `LeaseLostError` if another reader has the message now."""
    await connection.execute(
        "select * from holdfast.set_message_vt($1, array[$2::text], $3::interval)", queue, receipt, vt
    )
