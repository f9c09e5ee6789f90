"""Process one message of a stage: begin, work, finish or fail, each with its message in one transaction.

A message is read at most three times. A clip whose message was read more often, because its workers died, or
whose third attempt failed, is shown as failed, and its message is archived. Reads that were nobody's fault do
not count: the worker was stopped, or a provider had a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from holdfast import Client, Message, PublicError, RateLimited, Reject
from holdfast.egress import EgressError, EgressRefusedError
from holdfast.errors import HoldfastError, InvalidError, LeaseLostError, QuotaExceededError
from holdfast.systems.clips import stage_queries as queries
from holdfast.systems.clips.messages import ClipQueue, parse_clip_id
from holdfast.systems.clips.stage_queries import ClipState
from holdfast.systems.media.contracts import MediaError
from holdfast.systems.message_leases import extend_message_lease
from holdfast.systems.providers import ProviderError, ProviderRateLimitedError

MAX_READS: Final = 3
STOP_TIMEOUT_S: Final = 2.0
HIDDEN_ERROR: Final = "Something went wrong while working on this clip."
WORN_OUT_ERROR: Final = "The clip was tried three times and its worker stopped each time."
MAX_ERROR_CHARS: Final = 1_000
_log = logging.getLogger("holdfast.systems.clips")

# Does the work of a stage, and stores the result and finishes the message in one transaction.
StageWork = Callable[[ClipState, Message[Any]], Awaitable[None]]


class StageFailedError(Exception):
    """An attempt failed and is repeated. The message is for users."""


class ClipFailedError(PublicError):
    """The clip cannot be processed; another attempt would not help. The message is for users."""


class StageRunner:
    """Runs the work of one stage for the messages of its queue."""

    def __init__(self, client: Client, queue: ClipQueue, work: StageWork) -> None:
        self._client = client
        self._schema = client.settings.systems_schema
        self._queue: ClipQueue = queue
        self._work = work

    async def process_message(self, message: Message[Any]) -> None:
        """Process a message. Returning archives it; a raised error keeps it in the queue."""
        clip_id = parse_clip_id(message.body)
        if clip_id is None or "\0" in clip_id:
            raise Reject("The message names no clip: it has no video_id.")
        clip = await self._begin(message, clip_id)
        if clip is None:
            return
        reads = message.reads - clip.uncounted_reads
        if reads > MAX_READS:
            await self._fail(clip, message, clip.last_error or WORN_OUT_ERROR)
            return
        try:
            await self._work(clip, message)
        except asyncio.CancelledError:
            await self._give_back(clip, message)
            raise
        except LeaseLostError:
            raise  # another worker has the message now
        except ProviderRateLimitedError as error:
            await self._add_uncounted_read(clip, message)
            raise RateLimited(f"clips:{self._queue}", error.retry_after) from error
        except Exception as error:
            await self._record_failure(clip, message, error, is_last=reads >= MAX_READS)

    async def _begin(self, message: Message[Any], clip_id: str) -> ClipState | None:
        async with self._client.transaction() as connection:
            lease = queries.STAGE_LEASES[self._queue]
            await extend_message_lease(connection, self._queue, str(message.receipt), lease)
            return await queries.begin_stage(connection, self._schema, self._queue, clip_id, message.id)

    async def _record_failure(
        self, clip: ClipState, message: Message[Any], error: Exception, *, is_last: bool
    ) -> None:
        text, retry = describe_error(error)
        if text == HIDDEN_ERROR:
            _log.error("%s of clip %s failed.", self._queue, clip.id, exc_info=error)
        if is_last or not retry:
            await self._fail(clip, message, text)
            return
        async with self._client.connection() as connection:
            await queries.set_last_error(connection, self._schema, clip.id, text)
        raise StageFailedError(text) from error

    async def _fail(self, clip: ClipState, message: Message[Any], error: str) -> None:
        async with self._client.transaction() as connection:
            await queries.set_failed(connection, self._schema, clip.id, error[:MAX_ERROR_CHARS])
            await message.done(connection)

    async def _give_back(self, clip: ClipState, message: Message[Any]) -> None:
        """Do not count a read that ended because the worker was stopped on purpose."""
        if getattr(message.lease, "stop_reason", None) != "released":
            return
        with contextlib.suppress(Exception):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._add_uncounted_read(clip, message)

    async def _add_uncounted_read(self, clip: ClipState, message: Message[Any]) -> None:
        async with self._client.connection() as connection:
            await queries.add_uncounted_read(connection, self._schema, clip.id, message.id)


def describe_error(error: Exception) -> tuple[str, bool]:
    """Return what the user reads about an error, and whether another attempt can help."""
    if isinstance(error, ClipFailedError):
        return str(error), False
    if isinstance(error, ProviderError):
        return error.message, error.retry
    if isinstance(error, MediaError):
        return error.message, error.retryable
    if isinstance(error, InvalidError | EgressRefusedError | QuotaExceededError):
        return error.message, False
    if isinstance(error, EgressError):
        return error.message, True
    if isinstance(error, HoldfastError | PublicError):
        return str(error) if isinstance(error, PublicError) else HIDDEN_ERROR, True
    return HIDDEN_ERROR, True
