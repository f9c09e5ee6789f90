"""A TCP proxy between workers and the server that injects network faults.

`cut_replies` forwards a request and drops the connection when the first byte of its response returns: the
statement has run and the caller does not know. `hold` keeps connections open and forwards nothing in one or
both directions, as a broken network does.
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
class Proxy:
    host: str
    port: int
    random: random.Random
    cut_replies: float = 0.0  # share of responses that are lost
    held: set[Direction] = field(default_factory=set[Direction])
    cuts: int = 0
    own_port: int = 0
    _server: asyncio.Server | None = None
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _links: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    async def start(self) -> None:
        self._moved.set()
        self._server = await asyncio.start_server(self._link, "127.0.0.1", 0)
        self.own_port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for link in list(self._links):
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    def hold(self, *directions: Direction) -> None:
        self.held = set(directions)
        self._moved.clear()

    def release(self) -> None:
        self.held = set()
        self._moved.set()

    def drop(self) -> None:
        """Close every connection. New connections go to the current `port`."""
        for link in list(self._links):
            link.cancel()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._links.add(me)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            there, here = await asyncio.open_connection(self.host, self.port)
            sides = [
                asyncio.create_task(self._pump(reader, here, "up")),
                asyncio.create_task(self._pump(there, writer, "down")),
            ]
            try:
                await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for side in sides:
                    side.cancel()
                here.transport.abort()
        writer.transport.abort()
        self._links.discard(me)

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, direction: Direction
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                while direction in self.held:
                    await self._moved.wait()
                if direction == "down" and self.cut_replies and self.random.random() < self.cut_replies:
                    self.cuts += 1
                    return
                target.write(data)
                await target.drain()


def replace_port(url: Secret, port: int) -> Secret:
    """Return the same URL with another port."""
    head, _, tail = url.reveal().rpartition("@")
    host, _, path = tail.partition("/")
    return Secret(f"{head}@{host.rpartition(':')[0]}:{port}/{path}")
