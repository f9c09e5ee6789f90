"""The one shape of every loop in a worker: start twice does no harm, stop returns when stopped.

A service runs `step()` again and again. A step that fails is logged and tried again after a pause that
grows and is jittered, so that a hundred workers do not come back in the same millisecond.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod

from holdfast import telemetry
from holdfast.errors import DatabaseError

LEAST_PAUSE, MOST_PAUSE = 0.1, 5.0
_log = logging.getLogger("holdfast.worker")


class Service(ABC):
    def __init__(self) -> None:
        self._loop: asyncio.Task[None] | None = None
        self._failures = 0

    @abstractmethod
    async def step(self) -> None:
        """One round. Returns when there is reason for another."""

    @property
    def failing(self) -> bool:
        """Whether the last step failed."""
        return self._failures > 0

    def start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.create_task(self._run(), name=type(self).__name__)

    async def stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            # Again and again: a library may swallow a cancellation that comes with what it waits for.
            while not loop.done():
                loop.cancel()
                await asyncio.wait({loop}, timeout=0.2)

    async def _run(self) -> None:
        while True:
            try:
                await self.step()
            except DatabaseError as problem:
                await self._pause(problem)
            except Exception as problem:
                # A loop that ends here would leave a worker that lives and does nothing.
                _log.exception("%s failed and goes on", type(self).__name__)
                await self._pause(problem)
            else:
                self._recovered()

    async def _pause(self, problem: Exception) -> None:
        self._failures += 1
        ceiling = min(MOST_PAUSE, LEAST_PAUSE * 2**self._failures)
        pause = random.uniform(LEAST_PAUSE, ceiling)  # noqa: S311  (spreads load, hides nothing)
        telemetry.emit("database.away", error=str(problem), retry_in=pause)
        await asyncio.sleep(pause)

    def _recovered(self) -> None:
        if self._failures:
            telemetry.emit("database.back", failures=self._failures)
            self._failures = 0
