"""The checks of `holdfast doctor` for bookmarks: browser, libraries, queue, dead letters and storage."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

from holdfast import Client
from holdfast.errors import HoldfastError
from holdfast.systems.bookmarks.messages import BOOKMARK_QUEUE
from holdfast.systems.bookmarks.processing_queries import is_installed
from holdfast.systems.capture import BrowserPool
from holdfast.systems.capture.chromium_command import find_chromium
from holdfast.systems.capture.libraries import load_library
from holdfast.systems.system_checks import SystemFinding, check_storage, format_age, run_system_checks

LIBRARIES: Final = ("PIL.Image", "pypdfium2", "blurhash", "rapidocr_onnxruntime", "trafilatura")
MAX_WAITING_TIME: Final = timedelta(minutes=15)
WORKER_COMMAND: Final = "holdfast worker holdfast.systems.bookmarks"


async def check_bookmarks(client: Client) -> list[SystemFinding]:
    """Run the checks, or return an empty list if the bookmark system is not installed in the database."""
    async with client.connection() as connection:
        if not await is_installed(connection, client.settings.systems_schema):
            return []
    checks = (check_browser, check_libraries, check_queue, check_dead_letters, check_storage)
    return await run_system_checks(client, checks)


async def check_browser(client: Client) -> SystemFinding:
    """Start Chromium as a worker does. A machine without it can still serve the API."""
    settings = client.settings
    try:
        program = find_chromium(settings.chromium)
        async with BrowserPool.from_settings(settings):
            pass
    except HoldfastError as error:
        text = f"This machine cannot run bookmark workers: {error.message}"
        return SystemFinding("warn", text, error.fix)
    sandbox = "in its sandbox" if settings.chromium_sandbox == "on" else "without its sandbox"
    return SystemFinding("ok", f"{program} starts {sandbox}.")


async def check_libraries(_: Client) -> SystemFinding:
    """Import the libraries for images, PDF files, the text of images (OCR) and the text of pages."""
    try:
        for name in LIBRARIES:
            await asyncio.to_thread(load_library, name)
    except HoldfastError as error:
        return SystemFinding("warn", error.message, error.fix)
    return SystemFinding("ok", "The libraries for images, PDF files and OCR can be loaded.")


async def check_queue(client: Client) -> SystemFinding:
    """Report how many messages wait, and warn if a due message is not read."""
    async with client.connection() as connection:
        row = await connection.fetchrow(
            "select count(*) as total, holdfast.now() - min(enqueued_at) as oldest,"
            " holdfast.now() - min(vt) filter (where vt <= holdfast.now()) as unread"
            ' from pgmq."q_add-bookmark-url-queue"'
        )
    if row is None or not row["total"]:
        return SystemFinding("ok", "No bookmark is waiting.")
    text = f"{row['total']} messages are in the queue; the oldest is {format_age(row['oldest'])} old."
    if row["unread"] is not None and row["unread"] > MAX_WAITING_TIME:
        reason = f"{text} One has been due for {format_age(row['unread'])} without being read."
        return SystemFinding("warn", reason, f"Start a worker, or more of them: {WORKER_COMMAND}")
    return SystemFinding("ok", text)


async def check_dead_letters(client: Client) -> SystemFinding:
    """Warn of messages that could not be processed."""
    async with client.connection() as connection:
        dead_queue = await connection.fetchval(
            "select (holdfast.get_message_policy($1)).dead_letter_queue", BOOKMARK_QUEUE
        )
        count = 0 if dead_queue is None else await _count_messages(connection, dead_queue)
    if count == 0:
        return SystemFinding("ok", "There are no dead letters.")
    return SystemFinding(
        "warn",
        f"{count} messages are in the dead letters: their bookmarks failed.",
        f"See why: holdfast msg dead-letters {BOOKMARK_QUEUE}. Users retry failed bookmarks.",
    )


async def _count_messages(connection: Any, queue: str) -> int:
    return int(await connection.fetchval("select queue_length from pgmq.metrics($1)", queue))
