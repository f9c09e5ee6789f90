"""The shape of every background loop in a worker: starting twice does no harm, `stop` returns when stopped.

A service runs `step()` again and again. A step that fails is logged and repeated after a pause that grows and
is jittered, so that a hundred workers do not reconnect in the same millisecond.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from typing import Final

from holdfast import telemetry
from holdfast.errors import DatabaseError

MIN_RETRY_PAUSE_S: Final = 0.1
MAX_RETRY_PAUSE_S: Final = 5.0
_log = logging.getLogger("holdfast.worker")


class BackgroundService(ABC):
    def __init__(self) -> None:
        self._loop: asyncio.Task[None] | None = None
        self._failure_count = 0

    @abstractmethod
    async def run_round(self) -> None:
        """Run one round of the background loop. The loop calls this method again and again."""

    @property
    def is_failing(self) -> bool:
        """Whether the last round failed."""
        return self._failure_count > 0

    def start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.create_task(self._run_rounds(), name=type(self).__name__)

    async def stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            # Cancel repeatedly: a library may swallow a cancellation that arrives together with its result.
            while not loop.done():
                loop.cancel()
                await asyncio.wait({loop}, timeout=0.2)

    async def _run_rounds(self) -> None:
        while True:
            try:
                await self.run_round()
            except DatabaseError as error:
                await self._pause_after_error(error)
            except Exception as error:
                # If the loop ended here, the worker would be alive and do nothing.
                _log.exception("%s failed; it is tried again", type(self).__name__)
                await self._pause_after_error(error)
            else:
                self._record_recovery()

    async def _pause_after_error(self, error: Exception) -> None:
        self._failure_count += 1
        max_pause_s = min(MAX_RETRY_PAUSE_S, MIN_RETRY_PAUSE_S * 2**self._failure_count)
        pause_s = random.uniform(MIN_RETRY_PAUSE_S, max_pause_s)  # noqa: S311  (spreads load, no secret)
        telemetry.emit("database.connection_failed", error=str(error), retry_in=pause_s)
        await asyncio.sleep(pause_s)

    def _record_recovery(self) -> None:
        if self._failure_count:
            telemetry.emit("database.connection_restored", failures=self._failure_count)
            self._failure_count = 0
