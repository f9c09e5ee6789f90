"""Keep the answers of providers until a clip is done, so that no answer is paid for twice.

A step runs its provider once. Its answer is committed before anything else is done with it. A worker that
takes over the clip, or a retry by the user, finds the answer and does not call the provider.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from holdfast import Client
from holdfast.systems.clips import stage_queries as queries
from holdfast.systems.providers import CallRecord, DatabaseUsageRecorder

T = TypeVar("T")
SOURCE_PREFIX = "clip "


class ClipSteps:
    """The steps of one clip that have succeeded."""

    def __init__(self, client: Client, schema: str, clip_id: str) -> None:
        self._client = client
        self._schema = schema
        self._clip_id = clip_id

    async def run(self, step: str, result_type: type[T], call_provider: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of a step: the one that is kept, or that of the provider, which is then kept."""
        async with self._client.connection() as connection:
            stored = await queries.find_step(connection, self._schema, self._clip_id, step)
        if stored is not None:
            return msgspec.convert(stored, result_type)
        result = await call_provider()
        async with self._client.connection() as connection:
            await queries.save_step(
                connection, self._schema, self._clip_id, step, msgspec.to_builtins(result)
            )
        return result


class ClipUsageRecorder(DatabaseUsageRecorder):
    """Records calls as every system does, and adds their tokens and cost to the row of the clip."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._clip_client = client

    async def record_call(self, record: CallRecord) -> None:
        await super().record_call(record)
        source = record.account.source or ""
        usage: dict[str, Any] = {
            "tokens_in": record.usage.tokens_in or 0,
            "tokens_out": record.usage.tokens_out or 0,
            "cost": record.cost or 0,
        }
        if record.status == "started" or not source.startswith(SOURCE_PREFIX) or not any(usage.values()):
            return
        async with self._clip_client.connection() as connection:
            schema = self._clip_client.settings.systems_schema
            await queries.add_usage(connection, schema, source.removeprefix(SOURCE_PREFIX), usage)
