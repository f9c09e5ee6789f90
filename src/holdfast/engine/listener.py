"""Listen for PostgreSQL notifications on one connection and call a callback for each notification.

A notification is a hint; polling finds everything. So a listener that fails costs time and nothing else. But
it must know that it has failed: it sends itself a ping through the server and counts as is_healthy only while
the pings come back. Behind a transaction pooler they never do, and the caller polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.engine.connection import open_connection
from holdfast.errors import DatabaseUnavailableError, HoldfastError
from holdfast.settings import Secret, Settings

TASK_CHANNEL = "holdfast"
MESSAGE_CHANNEL = "holdfast_messages"  # the payload is the queue
EVENT_CHANNEL = "holdfast_events"  # the payload is the id of a watched job
LISTENER_PING_INTERVAL_S = 120.0  # an idle worker may cost two statements per minute in all
LISTENER_PONG_TIMEOUT_S = 5.0
LISTENER_RECONNECT_DELAY_S = 2.0
POOLER_RETRY_DELAY_S = 60.0  # after a connection that delivers no notifications: a pooler, and it stays one
_log = logging.getLogger("holdfast.listener")


class NotificationListener:
    """Calls `callbacks[channel](payload)` for each notification, and with "" if some were missed.

    Nobody else listens on `own_channel`. What others send to it goes to the callback of TASK_CHANNEL.
    """

    def __init__(
        self, url: Secret, settings: Settings, callbacks: Mapping[str, Callable[[str], None]]
    ) -> None:
        self._url = url
        self._settings = settings
        self._callbacks = callbacks
        self.own_channel = f"holdfast_{uuid.uuid4().hex[:12]}"
        self._pong = asyncio.Event()
        self._healthy_until = 0.0
        self._loop: asyncio.Task[None] | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether the listener is connected and receives notifications."""
        return time.monotonic() < self._healthy_until

    def start(self) -> None:
        if self._loop is None and self._settings.listen != "off":
            self._loop = asyncio.create_task(self._run(), name="listener")

    async def stop(self) -> None:
        loop, self._loop = self._loop, None
        self._healthy_until = 0.0
        if loop is not None:
            loop.cancel()
            await asyncio.wait({loop})

    async def _run(self) -> None:
        while True:
            delay_s = POOLER_RETRY_DELAY_S
            try:
                await self._listen()
            except DatabaseUnavailableError:  # whoever connects reports it once (engine.availability)
                delay_s = LISTENER_RECONNECT_DELAY_S
            except HoldfastError as error:
                _log.warning("Listening for notifications failed: %s", error)
            self._healthy_until = 0.0
            await asyncio.sleep(delay_s)

    async def _listen(self) -> None:
        async with open_connection(self._url, self._settings, report_outage=True) as connection:
            for channel in self._callbacks:
                await connection.add_listener(channel, self._on_notification)
            await connection.add_listener(self.own_channel, self._on_own_notification)
            closed = asyncio.Event()
            connection.add_termination_listener(lambda _: closed.set())
            while await self._ping(connection):
                if not self.is_healthy:
                    for callback in self._callbacks.values():
                        callback("")  # notifications from before this connection listened were missed
                self._healthy_until = time.monotonic() + LISTENER_PING_INTERVAL_S + LISTENER_PONG_TIMEOUT_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LISTENER_PING_INTERVAL_S):
                        await closed.wait()
                    raise DatabaseUnavailableError("The connection for notifications was closed.")

    async def _ping(self, connection: Any) -> bool:
        """Send a notification to this listener and return whether it arrives in time."""
        self._pong.clear()
        await connection.execute(f"notify {self.own_channel}")
        try:
            async with asyncio.timeout(LISTENER_PONG_TIMEOUT_S):
                await self._pong.wait()
        except TimeoutError:
            return False
        return True

    def _on_notification(self, _: object, __: int, channel: str, payload: object) -> None:
        self._callbacks[channel](str(payload))

    def _on_own_notification(self, _: object, __: int, ___: str, payload: object) -> None:
        if not payload:
            self._pong.set()
        elif TASK_CHANNEL in self._callbacks:
            self._callbacks[TASK_CHANNEL](str(payload))
