"""Wait for a condition that no event announces, without sleeping for a fixed time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

FIRST_POLL_PAUSE_S = 0.001
MAX_WAIT_UNTIL_PAUSE_S = 0.05


async def wait_until(
    check: Callable[[], object | Awaitable[object]],
    *,
    within: timedelta = timedelta(seconds=20),
    what: str = "",
) -> Any:
    """Call `check` until it returns a true value, and return that value. `check` may be asynchronous.

    Raise `AssertionError` after `within`; `what` describes the condition in its message. The pause between
    two calls grows from 1 ms to 50 ms.

        await wait_until(lambda: path.exists(), within=timedelta(seconds=5))
    """
    deadline = time.monotonic() + within.total_seconds()
    pause_s = FIRST_POLL_PAUSE_S
    while True:
        result = check()
        value = await result if inspect.isawaitable(result) else result
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"the condition was not true within {within}: {what or check}")
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, MAX_WAIT_UNTIL_PAUSE_S)
