"""`client.limits`: how many tasks may run at once and how many may start per second."""

from __future__ import annotations

import builtins
from typing import TypedDict, Unpack

import msgspec

from holdfast.client.connections import ClientConnections
from holdfast.definitions.validation import check_option_names
from holdfast.engine import limits
from holdfast.errors import RefusedError
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
        rule = limits.LimitRule(name=name, **options)
        if self._connections.shards is not None and not rule.per_key:
            raise RefusedError(
                "A limit over all shards cannot be kept: each shard would allow all of it.",
                fix="Use per_key=True, because a key is on one shard, or set a share on each shard: "
                "client.shard(1).limits.put(...).",
            )
        await self._connections.run_on_all(lambda connection: limits.put_limit(connection, rule))

    async def remove(self, name: str) -> bool:
        """Remove a limit. Return False if the limit does not exist."""
        return any(
            await self._connections.run_on_all(lambda connection: limits.delete_limit(connection, name))
        )

    async def list(self) -> builtins.list[Limit]:
        """Return all limits, each with its current number of running tasks, which shards add up."""
        lists = await self._connections.run_on_all(limits.list_limits)
        merged: dict[str, Limit] = {}
        for limit in msgspec.convert([row for rows in lists for row in rows], builtins.list[Limit]):
            merged[limit.name] = _add_up_limits(merged[limit.name], limit) if limit.name in merged else limit
        return [merged[name] for name in sorted(merged)]


def _add_up_limits(first: Limit, second: Limit) -> Limit:
    """Merge a limit of two shards. A limit over all keys is a share on each, so both shares count."""
    values = {"running": first.running + second.running, "keys": first.keys + second.keys}
    if not first.per_key and first.max_running is not None and second.max_running is not None:
        values["max_running"] = first.max_running + second.max_running
    return msgspec.structs.replace(first, **values)
