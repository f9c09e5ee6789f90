"""A TCP proxy between workers and the server that injects network faults.

`reply_drop_rate` is the share of responses that the proxy drops: it forwards the request and closes the
connection when the first byte of the response returns. The statement has run, and the caller does not know.
`hold_directions` keeps connections open and forwards nothing in one or both directions, as a broken network
does.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from typing import Literal

from holdfast.settings import Secret

Direction = Literal["up", "down"]
CHUNK_BYTES = 65_536


@dataclass
class FaultProxy:
    """A TCP proxy to `host` and `port`. It can hold back data, close connections and drop responses."""

    host: str
    port: int
    random: random.Random
    reply_drop_rate: float = 0.0  # share of responses that are dropped
    held_directions: set[Direction] = field(default_factory=set[Direction])
    dropped_replies: int = 0
    listen_port: int = 0
    _server: asyncio.Server | None = None
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    _link_tasks: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    async def start(self) -> None:
        self._released.set()
        self._server = await asyncio.start_server(self._forward_connection, "127.0.0.1", 0)
        self.listen_port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for link in list(self._link_tasks):
            link.cancel()
        await asyncio.gather(*self._link_tasks, return_exceptions=True)

    def hold_directions(self, *directions: Direction) -> None:
        """Forward nothing in these directions, and keep the connections open."""
        self.held_directions = set(directions)
        self._released.clear()

    def release_directions(self) -> None:
        """Forward data in both directions again."""
        self.held_directions = set()
        self._released.set()

    def close_connections(self) -> None:
        """Close every connection. New connections go to the current `port`."""
        for link in list(self._link_tasks):
            link.cancel()

    async def _forward_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._link_tasks.add(link)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            server_reader, server_writer = await asyncio.open_connection(self.host, self.port)
            directions = [
                asyncio.create_task(self._forward_direction(reader, server_writer, "up")),
                asyncio.create_task(self._forward_direction(server_reader, writer, "down")),
            ]
            try:
                await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in directions:
                    task.cancel()
                server_writer.transport.abort()
        writer.transport.abort()
        self._link_tasks.discard(link)

    async def _forward_direction(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, direction: Direction
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                while direction in self.held_directions:
                    await self._released.wait()
                if (
                    direction == "down"
                    and self.reply_drop_rate
                    and self.random.random() < self.reply_drop_rate
                ):
                    self.dropped_replies += 1
                    return
                target.write(data)
                await target.drain()


def replace_port(url: Secret, port: int) -> Secret:
    """Return the same URL with another port."""
    head, _, tail = url.reveal().rpartition("@")
    host, _, path = tail.partition("/")
    return Secret(f"{head}@{host.rpartition(':')[0]}:{port}/{path}")
