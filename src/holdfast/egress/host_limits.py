"""Limits per host: how many requests run at once, and how many start in a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class _HostState:
    free_slots: asyncio.Semaphore
    users: int = 0
    next_start_at: float = field(default=0.0)


class HostLimiter:
    """Limiter of requests to each host. It forgets hosts that nobody uses."""

    def __init__(self, max_concurrent: int, max_per_second: float | None) -> None:
        self._max_concurrent = max_concurrent
        self._interval_s = 1 / max_per_second if max_per_second else 0.0
        self._hosts: dict[str, _HostState] = {}

    @asynccontextmanager
    async def reserve_slot(self, host: str) -> AsyncGenerator[None]:
        """Wait until a request to the host may start, and count it as running inside the block."""
        state = self._hosts.setdefault(host, _HostState(asyncio.Semaphore(self._max_concurrent)))
        state.users += 1
        try:
            async with state.free_slots:
                await self._wait_for_rate(state)
                yield
        finally:
            state.users -= 1
            self._forget_idle_hosts()

    async def _wait_for_rate(self, state: _HostState) -> None:
        now = asyncio.get_running_loop().time()
        start_at = max(now, state.next_start_at)
        state.next_start_at = start_at + self._interval_s
        if start_at > now:
            await asyncio.sleep(start_at - now)

    def _forget_idle_hosts(self) -> None:
        now = asyncio.get_running_loop().time()
        idle = [h for h, state in self._hosts.items() if not state.users and state.next_start_at <= now]
        for host in idle:
            del self._hosts[host]
