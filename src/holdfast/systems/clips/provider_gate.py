"""Wait while a provider limits the request rate, and continue without a burst.

All clips of a worker share one gate for each provider. After a 429, nobody sends anything until the delay
of the provider has passed. Then one request is sent; the others follow when it has succeeded. The waiting
clips keep their messages, so a limit costs them no attempt.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

from holdfast.systems.providers import ProviderRateLimitedError

T = TypeVar("T")
DEFAULT_DELAY: Final = timedelta(seconds=5)
MAX_WAIT: Final = timedelta(minutes=5)  # then the message goes back to the queue
MAX_JITTER_SHARE: Final = 0.2


class ProviderGate:
    """Lets calls of one provider pass, unless it has asked for a pause."""

    def __init__(self, max_wait: timedelta = MAX_WAIT) -> None:
        self._max_wait_s = max_wait.total_seconds()
        self._paused_until = 0.0
        self._probe = asyncio.Lock()  # held by the first call after a pause
        self._is_limited = False

    async def call(self, send: Callable[[], Awaitable[T]]) -> T:
        """Call a provider. Raise `ProviderRateLimitedError` if it has limited the rate for too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._max_wait_s
        while True:
            if not self._is_limited:
                try:
                    return await send()
                except ProviderRateLimitedError as error:
                    self._pause(error)
            async with self._probe:
                if not self._is_limited:
                    continue
                await self._wait(deadline)
                try:
                    result = await send()
                except ProviderRateLimitedError as error:
                    self._pause(error)
                    if loop.time() >= deadline:
                        raise
                else:
                    self._is_limited = False
                    return result

    def _pause(self, error: ProviderRateLimitedError) -> None:
        delay_s = (error.retry_after or DEFAULT_DELAY).total_seconds()
        delay_s *= 1 + random.random() * MAX_JITTER_SHARE  # noqa: S311  (so that workers do not return in step)
        self._paused_until = max(self._paused_until, asyncio.get_running_loop().time() + delay_s)
        self._is_limited = True

    async def _wait(self, deadline: float) -> None:
        """Sleep until the pause is over. Raise at once if it ends after the deadline."""
        remaining_s = self._paused_until - asyncio.get_running_loop().time()
        if self._paused_until > deadline:
            raise ProviderRateLimitedError(
                "The provider limits the request rate.", timedelta(seconds=max(0.0, remaining_s))
            )
        await asyncio.sleep(max(0.0, remaining_s))
