"""Token buckets, one per caller, in this process: so many requests at once, so many a second for long."""

from __future__ import annotations

import time

from holdfast.errors import TooManyError

MOST = 50_000  # callers remembered; the one unseen for longest is forgotten, which can only favour it


class Rates:
    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: dict[str, tuple[float, float]] = {}  # caller: tokens left, when

    def take(self, caller: str, cost: float = 1.0) -> None:
        """Let one request through, or say when the next one may come."""
        now = time.monotonic()
        tokens, at = self._buckets.pop(caller, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self._rate)
        if tokens < cost:
            self._buckets[caller] = (tokens, now)
            wait = (cost - tokens) / self._rate
            raise TooManyError("Too many requests.", fix=f"Wait {wait:.1f} s.", retry_after=wait)
        self._buckets[caller] = (tokens - cost, now)
        if len(self._buckets) > MOST:
            del self._buckets[next(iter(self._buckets))]
