"""Add a bookmark: the row and its message, the same URL again, categories, limits and invalid URLs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from api_clients import bearer_headers, serve_app
from bookmarks_harness import ADD_PATH, BookmarksHarness
from system_harness import SERVICE_KEY, SystemUser

from holdfast.server import create_app
from holdfast.systems import bookmarks


async def test_a_bookmark_is_visible_at_once_and_has_a_message(system: BookmarksHarness) -> None:
    ann = system.create_user()
    row = await system.add(ann, "https://example.com/a?b=1")
    assert (row["url"], row["user_id"], row["status"]) == ("https://example.com/a?b=1", ann.id, "pending")
    assert (row["title"], row["screenshot"], row["is_image"]) == (None, None, False)
    assert (await system.get(ann, row["id"]))["id"] == row["id"]
    [message] = await system.fetch("select message::text from pgmq_public.add_bookmark_url_queue")
    assert json.loads(message[0]) == {
        "bookmarkId": row["id"],
        "url": "https://example.com/a?b=1",
        "userId": ann.id,
        "favIcon": None,
        "isImage": False,
    }


async def test_the_row_and_its_message_are_one_transaction(system: BookmarksHarness) -> None:
    """Without the queue, sending fails. The row must not stay behind without a message."""
    ann = system.create_user()
    await system.fetch('alter table pgmq."q_add-bookmark-url-queue" rename to gone')
    assert (await ann.post(ADD_PATH, {"url": "https://example.com/"})).status_code >= 400
    assert await system.fetch("select id from bookmarks") == []


@pytest.mark.parametrize(
    "same",
    [
        "https://example.com/a/c?q=~x",
        "HTTPS://EXAMPLE.com:443/a/c?q=%7ex",
        "https://example.com/a/./b/../c?q=~x#part",
        "  https://example.com./a/c?q=~x  ",
    ],
)
async def test_the_same_url_again_answers_with_the_existing_row(system: BookmarksHarness, same: str) -> None:
    ann, bob = system.create_user(), system.create_user()
    first = await system.add(ann, "https://example.com/a/c?q=~x")
    assert (await system.add(ann, same))["id"] == first["id"]
    assert await system.count_messages() == 1
    assert (await system.add(bob, same))["id"] != first["id"]


@pytest.mark.parametrize(
    "other",
    [
        "http://example.com/a",
        "https://www.example.com/a",
        "https://example.com/a/",
        "https://example.com/A",
        "https://example.com/a?x=1",
        "https://example.com/a#/route",
        "https://example.com:8443/a",
    ],
)
async def test_another_url_is_another_bookmark(system: BookmarksHarness, other: str) -> None:
    ann = system.create_user()
    first = await system.add(ann, "https://example.com/a")
    assert (await system.add(ann, other))["id"] != first["id"]


async def test_twenty_adds_of_one_url_at_once_are_one_bookmark(system: BookmarksHarness) -> None:
    ann = system.create_user()
    rows = await asyncio.gather(*(system.add(ann, "https://example.com/") for _ in range(20)))
    assert len({row["id"] for row in rows}) == 1
    assert await system.count_messages() == 1


@pytest.mark.parametrize(
    ("fields", "category"),
    [
        ({"category_id": 123, "update_access": True}, 123),
        ({"category_id": 123, "update_access": False}, None),
        ({"category_id": 123}, None),
        ({"update_access": True}, None),
    ],
)
async def test_the_category_is_saved_with_update_access_only(
    system: BookmarksHarness, fields: dict[str, Any], category: int | None
) -> None:
    row = await system.add(system.create_user(), "https://example.com/", **fields)
    assert row["category_id"] == category


@pytest.mark.parametrize(
    ("address", "is_image"),
    [
        ("https://example.com/cat.PNG?size=1", True),
        ("https://example.com/cat.jpeg", True),
        ("https://example.com/drawing.svg", False),
        ("https://example.com/?file=cat.png", False),
    ],
)
async def test_image_urls_are_marked_and_need_no_screenshot(
    system: BookmarksHarness, address: str, is_image: bool
) -> None:
    row = await system.add(system.create_user(), address)
    assert (row["is_image"], row["screenshot_status"]) == (is_image, "skipped" if is_image else "pending")


@pytest.mark.parametrize(
    "address",
    [
        *(None, 7, "", "example.com", "ftp://example.com/", "javascript:alert(1)", "https://", "http://[::1"),
        *("https://user:pass@example.com/", "https://exa mple.com/", "https://0x7f.1/", "file:///etc/passwd"),
        *("https://example.com/" + "x" * 9000, "https://example.com/\ud800"),
    ],
)
async def test_invalid_urls_are_refused(system: BookmarksHarness, address: Any) -> None:
    ann = system.create_user()
    content = json.dumps({"url": address})
    response = await system.http.post(
        ADD_PATH, content=content, headers={**ann.headers, "content-type": "application/json"}
    )
    assert response.status_code == 422, response.text
    assert await system.count_messages() == 0


@pytest.mark.parametrize(
    "address",
    ["https://example.com/" + "x" * 2000, "https://пример.рф/путь?в=я", "https://example.com/日本語"],
)
async def test_long_and_international_urls_are_saved(system: BookmarksHarness, address: str) -> None:
    ann = system.create_user()
    row = await system.add(ann, address)
    assert (await system.get(ann, row["id"]))["url"] == address


@pytest.mark.parametrize(
    "body",
    [{"url": "https://a.test/", "category_id": "7"}, {"url": "https://a.test/", "category_id": -1}, []],
)
async def test_invalid_bodies_are_refused(system: BookmarksHarness, body: Any) -> None:
    assert (await system.create_user().post(ADD_PATH, body)).status_code == 422


async def test_limits_of_a_user(system: BookmarksHarness) -> None:
    limits = bookmarks.BookmarkLimits(max_bookmarks=3, max_unfinished=2)
    app = create_app(system.db.settings, database=system.db, **bookmarks.mount(limits))
    async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
        ann, bob = SystemUser(http), SystemUser(http)
        answers = await asyncio.gather(
            *(ann.post(ADD_PATH, {"url": f"https://example.com/{number}"}) for number in range(6))
        )
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429, 429, 429]
        assert "retry-after" in max(answers, key=lambda answer: answer.status_code).headers
        await system.fetch("update bookmarks set status = 'complete'")
        assert (await ann.post(ADD_PATH, {"url": "https://example.com/x"})).status_code == 200
        await system.fetch("update bookmarks set status = 'complete'")
        refused = await ann.post(ADD_PATH, {"url": "https://example.com/y"})
        assert (refused.status_code, "3 bookmarks" in refused.text) == (507, True)
        assert (await bob.post(ADD_PATH, {"url": "https://example.com/y"})).status_code == 200
    assert await system.count_messages() == 4


async def test_callers(system: BookmarksHarness) -> None:
    body, ann = {"url": "https://example.com/"}, system.create_user()
    assert (await system.http.post(ADD_PATH, json=body)).status_code == 401
    service = bearer_headers(SERVICE_KEY)
    assert (await system.http.post(ADD_PATH, json=body, headers=service)).status_code == 403
    for_ann = await system.http.post(ADD_PATH, json=body, headers={**service, "x-user-id": ann.id})
    assert for_ann.json()["user_id"] == ann.id
