"""Tunnels of the proxy: a guarded connection to a server, and bytes in both directions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from holdfast.egress.errors import EgressConnectError, EgressTimeoutError
from holdfast.egress.policy import EgressPolicy

MAX_CONNECT_ATTEMPTS: Final = 3
CHUNK_BYTES: Final = 64 * 1024

ByteStreams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
ByteCounter = Callable[[int], None]


async def open_guarded_connection(policy: EgressPolicy, host: str, port: int) -> ByteStreams:
    """Resolve and check a host, then connect to one of its addresses."""
    addresses = await policy.resolve(host, port)
    timed_out = False
    for address in addresses[:MAX_CONNECT_ATTEMPTS]:
        try:
            async with asyncio.timeout(policy.connect_timeout.total_seconds()):
                return await asyncio.open_connection(str(address), port, limit=CHUNK_BYTES)
        except TimeoutError:
            timed_out = True
        except OSError:
            continue
    if timed_out:
        raise EgressTimeoutError("The server did not accept the connection in time.")
    raise EgressConnectError("The connection to the server failed.")


async def relay_bytes(
    client: ByteStreams, server: ByteStreams, count_sent: ByteCounter, count_received: ByteCounter
) -> None:
    """Copy bytes in both directions until both sides have ended, or one of them fails."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_copy_bytes(client[0], server[1], count_sent))
        group.create_task(_copy_bytes(server[0], client[1], count_received))


async def _copy_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: ByteCounter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        count(len(data))
        writer.write(data)
        await writer.drain()
    # The other direction stays open: a client may end its request and still wait for the response.
    with contextlib.suppress(OSError):
        writer.write_eof()
