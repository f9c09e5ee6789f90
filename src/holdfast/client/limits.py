"""`client.limits`: how much may run at once and start a second, changed while workers are at work."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, TypedDict, Unpack

import msgspec

from holdfast.engine import limits, operate
from holdfast.model import Limit

if TYPE_CHECKING:
    from holdfast.client import Client


class LimitSay(TypedDict, total=False):
    """What a limit is about (a queue, a task type, or each key of it) and what it allows.

    `max_running` counts attempts at once over all workers; `rate` starts a second, `burst` how many of them
    at once after a pause.
    """

    queue: str | None
    type: str | None
    per_key: bool
    max_running: int | None
    rate: float | None
    burst: float | None


class Limits:
    """How much may run at once and start a second."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def put(self, name: str, **say: Unpack[LimitSay]) -> None:
        """Make a limit, or change it. It holds from the next claim on; what runs now is counted."""
        async with (await self._client.open()).connection() as connection:
            await limits.put_limit(connection, limits.Limit(name=name, **say))

    async def remove(self, name: str) -> bool:
        """False when there was none."""
        async with (await self._client.open()).connection() as connection:
            return await limits.remove_limit(connection, name)

    async def list(self) -> builtins.list[Limit]:
        """All limits, with what uses them now."""
        async with (await self._client.open()).connection() as connection:
            return msgspec.convert(await operate.list_limits(connection), builtins.list[Limit])
