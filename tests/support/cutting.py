"""A TCP proxy that can abort every connection through it, as a lost network does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class AbortableProxy:
    def __init__(self) -> None:
        self.url = ""
        self.cuts = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._pipes: set[asyncio.Task[None]] = set()

    def abort_connections(self) -> None:
        """Abort every connection at once."""
        self.cuts += 1
        for writer in list(self._open):
            writer.transport.abort()

    async def forward_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> None:
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
async def run_abortable_proxy(base: str) -> AsyncGenerator[AbortableProxy]:
    created = AbortableProxy()
    port = urlsplit(base).port
    assert port is not None

    async def forward_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await created.forward_connection(reader, writer, port)

    server = await asyncio.start_server(forward_connection, "127.0.0.1", 0)
    created.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield created
    finally:
        server.close()
        created.abort_connections()
