"""Send the head and the body of a response with one system call.

uvicorn writes them one after the other, and each write is a system call and a packet that wakes the client.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

MAX_HELD_BYTES: Final = 16_384  # more is sent at once, so that the transport can ask for a pause


class JoinedWrites:
    """A transport that sends small writes of one turn of the event loop together, at the end of the turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""
        self._is_flush_scheduled = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Hold a small write until the end of the turn. A large one is sent at once, after what is held."""
        self._held += data
        if len(self._held) > MAX_HELD_BYTES:
            self._send_held()
        elif self._held and not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Send what is held and close the connection."""
        self._send_held()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection without sending what is held."""
        self._held = b""
        self._transport.abort()

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        self._send_held()

    def _send_held(self) -> None:
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)
