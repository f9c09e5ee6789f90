"""Process one message of the bookmark queue: run the steps that are missing, then archive the message.

The worker's consumer and the endpoint `queue-consumer` both call `MessageProcessor`. They exclude each other
by the receipt of the message: processing begins only while the receipt is valid, and the message is archived
with it, in the transaction that completes the bookmark. A step that has succeeded is never run again, so a
retry repeats only what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec

from holdfast import Client, Message
from holdfast.errors import InvalidError
from holdfast.systems.bookmarks import processing_queries as queries
from holdfast.systems.bookmarks.bookmark_urls import parse_bookmark_url
from holdfast.systems.bookmarks.capture_port import BookmarkCapture
from holdfast.systems.bookmarks.failure_reports import FailedMessage, report_failed_message
from holdfast.systems.bookmarks.messages import (
    BOOKMARK_QUEUE,
    BookmarkMessage,
    InvalidMessageError,
    get_bookmark_id,
    parse_message_body,
)
from holdfast.systems.bookmarks.processing_queries import BookmarkState
from holdfast.systems.bookmarks.steps import BookmarkSteps, StepOutcome
from holdfast.systems.message_leases import extend_message_lease

MESSAGE_LEASE: Final = timedelta(minutes=2)  # a worker renews it; the endpoint ends before


class MessageResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The result of one message in the answer of the endpoint `queue-consumer`."""

    message_id: int
    bookmark_id: int | None
    success: bool
    archived: bool
    screenshot_success: bool | None = None
    remaining_data_success: bool | None = None
    error: str | None = None


@dataclass(frozen=True)
class ProcessedMessage:
    """A processed message. `retry` says whether a failed message stays in the queue."""

    result: MessageResult
    retry: bool = True


@dataclass(frozen=True)
class _StartedMessage:
    request: BookmarkMessage
    state: BookmarkState
    is_last_read: bool


class MessageProcessor:
    """Runs the missing steps of bookmarks. The same object processes many messages at once."""

    def __init__(self, client: Client, capture: BookmarkCapture) -> None:
        self._client = client
        self._schema = client.settings.systems_schema
        self.steps = BookmarkSteps(client, capture, self._schema)

    async def process_message(self, message: Message[Any]) -> ProcessedMessage:
        """Process a message that was read with a receipt.

        Raise `LeaseLostError` if another reader has the message now. A failed message is not changed: the
        caller records the failure.
        """
        try:
            started = await self._start_message(message)
        except InvalidMessageError as error:
            return self._report(
                ProcessedMessage(
                    MessageResult(
                        message_id=message.id,
                        bookmark_id=get_bookmark_id(message.body),
                        success=False,
                        archived=False,
                        error=f"Invalid message: {error}",
                    )
                )
            )
        screenshot, remaining = await self._run_missing_steps(started)
        failed = [outcome for outcome in (screenshot, remaining) if outcome and not outcome.succeeded]
        if not failed:
            await self._complete_bookmark(message, started)
            return ProcessedMessage(_build_result(message, started, screenshot, remaining, archived=True))
        retry = any(outcome.retry for outcome in failed)
        status = "retrying" if retry and not started.is_last_read else "failed"
        async with self._client.transaction() as connection:
            await queries.set_bookmark_status(connection, self._schema, started.state.id, status)
            await queries.release_waiting_messages(connection, self._schema)
        result = _build_result(message, started, screenshot, remaining, archived=False)
        return self._report(ProcessedMessage(result, retry))

    async def _start_message(self, message: Message[Any]) -> _StartedMessage:
        request = parse_message_body(message.body)
        try:
            parse_bookmark_url(request.url)
        except InvalidError as error:
            raise InvalidMessageError(f"url: {error.message}") from None
        async with self._client.transaction() as connection:
            await extend_message_lease(connection, BOOKMARK_QUEUE, str(message.receipt), MESSAGE_LEASE)
            user_id = request.user_id or await queries.find_bookmark_owner(
                connection, self._schema, request.bookmark_id
            )
            state = user_id and await queries.begin_processing(
                connection, self._schema, request.bookmark_id, user_id, is_image=request.is_image
            )
            if not state:
                raise InvalidMessageError(
                    f"Bookmark {request.bookmark_id} does not exist or belongs to another user."
                )
            max_reads = await queries.fetch_max_reads(connection, BOOKMARK_QUEUE)
        return _StartedMessage(request, state, max_reads is not None and message.reads >= max_reads)

    async def _run_missing_steps(
        self, started: _StartedMessage
    ) -> tuple[StepOutcome | None, StepOutcome | None]:
        """Run the steps that have not succeeded. The outcome of a step that is not needed is None."""
        request, state = started.request, started.state
        screenshot: StepOutcome | None = None
        if not state.is_image:
            screenshot = StepOutcome(succeeded=True)
            if state.screenshot_status != "succeeded":
                screenshot = await self.steps.take_screenshot(state, request.url)
                state = await self._reload_state(state)
                screenshot = None if state.is_image else screenshot
        remaining = StepOutcome(succeeded=True)
        if state.remaining_status != "succeeded":
            remaining = await self.steps.collect_remaining_data(state, request.url, request.favicon_url)
        return screenshot, remaining

    async def _reload_state(self, state: BookmarkState) -> BookmarkState:
        """Return the state with what the screenshot step has found in the page."""
        async with self._client.connection() as connection:
            new = await queries.find_bookmark_state(connection, self._schema, state.id, state.user_id)
        return new or state

    async def _complete_bookmark(self, message: Message[Any], started: _StartedMessage) -> None:
        async with self._client.transaction() as connection:
            await queries.set_bookmark_status(connection, self._schema, started.state.id, "complete")
            await message.done(connection)
            await queries.release_waiting_messages(connection, self._schema)

    def _report(self, processed: ProcessedMessage) -> ProcessedMessage:
        result = processed.result
        failure = FailedMessage(
            message_id=result.message_id,
            bookmark_id=result.bookmark_id,
            screenshot_success=result.screenshot_success,
            remaining_data_success=result.remaining_data_success,
            error=result.error or "",
        )
        report_failed_message(self._client.settings, failure)
        return processed


def _build_result(
    message: Message[Any],
    started: _StartedMessage,
    screenshot: StepOutcome | None,
    remaining: StepOutcome | None,
    *,
    archived: bool,
) -> MessageResult:
    named = (("Screenshot", screenshot), ("Remaining data", remaining))
    errors = [f"{name}: {outcome.error}" for name, outcome in named if outcome and outcome.error]
    return MessageResult(
        message_id=message.id,
        bookmark_id=started.state.id,
        success=archived,
        archived=archived,
        screenshot_success=screenshot.succeeded if screenshot else None,
        remaining_data_success=remaining.succeeded if remaining else None,
        error="; ".join(errors) or None,
    )
