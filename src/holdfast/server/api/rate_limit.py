"""Limit the request rate of each caller with a token bucket in the memory of this process."""

from __future__ import annotations

import time

from holdfast.errors import TooManyRequestsError

# The limiter remembers this many callers and drops the one that has been idle longest. A dropped caller
# starts again with a full bucket, so dropping never rejects a request that would have been allowed.
MAX_TRACKED_CALLERS = 50_000


class RateLimiter:
    """Token bucket for each caller: `burst` requests at once, then `rate` requests per second."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: dict[str, tuple[float, float]] = {}  # caller: (tokens left, time of the last request)

    def count_request(self, caller: str, cost: float = 1.0) -> None:
        """Count a request of the caller. Raise `TooManyRequestsError` above the rate limit."""
        now = time.monotonic()
        tokens, last_request_at = self._buckets.pop(caller, (self._burst, now))
        tokens = min(self._burst, tokens + (now - last_request_at) * self._rate)
        if tokens < cost:
            self._buckets[caller] = (tokens, now)
            wait_s = (cost - tokens) / self._rate
            raise TooManyRequestsError("Too many requests.", fix=f"Wait {wait_s:.1f} s.", retry_after=wait_s)
        self._buckets[caller] = (tokens - cost, now)
        if len(self._buckets) > MAX_TRACKED_CALLERS:
            del self._buckets[next(iter(self._buckets))]
