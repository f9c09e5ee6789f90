"""The pace of the heartbeat's thread and of the worker's event loop: slow while the worker is idle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

HEARTBEAT_TICK_INTERVAL_S: Final = 0.25
IDLE_TICK_INTERVAL_S: Final = 0.5  # half of what counts as a blocked event loop


class TickPacer:
    """Lets the heartbeat's thread wait for its next tick. `is_busy` tells whether ticks must be quick."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakeup = asyncio.Event()
        self._waits_long = False

    @property
    def interval_s(self) -> float:
        return HEARTBEAT_TICK_INTERVAL_S if self._is_busy() else IDLE_TICK_INTERVAL_S

    async def wait_for_next_tick(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wakeup.clear()
        self._waits_long = True  # first, so that an attempt that starts now ends the wait
        pause_s = self.interval_s
        self._waits_long = pause_s > HEARTBEAT_TICK_INTERVAL_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._wakeup.wait()

    def end_long_wait(self) -> None:
        """Let the thread tick now if it waits as an idle worker. Called when attempts start."""
        if self._waits_long and self._loop is not None:
            self._waits_long = False
            self._loop.call_soon_threadsafe(self._wakeup.set)
