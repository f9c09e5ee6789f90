"""`client.limits`: how many tasks may run at once and how many may start per second."""

from __future__ import annotations

import builtins
from typing import TypedDict, Unpack

import msgspec

from holdfast.client.connections import ClientConnections
from holdfast.definitions.validation import check_option_names
from holdfast.engine import limits
from holdfast.model import Limit


class LimitOptions(TypedDict, total=False):
    """The keyword arguments of `client.limits.put`: what a limit applies to and what it allows.

    queue: the queue that the limit applies to.
    type: the task type that the limit applies to, instead of a queue.
    per_key: count each `limit_key` by itself.
    max_running: the maximum number of attempts that run at once, over all workers.
    rate: the maximum number of attempts that start per second.
    burst: how many attempts may start at once after a pause. The default is the rate.

    >>> from holdfast import LimitOptions
    >>> openai: LimitOptions = {"type": "caption", "max_running": 4, "rate": 2.0}
    """

    queue: str | None
    type: str | None
    per_key: bool
    max_running: int | None
    rate: float | None
    burst: float | None


class Limits:
    """`client.limits`: limit how many tasks run at once and how many start per second.

    Changes apply from the next claim on, while workers run.
    """

    def __init__(self, connections: ClientConnections) -> None:
        self._connections = connections

    async def put(self, name: str, **options: Unpack[LimitOptions]) -> None:
        """Create a limit, or change the limit with this name. Running tasks count towards the limit."""
        check_option_names(options, LimitOptions.__annotations__, "limits.put")
        async with self._connections.connection() as connection:
            await limits.put_limit(connection, limits.LimitRule(name=name, **options))

    async def remove(self, name: str) -> bool:
        """Remove a limit. Return False if the limit does not exist."""
        async with self._connections.connection() as connection:
            return await limits.delete_limit(connection, name)

    async def list(self) -> builtins.list[Limit]:
        """Return all limits, each with its current number of running tasks."""
        async with self._connections.connection() as connection:
            return msgspec.convert(await limits.list_limits(connection), builtins.list[Limit])
