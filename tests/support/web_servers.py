"""Web servers on loopback that send any bytes, also invalid ones, and record the requests they received."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RecordedRequest:
    """One request that a server received."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Responder = Callable[[RecordedRequest, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class WebServer:
    """A server that answers each request with `responder` and closes the connection."""

    responder: Responder
    host: str = "127.0.0.1"
    port: int = 0
    connections: int = 0
    requests: list[RecordedRequest] = field(default_factory=list[RecordedRequest])

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.authority}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
            request = await _read_request(reader)
            self.requests.append(request)
            await self.responder(request, writer)
            await writer.drain()
        writer.close()


async def _read_request(reader: asyncio.StreamReader) -> RecordedRequest:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name
    }
    body = b""
    if "chunked" in headers.get("transfer-encoding", ""):
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    method, target, _ = first.split(" ")
    return RecordedRequest(method, target, headers, body)


def respond(body: bytes = b"", *, status: int = 200, close: bool = True, **headers: str) -> Responder:
    """Return a responder that sends one valid response. Underscores in names of headers become hyphens."""
    lines = {
        "Content-Length": str(len(body)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    head = f"HTTP/1.1 {status} X\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    head += "Connection: close\r\n\r\n" if close else "\r\n"
    return send_raw(head.encode("latin-1") + body)


def send_raw(data: bytes) -> Responder:
    """Return a responder that sends these bytes and nothing else."""

    async def responder(_: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return responder


@asynccontextmanager
async def run_web_server(
    responder: Responder, *, host: str = "127.0.0.1", port: int = 0, ssl_context: ssl.SSLContext | None = None
) -> AsyncGenerator[WebServer]:
    """Run a server on a free port of an address of loopback."""
    web_server = WebServer(responder, host)
    server = await asyncio.start_server(web_server.serve, host, port, ssl=ssl_context)
    web_server.port = server.sockets[0].getsockname()[1]
    try:
        yield web_server
    finally:
        server.close()
