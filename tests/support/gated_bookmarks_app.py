"""The bookmark worker with stops at chosen stages, so that a test can kill it there.

HOLDFAST_GATES is a folder. The URL of a bookmark ends in `/at/<stage>`, and its worker stops at that stage
while the folder contains the file `stop`: it creates a file with the name of the stage and waits for ever.
Each call of the capture is one line in the file `record`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

from bookmarks_harness import ControlledCapture

from holdfast import Client, lifespan
from holdfast.client import files
from holdfast.systems.bookmarks import bookmark_archive_cleanup, consumer, processing_queries
from holdfast.systems.bookmarks.processing import MessageProcessor
from holdfast.systems.bookmarks.steps import BookmarkSteps

__all__ = ["add_bookmark_url", "bookmark_archive_cleanup", "open_state"]

current_url: ContextVar[str] = ContextVar("current_url", default="")
GATE_FOLDER = Path(os.environ["HOLDFAST_GATES"])
# All stages wait at the same time.
consumer.MAX_BOOKMARKS_AT_ONCE = 30  # type: ignore[misc]
consumer.MAX_MESSAGE_DURATION = timedelta(hours=1)  # type: ignore[misc]
states: list[consumer.BookmarksWorkerState] = []
add_bookmark_url = consumer.create_bookmark_consumer(lambda: states[-1])


class RecordedCapture(ControlledCapture):
    """The capture of the tests, with one line in the record for each call."""

    async def _answer(self, name: str, url: str) -> None:
        with (GATE_FOLDER / "record").open("a") as record:
            record.write(f"{name} {current_url.get().rpartition('/')[2]}\n")


@lifespan
async def open_state() -> AsyncIterator[consumer.BookmarksWorkerState]:
    async with Client() as client:
        states.append(consumer.BookmarksWorkerState(client, RecordedCapture()))
        yield states[-1]


async def stop_at(stage: str, url: str) -> None:
    if url.endswith(f"/at/{stage}") and (GATE_FOLDER / "stop").exists():
        (GATE_FOLDER / stage).touch()
        await asyncio.Event().wait()


def add_stops(
    holder: Any,
    name: str,
    find_url: Callable[..., str],
    before: Callable[..., str],
    after: Callable[..., str],
) -> None:
    """Replace a function by one that stops before and after it. The callables name the stages."""
    original = getattr(holder, name)

    async def run_between_stops(*arguments: Any, **options: Any) -> Any:
        url = find_url(*arguments, **options)
        current_url.set(url)
        await stop_at(before(*arguments, **options), url)
        result = await original(*arguments, **options)
        await stop_at(after(*arguments, **options), url)
        return result

    setattr(holder, name, run_between_stops)


def name_stage(prefix: str, position: int | None = None) -> Callable[..., str]:
    def build(*arguments: Any, **_: Any) -> str:
        return prefix if position is None else f"{prefix}-{arguments[position]}"

    return build


# The first argument of methods is the object.
add_stops(
    RecordedCapture,
    "capture_page",
    lambda _, url: str(url),
    name_stage("before-capture"),
    name_stage("after-capture"),
)
add_stops(
    BookmarkSteps,
    "_save_file",
    lambda _, state, *__: str(state.url),
    name_stage("before-upload", 2),
    name_stage("after-upload", 2),
)
add_stops(
    BookmarkSteps,
    "_run_step",
    lambda _, __, state, *___: str(state.url),
    name_stage("before-step", 1),
    name_stage("after-step", 1),
)
# The row of the file exists before its bytes are stored, and is completed afterwards.
add_stops(
    files,
    "upload_content",
    lambda *_, **__: current_url.get(),
    name_stage("before-bytes"),
    name_stage("after-bytes"),
)
# Both stops of the next function are inside the transaction that records the step.
add_stops(
    processing_queries,
    "save_step_result",
    lambda _, __, state, *___: str(state.url),
    name_stage("before-record", 3),
    name_stage("after-record", 3),
)
add_stops(
    MessageProcessor,
    "_complete_bookmark",
    lambda _, __, started: str(started.state.url),
    name_stage("before-completion"),
    name_stage("after-completion"),
)
