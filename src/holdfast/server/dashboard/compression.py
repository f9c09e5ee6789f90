"""Compress the texts that the dashboard sends: pages, style sheets, exports and live updates.

An event stream is compressed as one stream and flushed after each event, so an event arrives at once, and the
second event of a page is small because it repeats the first. Form tokens are masked in each response
(`sessions.mask_form_token`), so their compressed size tells nothing about them.
"""

from __future__ import annotations

import zlib
from typing import Final, Protocol

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COMPRESSED_TYPES: Final = frozenset(
    {
        "text/html",
        "text/css",
        "text/javascript",
        "text/plain",
        "text/csv",
        "text/event-stream",
        "application/x-ndjson",
        "application/json",
        "image/svg+xml",
    }
)
MIN_COMPRESSED_BYTES: Final = 800
COMPRESSION_LEVEL: Final = 5
_GZIP_WINDOW_BITS: Final = 31


class GzipResponses:
    """An ASGI application that compresses the text responses of another one with gzip."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepted = Headers(scope=scope).get("accept-encoding", "") if scope["type"] == "http" else ""
        if "gzip" not in accepted or scope["method"] == "HEAD":
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _CompressingSend(send))


class Compressor(Protocol):
    """A stream compressor of `zlib`, whose class has no public name."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self, mode: int, /) -> bytes: ...


class _CompressingSend:
    """Sends one response, compressed if its type and its size are worth it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._compressor: Compressor | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] == "http.response.body" and self._start is not None:
            await self._begin(self._start, message)
            self._start = None
        if self._compressor is not None and message["type"] == "http.response.body":
            message = self._compress(message, self._compressor)
        await self._send(message)

    async def _begin(self, start: Message, first: Message) -> None:
        headers = MutableHeaders(raw=list(start["headers"]))
        media_type = headers.get("content-type", "").partition(";")[0].strip()
        is_long = first.get("more_body", False) or len(first.get("body", b"")) >= MIN_COMPRESSED_BYTES
        if media_type in COMPRESSED_TYPES and "content-encoding" not in headers and is_long:
            self._compressor = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, _GZIP_WINDOW_BITS)
            headers["content-encoding"] = "gzip"
            headers.add_vary_header("accept-encoding")
            del headers["content-length"]
        await self._send({**start, "headers": headers.raw})

    @staticmethod
    def _compress(message: Message, compressor: Compressor) -> Message:
        more = message.get("more_body", False)
        body = compressor.compress(message.get("body", b""))
        body += compressor.flush(zlib.Z_SYNC_FLUSH if more else zlib.Z_FINISH)
        return {**message, "body": body}
