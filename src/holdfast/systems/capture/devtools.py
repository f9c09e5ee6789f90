"""Chromium's debugging protocol (DevTools) over a pair of pipes: commands, responses and events.

Messages are JSON, each ended by a zero byte. A command has an id, and its response has the same id. Events
have no id. Both may carry the id of a session, which is one attached page. A pipe has no port that other
users of the machine could connect to, and it closes when either side ends.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import msgspec

from holdfast.systems.capture.errors import BrowserCrashedError, CaptureError

EventCallback: TypeAlias = Callable[[dict[str, Any]], None]
MAX_MESSAGE_BYTES = 256 * 1024 * 1024


class DevToolsMessage(msgspec.Struct):
    """A message of Chromium: the response to a command, or an event."""

    id: int | None = None
    method: str | None = None
    params: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    session_id: str | None = msgspec.field(default=None, name="sessionId")


class DevToolsError(CaptureError):
    """Chromium refused a command. The text of Chromium stays in the log."""

    def __init__(self, method: str, text: str) -> None:
        super().__init__("The browser could not capture the page.", retry=True)
        self.add_note(f"{method}: {text[:500]}")
        self.text = text


class DevToolsConnection(asyncio.Protocol):
    """Connection to one Chromium. All methods belong to the event loop that opened it."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self._buffer = bytearray()
        self._searched_bytes = 0
        self._ids = itertools.count(1)
        self._responses: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._methods: dict[int, str] = {}
        self._callbacks: dict[tuple[str | None, str], EventCallback] = {}
        self._writer: asyncio.WriteTransport | None = None
        self._reader: asyncio.BaseTransport | None = None
        self._decoder = msgspec.json.Decoder(DevToolsMessage)

    async def open(self, read_fd: int, write_fd: int) -> None:
        """Connect to the pipes. The connection owns and closes both descriptors."""
        loop = asyncio.get_running_loop()
        self._reader, _ = await loop.connect_read_pipe(lambda: self, open(read_fd, "rb", buffering=0))  # noqa: SIM115, ASYNC230
        self._writer, _ = await loop.connect_write_pipe(
            asyncio.BaseProtocol,
            open(write_fd, "wb", buffering=0),  # noqa: SIM115, ASYNC230
        )

    def close(self) -> None:
        """Close both pipes. Pending commands fail with BrowserCrashedError."""
        for transport in (self._reader, self._writer):
            if transport is not None:
                transport.close()
        self.connection_lost(None)

    def on_event(self, method: str, callback: EventCallback, session_id: str | None = None) -> None:
        """Call a function with the parameters of each event of one kind, of the browser or of a session."""
        self._callbacks[session_id, method] = callback

    def forget_session(self, session_id: str) -> None:
        """Remove the callbacks of a session."""
        for key in [key for key in self._callbacks if key[0] == session_id]:
            del self._callbacks[key]

    async def send(
        self, method: str, params: dict[str, Any] | None = None, session_id: str | None = None
    ) -> dict[str, Any]:
        """Send a command and return its result. Raise DevToolsError or BrowserCrashedError."""
        command_id = self._write(method, params, session_id)
        response: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._responses[command_id] = response
        self._methods[command_id] = method
        try:
            return await response
        finally:
            self._responses.pop(command_id, None)
            self._methods.pop(command_id, None)

    def post(self, method: str, params: dict[str, Any] | None = None, session_id: str | None = None) -> None:
        """Send a command without waiting for its response. Do nothing if the browser has ended."""
        if not self.closed.is_set():
            self._write(method, params, session_id)

    def _write(self, method: str, params: dict[str, Any] | None, session_id: str | None) -> int:
        if self.closed.is_set() or self._writer is None:
            raise BrowserCrashedError
        command: dict[str, Any] = {"id": next(self._ids), "method": method, "params": params or {}}
        if session_id is not None:
            command["sessionId"] = session_id
        self._writer.write(msgspec.json.encode(command) + b"\0")
        return cast("int", command["id"])

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(0, self._searched_bytes)) >= 0:
            message = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched_bytes = 0
            self._handle_message(message)
        self._searched_bytes = len(self._buffer)
        if len(self._buffer) > MAX_MESSAGE_BYTES:
            self.close()

    def _handle_message(self, data: bytes) -> None:
        message = self._decode(data)
        if message.id is not None:
            self._resolve_response(message.id, message)
        elif message.method is not None:
            callback = self._callbacks.get((message.session_id, message.method))
            if callback is not None:
                callback(message.params or {})

    def _decode(self, data: bytes) -> DevToolsMessage:
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Text of a page may contain halves of surrogate pairs, which only the standard library reads.
            return msgspec.convert(json.loads(data.decode("utf-8", "replace")), DevToolsMessage)

    def _resolve_response(self, command_id: int, message: DevToolsMessage) -> None:
        response = self._responses.get(command_id)
        if response is None or response.done():
            return
        if message.error is not None:
            text = str(message.error.get("message", ""))
            response.set_exception(DevToolsError(self._methods[command_id], text))
        else:
            response.set_result(message.result or {})

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        for response in self._responses.values():
            if not response.done():
                response.set_exception(BrowserCrashedError())
