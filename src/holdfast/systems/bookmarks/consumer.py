"""The worker of the bookmark system: the consumer of its queue, its state, and the daily clean-up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, Final

from holdfast import Client, Consumer, Ctx, Message, Reject, consumer, lifespan, schedule, task
from holdfast.errors import RefusedError
from holdfast.systems.bookmarks import processing_queries as queries
from holdfast.systems.bookmarks.capture_port import BookmarkCapture
from holdfast.systems.bookmarks.messages import BOOKMARK_QUEUE, get_bookmark_id
from holdfast.systems.bookmarks.processing import MESSAGE_LEASE, MessageProcessor
from holdfast.systems.bookmarks.web_capture import WebCapture

MAX_BOOKMARKS_AT_ONCE: Final = 4  # of one worker; each may have a page open in the browser
MAX_MESSAGE_DURATION: Final = timedelta(minutes=3)
ARCHIVE_RETENTION: Final = timedelta(days=30)
ABANDONED_AFTER: Final = timedelta(minutes=5)
BOOKMARK_TASK_QUEUE: Final = "bookmarks"


class MessageFailedError(Exception):
    """The steps of a message failed, or the message is invalid. It is retried until the read limit."""


class BookmarksWorkerState:
    """What a worker of the bookmark system opens once: its client, the browser and the HTTP client."""

    def __init__(self, client: Client, capture: BookmarkCapture | None = None) -> None:
        self.client = client
        self.capture = capture or WebCapture(client)
        self.processor = MessageProcessor(client, self.capture)

    async def close(self) -> None:
        """Close the browser and the HTTP client."""
        await self.capture.close()


# Consumers receive a message and no context, so the state of the process is here while its worker runs.
_open_states: list[BookmarksWorkerState] = []


def get_open_state() -> BookmarksWorkerState:
    """Return the state that the lifespan of this process has opened."""
    if not _open_states:
        raise RuntimeError("The lifespan of holdfast.systems.bookmarks is not open.")
    return _open_states[-1]


@lifespan
async def bookmarks_lifespan() -> AsyncIterator[BookmarksWorkerState]:
    """Open the state of the bookmark system in a worker, and close it when the worker stops."""
    async with Client() as client:
        await _require_tables(client)
        capture = WebCapture(client)
        await capture.open()  # a missing browser is an error at start, not one of each bookmark
        state = BookmarksWorkerState(client, capture)
        _open_states.append(state)
        try:
            yield state
        finally:
            _open_states.remove(state)
            await state.close()


async def _require_tables(client: Client) -> None:
    async with client.connection() as connection:
        if await queries.is_installed(connection, client.settings.systems_schema):
            return
    raise RefusedError(
        "The bookmark system is not installed in this database.",
        fix="Start `holdfast api --system bookmarks` once, or call `bookmarks.install(connection)`.",
    )


def create_bookmark_consumer(get_state: Callable[[], BookmarksWorkerState]) -> Consumer[Any]:
    """Create the consumer of the bookmark queue for a worker with this state."""

    async def mark_as_failed(message: Message[Any], _error: str) -> None:
        """Show the bookmark as failed. A worker that died on each read left it as being processed."""
        bookmark_id = get_bookmark_id(message.body)
        if bookmark_id is not None:
            client = get_state().client
            async with client.connection() as connection:
                await queries.mark_as_failed(
                    connection, client.settings.systems_schema, bookmark_id, message.id
                )

    @consumer(
        BOOKMARK_QUEUE,
        name="add_bookmark_url",
        vt=MESSAGE_LEASE,
        concurrency=MAX_BOOKMARKS_AT_ONCE,
        timeout=MAX_MESSAGE_DURATION,
        on_dead=mark_as_failed,
    )
    async def add_bookmark_url(message: Message[Any]) -> None:
        processed = await get_state().processor.process_message(message)
        if processed.result.success:
            return
        error = processed.result.error or "The message failed."
        raise MessageFailedError(error) if processed.retry else Reject(error)

    return add_bookmark_url


add_bookmark_url = create_bookmark_consumer(get_open_state)


@schedule("30 3 * * *", name="bookmark archive cleanup")
@task(queue=BOOKMARK_TASK_QUEUE, retries=2)
async def bookmark_archive_cleanup(ctx: Ctx[BookmarksWorkerState]) -> int:
    """Delete messages that were archived more than 30 days ago."""
    deleted = 0
    while True:
        async with ctx.state.client.connection() as connection:
            batch = await queries.delete_archived_messages(connection, ARCHIVE_RETENTION)
        deleted += batch
        if not batch:
            return deleted


@schedule("*/5 * * * *", name="abandoned bookmarks")
@task(queue=BOOKMARK_TASK_QUEUE, retries=2)
async def fail_abandoned_bookmarks(ctx: Ctx[BookmarksWorkerState]) -> int:
    """Show bookmarks as failed whose message is gone, so that users can retry them. Return how many."""
    client = ctx.state.client
    async with client.connection() as connection:
        return await queries.mark_abandoned_as_failed(
            connection, client.settings.systems_schema, ABANDONED_AFTER
        )
