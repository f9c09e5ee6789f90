"""One connection of a program to the proxy: read a request, check the password and the policy, pass it on.

`CONNECT host:port` becomes a tunnel, which browsers use for https and WebSockets. `GET http://host/path`
is sent on with the connection pool of the guarded client. A connection carries one request. A program that
sends several opens several connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import h11
import httpcore

from holdfast.egress.connections import translate_errors
from holdfast.egress.errors import EgressError, EgressRefusedError, EgressResponseError, EgressTimeoutError
from holdfast.egress.proxy_state import ProxyState
from holdfast.egress.tunnels import CHUNK_BYTES, ByteStreams, open_guarded_connection, relay_bytes
from holdfast.egress.urls import EgressUrl, parse_authority

MAX_HEAD_BYTES: Final = 64 * 1024
HEAD_TIMEOUT_S: Final = 15.0
_HOP_HEADERS: Final = frozenset(
    {b"connection", b"expect", b"host", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
     b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)  # fmt: skip

HeaderList = list[tuple[bytes, bytes]]


class ProxyConnection:
    """One connection of a program to the proxy."""

    def __init__(self, state: ProxyState, pool: httpcore.AsyncConnectionPool, client: ByteStreams) -> None:
        self._state = state
        self._pool = pool
        self._reader, self._writer = client
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._timer = asyncio.timeout(HEAD_TIMEOUT_S)

    async def run(self) -> None:
        """Answer one request. The caller closes the connection."""
        try:
            async with self._timer:
                request = await self._read_head()
                if request is not None:
                    await self._answer(request)
        except* (TimeoutError, OSError, EgressError, h11.ProtocolError):
            pass  # The response has begun or the program is gone, so there is nobody to tell.

    async def _read_head(self) -> h11.Request | None:
        try:
            event = await self._receive()
        except h11.RemoteProtocolError:
            await self._reply(400, "This is not a valid HTTP request.")
            return None
        return event if isinstance(event, h11.Request) else None

    async def _answer(self, request: h11.Request) -> None:
        authorizations = [value for name, value in request.headers if name == b"proxy-authorization"]
        if len(authorizations) != 1 or not self._state.is_authorized(authorizations[0]):
            await self._reply(
                407, "The proxy needs its password.", (b"Proxy-Authenticate", b'Basic realm="holdfast"')
            )
            return
        method, target = request.method.decode("latin-1"), request.target.decode("latin-1")
        try:
            self._state.check_limits()
            self._touch()
            if method == "CONNECT":
                if not isinstance(await self._receive(), h11.EndOfMessage):
                    raise EgressRefusedError("A CONNECT request has no body.")
                await self._tunnel(*parse_authority(target))
            else:
                await self._forward(request, self._check_forward(request, target))
        except* EgressError as group:
            error = _get_first_error(group)
            if isinstance(error, EgressRefusedError):
                self._state.record_refusal(method, target, error.message)
            await self._reply(_get_status(error), error.message)

    async def _tunnel(self, host: str, port: int) -> None:
        async with self._state.limiter.reserve_slot(host):
            server = await open_guarded_connection(self._state.policy, host, port)
            try:
                await self._write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self._http.send(h11.Response(status_code=200, headers=[]))
                early_data = self._http.trailing_data[0]
                self._count_sent(len(early_data))
                server[1].write(early_data)
                await relay_bytes(
                    (self._reader, self._writer), server, self._count_sent, self._count_received
                )
            finally:
                server[1].close()

    def _check_forward(self, request: h11.Request, target: str) -> EgressUrl:
        url = self._state.policy.check_url(target)
        if url.secure:
            raise EgressRefusedError("https needs a CONNECT request.")
        if any(name == b"upgrade" for name, _ in request.headers):
            raise EgressRefusedError("A WebSocket needs a CONNECT request.")
        if request.method == b"TRACE":
            raise EgressRefusedError("TRACE requests are not allowed.")
        return url

    async def _forward(self, request: h11.Request, url: EgressUrl) -> None:
        headers = [(b"Host", url.authority.encode()), *_remove_hop_headers(request.headers.raw_items())]
        if any(name == b"transfer-encoding" for name, _ in request.headers):
            headers.append((b"Transfer-Encoding", b"chunked"))
        idle_s = self._state.limits.idle_timeout.total_seconds()
        connect_s = self._state.policy.connect_timeout.total_seconds()
        timeouts = {"connect": connect_s, "read": idle_s, "write": idle_s, "pool": idle_s}
        async with self._state.limiter.reserve_slot(url.host):
            with translate_errors():
                async with self._pool.stream(
                    request.method,
                    str(url),
                    headers=headers,
                    content=self._iterate_request_body(),
                    extensions={"timeout": timeouts},
                ) as response:
                    await self._send_response(request, response)

    async def _iterate_request_body(self) -> AsyncGenerator[bytes]:
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        while isinstance(event := await self._receive(), h11.Data):
            self._count_sent(len(event.data))
            yield bytes(event.data)

    async def _send_response(self, request: h11.Request, response: httpcore.Response) -> None:
        if response.status < 200:
            raise EgressResponseError("The server changed the protocol.")
        headers = [*_remove_hop_headers(response.headers), (b"Connection", b"close")]
        await self._send(h11.Response(status_code=response.status, headers=headers))
        async for data in response.aiter_stream():
            self._count_received(len(data))
            await self._send(h11.Data(data=data))
        await self._send(h11.EndOfMessage())

    async def _reply(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        """Send a response of the proxy itself, if no other response has begun."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"{message}\n".encode()
        fields: HeaderList = [
            (b"Content-Type", b"text/plain; charset=utf-8"),
            (b"Content-Length", str(len(body)).encode()),
            (b"Connection", b"close"),
            *headers,
        ]
        await self._send(h11.Response(status_code=status, headers=fields))
        with contextlib.suppress(h11.LocalProtocolError):  # a response to HEAD has no body
            await self._send(h11.Data(data=body))
        with contextlib.suppress(h11.LocalProtocolError):
            await self._send(h11.EndOfMessage())

    async def _receive(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(CHUNK_BYTES))
        return event

    async def _send(self, event: h11.Event) -> None:
        await self._write(self._http.send(event) or b"")

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def _count_sent(self, size: int) -> None:
        self._state.count_sent(size)
        self._touch()

    def _count_received(self, size: int) -> None:
        self._state.count_received(size)
        self._touch()

    def _touch(self) -> None:
        """Start the idle time again."""
        idle_s = self._state.limits.idle_timeout.total_seconds()
        if not self._timer.expired():
            self._timer.reschedule(asyncio.get_running_loop().time() + idle_s)


def _remove_hop_headers(headers: HeaderList) -> HeaderList:
    """Return the headers that are for the other end, without those of this connection."""
    named = {
        option.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for option in value.split(b",")
    }
    return [(name, value) for name, value in headers if name.lower() not in _HOP_HEADERS | named]


def _get_first_error(group: BaseExceptionGroup[EgressError]) -> EgressError:
    first = group.exceptions[0]
    return _get_first_error(first) if isinstance(first, BaseExceptionGroup) else first


def _get_status(error: EgressError) -> int:
    if isinstance(error, EgressRefusedError):
        return 403
    return 504 if isinstance(error, EgressTimeoutError) else 502
