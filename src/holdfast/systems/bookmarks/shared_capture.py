"""One capture for all requests of an API process: one browser and one HTTP client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta

from holdfast import Client
from holdfast.systems.bookmarks.capture_port import BookmarkCapture

OpenCapture = Callable[[Client], AbstractAsyncContextManager[BookmarkCapture]]
CAPTURE_IDLE_TIMEOUT = timedelta(minutes=1)
_log = logging.getLogger("holdfast.systems.bookmarks")


class SharedCapture:
    """A capture that opens with the first request and closes some time after the last one."""

    def __init__(self, open_capture: OpenCapture, idle_timeout: timedelta = CAPTURE_IDLE_TIMEOUT) -> None:
        self._open_capture = open_capture
        self._idle_timeout = idle_timeout
        self._lock = asyncio.Lock()
        self._resources = AsyncExitStack()
        self._capture: BookmarkCapture | None = None
        self._users = 0
        self._closing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def use(self, client: Client) -> AsyncGenerator[BookmarkCapture]:
        """Yield the capture of this process. Open it if no request uses it."""
        async with self._lock:
            if self._capture is None:
                self._capture = await self._resources.enter_async_context(self._open_capture(client))
            self._users += 1
        try:
            yield self._capture
        finally:
            self._users -= 1
            if self._users == 0:
                if self._closing is not None:
                    self._closing.cancel()
                self._closing = asyncio.create_task(self._close_when_idle())

    async def _close_when_idle(self) -> None:
        await asyncio.sleep(self._idle_timeout.total_seconds())
        async with self._lock:
            if self._users > 0:
                return
            self._capture = None
            try:
                await self._resources.aclose()
            except Exception:
                _log.exception("The capture of the API could not be closed.")
