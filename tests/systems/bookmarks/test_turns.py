"""Turns of users in the queue, the rights of a worker, and the shared capture of the API."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from bookmarks_harness import CONSUMER_PATH, BookmarksHarness, ControlledCapture

from holdfast import Client
from holdfast.engine.connection import Connection, Database
from holdfast.settings import Secret
from holdfast.systems.bookmarks.capture_port import BookmarkCapture
from holdfast.systems.bookmarks.consumer import MAX_BOOKMARKS_AT_ONCE
from holdfast.systems.bookmarks.messages import BOOKMARK_QUEUE
from holdfast.systems.bookmarks.processing_queries import MAX_VISIBLE_MESSAGES_PER_USER
from holdfast.systems.bookmarks.shared_capture import SharedCapture
from holdfast.testing import wait_until

IMPORT_PATH = "/api/v1/bookmarks/import"
VISIBLE = """select count(*) from pgmq."q_add-bookmark-url-queue" where vt <= clock_timestamp()"""


async def count_unfinished(system: BookmarksHarness) -> int:
    [row] = await system.fetch("select count(*) from public.bookmarks where status <> 'complete'")
    return int(row[0])


async def test_an_import_does_not_delay_the_bookmark_of_another_user(system: BookmarksHarness) -> None:
    ann, bob = system.create_user(), system.create_user()
    urls = [f"https://example.com/{n}" for n in range(60)]
    assert (await ann.post(IMPORT_PATH, {"urls": urls})).status_code == 202
    await system.add(bob, "https://example.com/single")
    assert await system.count_messages() == 61  # all are in the queue
    assert (await system.fetch(VISIBLE))[0][0] == MAX_VISIBLE_MESSAGES_PER_USER + 1
    async with system.run_bookmark_worker():
        # Nobody waits for the time at which hidden messages appear by themselves.
        await wait_until(
            lambda: _is_zero(count_unfinished(system)), within=timedelta(seconds=90), what="all complete"
        )
    captured = [url for name, url in system.capture.calls if name == "capture_page"]
    assert len(captured) == 61
    before_bob = captured.index("https://example.com/single")
    assert before_bob <= MAX_VISIBLE_MESSAGES_PER_USER + MAX_BOOKMARKS_AT_ONCE
    # The messages of one user are still processed in their order, but for those that run at once.
    numbers = [int(url.rpartition("/")[2]) for url in captured if not url.endswith("single")]
    assert all(abs(number - place) <= MAX_VISIBLE_MESSAGES_PER_USER for place, number in enumerate(numbers))


async def test_users_with_imports_take_turns(system: BookmarksHarness) -> None:
    users = [system.create_user() for _ in range(2)]
    for number, user in enumerate(users):
        urls = [f"https://example.com/{number}/{n}" for n in range(30)]
        assert (await user.post(IMPORT_PATH, {"urls": urls})).status_code == 202
    async with system.run_bookmark_worker():
        await wait_until(
            lambda: _is_zero(count_unfinished(system)), within=timedelta(seconds=90), what="all complete"
        )
    captured = [url.split("/")[3] for name, url in system.capture.calls if name == "capture_page"]
    # When the first half is done, both users have got about the same.
    assert 8 <= captured[:30].count("1") <= 22


async def test_a_message_whose_turn_comes_wakes_a_sleeping_worker(
    system: BookmarksHarness, conn: Connection
) -> None:
    """The worker that finished the message before may be busy, while another one sleeps."""
    ann, notifications = system.create_user(), list[object]()
    await ann.post(IMPORT_PATH, {"urls": [f"https://example.com/{n}" for n in range(12)]})
    await conn.add_listener("holdfast_messages", lambda *values: notifications.append(values[-1]))
    await conn.execute("select holdfast.enable_message_wakeups($1)", BOOKMARK_QUEUE)
    await conn.execute("select holdfast.register_sleeping_reader($1)", BOOKMARK_QUEUE)
    ids = [row[0] for row in await system.fetch("select id from public.bookmarks order by id")]
    for bookmark_id in ids[:MAX_VISIBLE_MESSAGES_PER_USER]:
        assert notifications == []
        await ann.delete(f"/api/v1/bookmarks/{bookmark_id}")
    await wait_until(lambda: notifications == [BOOKMARK_QUEUE])


async def _is_zero(counting: Any) -> bool:
    return bool(await counting == 0)


async def test_deleted_and_failed_bookmarks_pass_the_turn_on(system: BookmarksHarness) -> None:
    ann = system.create_user()
    urls = [f"https://example.com/{n}" for n in range(12)]
    await ann.post(IMPORT_PATH, {"urls": urls})
    ids = [row[0] for row in await system.fetch("select id from public.bookmarks order by id")]
    for bookmark_id in ids[:MAX_VISIBLE_MESSAGES_PER_USER]:
        assert (await ann.delete(f"/api/v1/bookmarks/{bookmark_id}")).status_code in (200, 204)
    assert (await system.fetch(VISIBLE))[0][0] == len(urls) - MAX_VISIBLE_MESSAGES_PER_USER
    more = [f"https://example.com/more/{n}" for n in range(12)]
    await ann.post(IMPORT_PATH, {"urls": more})
    system.capture.errors["capture_page"] = RuntimeError("broken")
    system.capture.errors["read_page"] = RuntimeError("broken")
    answer = (await ann.post(CONSUMER_PATH)).json()  # failed messages are retried later, all others follow
    assert answer["processedCount"] == 10


@pytest.fixture
async def worker_db(system: BookmarksHarness) -> AsyncGenerator[Database]:
    """The database of the system with a login that has the rights of a worker only."""
    name = f"hf_worker_{uuid.uuid4().hex[:12]}"
    async with system.db.connection() as connection:
        await connection.execute(f"create role {name} login password 'x'; grant holdfast_worker to {name}")
    url = urlsplit(system.db.url.reveal())
    netloc = f"{name}:x@{url.netloc.rpartition('@')[2]}"
    db = Database(Secret(url._replace(netloc=netloc).geturl()), system.db.settings)
    yield db
    await db.close()
    async with system.db.connection() as connection:
        await connection.execute(f"drop owned by {name}; drop role {name}")


async def test_a_worker_needs_no_more_than_the_role_of_workers(
    system: BookmarksHarness, worker_db: Database
) -> None:
    ann = system.create_user()
    urls = [f"https://example.com/{n}" for n in range(MAX_VISIBLE_MESSAGES_PER_USER + 2)]
    await ann.post(IMPORT_PATH, {"urls": urls})
    async with worker_db.connection() as connection:
        assert not await connection.fetchval("select pg_has_role(current_user, 'service_role', 'member')")
    async with system.run_bookmark_worker(db=worker_db):
        await wait_until(
            lambda: _is_zero(count_unfinished(system)), within=timedelta(seconds=90), what="all complete"
        )
    [row] = await system.fetch("select id, screenshot_file from public.bookmarks order by id limit 1")
    shown = await system.get(ann, row["id"])
    assert shown["status"] == "complete"
    [expiry] = await system.fetch(
        "select expires_at from holdfast.artifacts where id = $1", row["screenshot_file"]
    )
    assert expiry[0] is None
    # A worker keeps files that were stored without a task, and changes the lifetime of no others.
    async with worker_db.connection() as connection:
        for query in ("select holdfast.set_artifact_ttl($1, 1)", "select holdfast.delete_artifact($1)"):
            with pytest.raises(Exception, match="permission denied"):
                await connection.execute(query, row["screenshot_file"])


async def test_requests_share_one_capture_that_closes_when_idle() -> None:
    opened: list[str] = []
    closed: list[str] = []

    @asynccontextmanager
    async def open_capture(_: Client) -> AsyncGenerator[BookmarkCapture]:
        opened.append("opened")
        yield ControlledCapture()
        closed.append("closed")

    shared = SharedCapture(open_capture, idle_timeout=timedelta(milliseconds=50))
    client = Client()

    async def use() -> BookmarkCapture:
        async with shared.use(client) as capture:
            await asyncio.sleep(0.01)
            return capture

    captures = await asyncio.gather(*(use() for _ in range(5)))
    assert len({id(capture) for capture in captures}) == len(opened) == 1
    await use()
    assert len(opened) == 1
    await wait_until(lambda: len(closed) == 1, within=timedelta(seconds=10))
    await use()
    assert len(opened) == 2
    async with shared.use(client):
        await asyncio.sleep(0.15)  # a capture in use is not closed
        assert len(closed) == 1
    await wait_until(lambda: len(closed) == 2, within=timedelta(seconds=10))
