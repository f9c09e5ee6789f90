"""One connection that listens, and tells when it hears something.

A notification is a hint and polling is the truth, so a listener that dies costs time and nothing else. It
must know that it is dead, though: it sends itself a ping through the server and counts as healthy only while
the pings come back. Behind a transaction pooler they never do, and the caller polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from holdfast import telemetry
from holdfast.engine.connection import connected
from holdfast.errors import DatabaseAwayError, HoldfastError
from holdfast.settings import Secret, Settings

TASKS = "holdfast"
MESSAGES = "holdfast_messages"  # its payload is the queue
EVENTS = "holdfast_events"  # its payload is the job, if somebody watches it
PING_SECONDS = 90.0  # one of the two statements a minute that an idle worker may cost
PONG_SECONDS = 5.0
RECONNECT_SECONDS = 2.0
DEAF_SECONDS = 60.0  # a connection that is there and hears nothing: a pooler, and it will stay one


class Listener:
    """Calls `heard[channel](payload)` for each notification; with "" whenever some may have been missed."""

    def __init__(self, url: Secret, settings: Settings, heard: Mapping[str, Callable[[str], None]]) -> None:
        self._url = url
        self._settings = settings
        self._heard = heard
        self._own = f"holdfast_{uuid.uuid4().hex[:12]}"
        self._pong = asyncio.Event()
        self._healthy_until = 0.0
        self._loop: asyncio.Task[None] | None = None

    @property
    def healthy(self) -> bool:
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
            pause = DEAF_SECONDS
            try:
                await self._listen()
            except HoldfastError as problem:
                pause = RECONNECT_SECONDS
                telemetry.emit("database.away", error=str(problem), retry_in=pause)
            self._healthy_until = 0.0
            await asyncio.sleep(pause)

    async def _listen(self) -> None:
        async with connected(self._url, self._settings) as connection:
            for channel in self._heard:
                await connection.add_listener(channel, self._on_hint)
            await connection.add_listener(self._own, self._on_pong)
            closed = asyncio.Event()
            connection.add_termination_listener(lambda _: closed.set())
            while await self._answers(connection):
                if not self.healthy:
                    for heard in self._heard.values():
                        heard("")  # whatever was said before we listened
                self._healthy_until = time.monotonic() + PING_SECONDS + PONG_SECONDS
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PING_SECONDS):
                        await closed.wait()
                    raise DatabaseAwayError("The connection that listens was closed.")

    async def _answers(self, connection: Any) -> bool:
        """Whether a notification to ourselves comes back."""
        self._pong.clear()
        await connection.execute(f"notify {self._own}")
        try:
            async with asyncio.timeout(PONG_SECONDS):
                await self._pong.wait()
        except TimeoutError:
            return False
        return True

    def _on_hint(self, _: object, __: int, channel: str, payload: object) -> None:
        self._heard[channel](str(payload))

    def _on_pong(self, *_: object) -> None:
        self._pong.set()
