"""Clients that send or read too slowly lose their connection, and everybody else is served."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
import pytest
from api_clients import serve_app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from holdfast.server import slow_clients
from holdfast.server.slow_clients import build_http_protocol

SHORT, LONG = timedelta(seconds=1), timedelta(minutes=10)
PATIENCE_S = 100
HALF_HEAD = b"GET /hello HTTP/1.1\r\nhost: x\r\nx-half: "
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class SlowApp:
    """An application with a greeting, an echo, an endless response and an event stream."""

    def __init__(self) -> None:
        self.endless_responses = 0
        routes = [
            Route("/hello", self.greet),
            Route("/echo", self.echo, methods=["POST"]),
            Route("/endless", self.send_endlessly),
            Route("/events", self.send_events),
        ]
        self.app = Starlette(routes=routes)

    async def greet(self, _: Request) -> Response:
        return PlainTextResponse("hello")

    async def echo(self, request: Request) -> Response:
        return PlainTextResponse(await request.body())

    async def send_endlessly(self, _: Request) -> Response:
        async def produce() -> AsyncIterator[bytes]:
            self.endless_responses += 1
            try:
                while True:
                    yield b"x" * 1_000_000
                    await asyncio.sleep(0)  # as an endpoint that reads from somewhere
            finally:
                self.endless_responses -= 1

        return StreamingResponse(produce())

    async def send_events(self, _: Request) -> Response:
        async def produce() -> AsyncIterator[bytes]:
            while True:
                yield b"data: x\n\n"
                await asyncio.sleep(0.3)

        return StreamingResponse(produce(), media_type="text/event-stream")


@asynccontextmanager
async def serve(app: SlowApp, header: timedelta, idle: timedelta) -> AsyncGenerator[str]:
    async with serve_app(app.app, http=build_http_protocol(header, idle)) as url:
        yield url


async def connect(url: str, data: bytes = b"") -> Connection:
    address = httpx.URL(url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def wait_for_close(connection: Connection) -> None:
    """Wait until the server has closed the connection."""
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(connection[0].read(), PATIENCE_S)
    connection[1].close()


async def test_half_sent_requests_are_closed_while_others_are_served() -> None:
    async with serve(SlowApp(), SHORT, LONG) as url, httpx.AsyncClient(base_url=url) as client:
        connections = [await connect(url, HALF_HEAD) for _ in range(300)]
        connections += [await connect(url) for _ in range(20)]
        assert (await client.get("/hello")).text == "hello"
        await asyncio.gather(*(wait_for_close(connection) for connection in connections))
        assert (await client.get("/hello")).text == "hello"


async def trickle_until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a byte now and then until the server closes the connection. Fail if it does not."""

    async def trickle() -> None:
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)

    trickling = asyncio.create_task(trickle())
    await wait_for_close((reader, writer))
    await trickling


async def test_a_head_that_trickles_in_is_not_given_more_time() -> None:
    async with serve(SlowApp(), SHORT, LONG) as url:
        reader, writer = await connect(url, HALF_HEAD)
        await trickle_until_closed(reader, writer)
        assert reader.at_eof()


async def test_the_second_request_of_a_connection_has_the_same_time_limit() -> None:
    async with serve(SlowApp(), SHORT, LONG) as url:
        reader, writer = await connect(url, b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200 OK" in await reader.readline()
        writer.write(HALF_HEAD)
        await wait_for_close((reader, writer))


async def test_a_body_that_stops_is_closed_and_one_that_continues_is_read() -> None:
    async with serve(SlowApp(), LONG, SHORT) as url:
        head = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        stalled = [await connect(url, head % 100 + b"only this") for _ in range(50)]
        reader, writer = await connect(url, head % 8)
        for _ in range(8):  # takes longer than the time limit, but always makes progress
            writer.write(b"x")
            await asyncio.sleep(0.3)
        assert b"200 OK" in await asyncio.wait_for(reader.readline(), PATIENCE_S)
        writer.close()
        await asyncio.gather(*(wait_for_close(connection) for connection in stalled))


async def test_the_rest_of_a_body_does_not_keep_a_connection_open_after_the_response() -> None:
    async with serve(SlowApp(), SHORT, LONG) as url:
        request = b"POST /nosuch HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
        reader, writer = await connect(url, request)
        assert b"404" in await reader.readline()
        await trickle_until_closed(reader, writer)
        assert reader.at_eof()


async def test_a_client_that_does_not_read_its_response_is_disconnected() -> None:
    app = SlowApp()
    async with serve(app, LONG, SHORT) as url:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        address = httpx.URL(url)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, (address.host, address.port))
        await loop.sock_sendall(client, b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            while not app.endless_responses:
                await asyncio.sleep(0.01)
            while app.endless_responses:
                await asyncio.sleep(0.01)
        client.close()
        assert app.endless_responses == 0


async def test_event_streams_and_kept_connections_are_untouched() -> None:
    async with serve(SlowApp(), SHORT, SHORT) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        async with client.stream("GET", "/events") as response:
            events = 0
            async for line in response.aiter_lines():
                events += line == "data: x"
                if events == 12:  # three times the time limits
                    break
        for _ in range(3):
            assert (await client.get("/hello")).text == "hello"
            await asyncio.sleep(0.1)


async def test_only_the_newest_connections_without_a_request_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_clients, "MAX_CONNECTIONS_WITHOUT_HEAD", 20)
    async with serve(SlowApp(), LONG, LONG) as url, httpx.AsyncClient(base_url=url) as client:
        connections = [await connect(url, HALF_HEAD) for _ in range(50)]
        assert (await client.get("/hello")).text == "hello"
        await asyncio.gather(*(wait_for_close(connection) for connection in connections[:30]))
        for _, writer in connections[31:]:  # the request was the newest for a moment
            assert not writer.transport.is_closing()
            writer.close()
