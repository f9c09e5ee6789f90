"""Waiting for what no event announces, without sleeping for a fixed time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any


async def eventually(
    check: Callable[[], object | Awaitable[object]],
    *,
    within: timedelta = timedelta(seconds=20),
    what: str = "",
) -> Any:
    """Ask again and again until the answer is true, and return it; fail after `within`.

    For conditions that no event announces. The pause between questions grows to 50 ms.
    """
    deadline = time.monotonic() + within.total_seconds()
    pause = 0.001
    while True:
        answer = check()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"did not become true within {within}: {what or check}")
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.05)
