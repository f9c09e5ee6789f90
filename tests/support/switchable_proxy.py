"""A TCP proxy that can be closed and opened again, as a database that goes away and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

from holdfast.settings import Secret


class SwitchableProxy:
    """Forwards connections while it is open. `url` is the address of the database through the proxy."""

    def __init__(self, url: Secret) -> None:
        parts = urlsplit(url.reveal())
        assert parts.port is not None
        self._target_port = parts.port
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            self._port = int(reserved.getsockname()[1])
        login, _, _ = parts.netloc.rpartition("@")
        address = f"{login}@127.0.0.1:{self._port}" if login else f"127.0.0.1:{self._port}"
        self.url = Secret(urlunsplit(parts._replace(netloc=address)))
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._pipes: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", self._port)

    def close(self) -> None:
        """Refuse connections from now on, and abort those that are open."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers |= {writer, far_writer}
        pipes = {
            asyncio.create_task(_copy_bytes(reader, far_writer)),
            asyncio.create_task(_copy_bytes(far_reader, writer)),
        }
        self._pipes |= pipes
        await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        for each in (writer, far_writer):
            each.close()
            self._writers.discard(each)


async def _copy_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def run_switchable_proxy(url: Secret) -> AsyncGenerator[SwitchableProxy]:
    """Yield a closed proxy to the server of `url`."""
    proxy = SwitchableProxy(url)
    try:
        yield proxy
    finally:
        proxy.close()
