"""A TCP proxy that can cut every connection through it, as a train in a tunnel does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Tunnel:
    def __init__(self) -> None:
        self.url = ""
        self.cuts = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._pipes: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """End every connection at once, without a word."""
        self.cuts += 1
        for writer in list(self._open):
            writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        self._open |= {writer, far_writer}
        pipes = [
            asyncio.create_task(_pipe(reader, far_writer)),
            asyncio.create_task(_pipe(far_reader, writer)),
        ]
        self._pipes.update(pipes)
        await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        for each in (writer, far_writer):
            each.close()
            self._open.discard(each)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def tunnel(base: str) -> AsyncGenerator[Tunnel]:
    created = Tunnel()
    port = urlsplit(base).port
    assert port is not None

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await created.carry(reader, writer, port)

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    created.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield created
    finally:
        server.close()
        created.cut()
