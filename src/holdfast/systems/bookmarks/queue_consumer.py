"""Process messages during a request: up to ten, a few at once, within the time limit of the API.

A slot reads one message at a time, so no message waits invisibly, and no read is counted for a message that
the request has no time for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from holdfast import Client, Message
from holdfast.errors import LeaseLostError
from holdfast.systems.bookmarks import processing_queries as queries
from holdfast.systems.bookmarks.messages import BOOKMARK_QUEUE, get_bookmark_id
from holdfast.systems.bookmarks.processing import MESSAGE_LEASE, MessageProcessor, MessageResult

MAX_MESSAGES_PER_REQUEST: Final = 10
MAX_MESSAGES_AT_ONCE: Final = 3
MIN_TIME_PER_MESSAGE_S: Final = 5.0
TIMEOUT_ERROR: Final = "The time limit of the request ended before all steps were done."


class QueueSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer of the endpoint `queue-consumer`."""

    success: bool
    message: str
    processed_count: int
    archived_count: int
    failed_count: int
    results: Sequence[MessageResult]


class QueueRun:
    """One call of the endpoint. With `user_id`, it reads the messages of that user only."""

    def __init__(
        self, client: Client, processor: MessageProcessor, *, time_limit: timedelta, user_id: str | None
    ) -> None:
        self._client = client
        self._processor = processor
        self._deadline = time.monotonic() + time_limit.total_seconds()
        self._filter: dict[str, str] | None = None if user_id is None else {"userId": user_id}
        self._remaining_reads = MAX_MESSAGES_PER_REQUEST
        self._started_ids: set[int] = set()
        self._results: list[MessageResult] = []

    async def process_messages(self) -> QueueSummary:
        """Process messages until there are none, ten are done, or the time is over."""
        async with asyncio.TaskGroup() as slots:
            for _ in range(MAX_MESSAGES_AT_ONCE):
                slots.create_task(self._run_slot())
        results = sorted(self._results, key=lambda result: result.message_id)
        archived = sum(result.archived for result in results)
        return QueueSummary(
            success=True,
            message="Queue processing completed" if results else "No messages in queue",
            processed_count=len(results),
            archived_count=archived,
            failed_count=len(results) - archived,
            results=results,
        )

    async def _run_slot(self) -> None:
        while self._remaining_reads > 0 and self._deadline - time.monotonic() >= MIN_TIME_PER_MESSAGE_S:
            self._remaining_reads -= 1  # before the read, because other slots read at the same time
            messages = await self._client.queues.read(
                BOOKMARK_QUEUE, qty=1, vt=MESSAGE_LEASE, where=self._filter
            )
            if not messages or messages[0].id in self._started_ids:  # none, or it has failed in this request
                self._remaining_reads += 1
                return
            self._started_ids.add(messages[0].id)
            await self._process_message(messages[0])

    async def _process_message(self, message: Message[Any]) -> None:
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                processed = await self._processor.process_message(message)
        except LeaseLostError:
            return  # another reader has it now
        except TimeoutError:
            self._results.append(await self._record_timeout(message))
            return
        if not processed.result.success:
            await self._record_failure(message, processed.result.error or "", retry=processed.retry)
        self._results.append(processed.result)

    async def _record_timeout(self, message: Message[Any]) -> MessageResult:
        bookmark_id = get_bookmark_id(message.body)
        await self._record_failure(message, TIMEOUT_ERROR, retry=True)
        if bookmark_id is not None:
            async with self._client.connection() as connection:
                schema = self._client.settings.systems_schema
                await queries.mark_as_retrying(connection, schema, bookmark_id)
        return MessageResult(
            message_id=message.id, bookmark_id=bookmark_id, success=False, archived=False, error=TIMEOUT_ERROR
        )

    async def _record_failure(self, message: Message[Any], error: str, *, retry: bool) -> None:
        async with self._client.connection() as connection:
            await queries.fail_message(connection, BOOKMARK_QUEUE, str(message.receipt), error, retry=retry)
