"""Close connections of clients that are too slow: an HTTP protocol for uvicorn with time limits.

uvicorn waits for ever for the rest of a request, so that a few thousand half-sent requests use up its
connections (the attack is known as Slowloris). This protocol closes a connection

- that has not sent a complete request head within the header time limit, counted from the connection or from
  the first byte of a later request,
- whose request body stops arriving, although the application reads it,
- that does not read its response.

Of the connections that have not sent a request head, only the newest stay open. The time limits are for
clients that make no progress: downloads and event streams may take as long as they like, and uvicorn's
keep-alive time limit is for connections between two requests.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from holdfast.server.joined_writes import JoinedWrites

MAX_CONNECTIONS_WITHOUT_HEAD = 500


class TimeLimitedHttpProtocol(H11Protocol):
    """HTTP/1.1 protocol that closes the connection of a client that is too slow."""

    header_timeout_s: float
    idle_timeout_s: float
    waiting_for_head: dict[TimeLimitedHttpProtocol, asyncio.TimerHandle]
    """Connections without a complete request head, the oldest first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._body_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._received_at = 0.0
        self._unsent_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", JoinedWrites(transport, self.loop)))
        self._limit_head_time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_body_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._received_at = self.loop.time()
        self._choose_time_limit()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._choose_time_limit()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(self.idle_timeout_s, self._check_write_progress)

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def _choose_time_limit(self) -> None:
        """Start the timer for what the connection waits for now, and stop the others."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._stop_head_timer()
            self._stop_body_timer()
        elif self._has_open_request():
            self._stop_head_timer()
            self._limit_body_time()
        else:
            self._stop_body_timer()
            if self.timeout_keep_alive_task is None:
                self._limit_head_time()

    def _has_open_request(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        return cycle is not None and not cycle.response_complete

    # The request head

    def _limit_head_time(self) -> None:
        if self in self.waiting_for_head:
            return
        self.waiting_for_head[self] = self.loop.call_later(self.header_timeout_s, self.transport.close)
        if len(self.waiting_for_head) > MAX_CONNECTIONS_WITHOUT_HEAD:
            oldest = next(iter(self.waiting_for_head))
            oldest._stop_head_timer()
            oldest.transport.close()

    def _stop_head_timer(self) -> None:
        timer = self.waiting_for_head.pop(self, None)
        if timer is not None:
            timer.cancel()

    # The request body

    def _limit_body_time(self) -> None:
        if not self.cycle.more_body:
            self._stop_body_timer()
        elif self._body_timer is None:
            self._body_timer = self.loop.call_later(self.idle_timeout_s, self._check_body_progress)

    def _check_body_progress(self) -> None:
        """Close the connection if the application waits for the body and nothing arrives."""
        self._body_timer = None
        if self.cycle.response_complete or not self.cycle.more_body:
            return
        idle_s = 0.0 if self.flow.read_paused else self.loop.time() - self._received_at
        if idle_s >= self.idle_timeout_s:
            self.transport.close()
            return
        self._body_timer = self.loop.call_later(self.idle_timeout_s - idle_s, self._check_body_progress)

    def _stop_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    # The response

    def _check_write_progress(self) -> None:
        """Abort the connection if the client has not read a byte of the response for the whole time."""
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes >= self._unsent_bytes:
            self.transport.abort()  # `close` would wait until everything is sent
            return
        self._unsent_bytes = unsent_bytes
        self._write_timer = self.loop.call_later(self.idle_timeout_s, self._check_write_progress)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def build_http_protocol(header_timeout: timedelta, idle_timeout: timedelta) -> type[TimeLimitedHttpProtocol]:
    """Build the protocol class for `uvicorn.Config(http=...)` with these time limits."""

    class HttpProtocol(TimeLimitedHttpProtocol):
        header_timeout_s = header_timeout.total_seconds()
        idle_timeout_s = idle_timeout.total_seconds()
        waiting_for_head: dict[TimeLimitedHttpProtocol, asyncio.TimerHandle] = {}  # noqa: RUF012

    return HttpProtocol
