"""Process messages by a worker and by the endpoint: retries, dead letters, old messages, callers."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from typing import Any

import pytest
from api_clients import bearer_headers
from bookmarks_harness import (
    CONSUMER_PATH,
    CRON_SECRET,
    BookmarksHarness,
    ControlledCapture,
    permanent_error,
    temporary_error,
)
from system_harness import SERVICE_KEY, SystemUser

from holdfast.systems.bookmarks import bookmark_archive_cleanup
from holdfast.systems.capture.errors import NotAPageError
from holdfast.testing import Clock, wait_until

SERVICE = bearer_headers(SERVICE_KEY)
QUEUE = "add-bookmark-url-queue"


async def wait_for_status(system: BookmarksHarness, user: SystemUser, bookmark_id: int, status: str) -> Any:
    async def find() -> dict[str, Any] | None:
        row = await system.get(user, bookmark_id)
        return row if row["status"] == status else None

    return await wait_until(find, within=timedelta(seconds=60), what=f"bookmark {bookmark_id} is {status}")


async def consume(system: BookmarksHarness) -> dict[str, Any]:
    response = await system.http.post(CONSUMER_PATH, headers=SERVICE)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_a_worker_completes_a_bookmark(system: BookmarksHarness) -> None:
    ann = system.create_user()
    row = await system.add(ann, "https://example.com/")
    async with system.run_bookmark_worker():
        done = await wait_for_status(system, ann, row["id"], "complete")
    assert (done["title"], done["description"]) == ("A page", "About something")
    assert (done["width"], done["height"], done["ocr"]) == (1, 1, "words in the picture")
    assert (done["caption"], done["blurhash"][:2]) == ("a small picture", "LE")
    for name in ("screenshot", "og_image", "favicon"):
        file = await system.http.get(done[name])
        assert (file.status_code, file.headers["content-type"]) == (200, "image/png"), name
    [stored] = await system.fetch("select screenshot, page_text from bookmarks")
    assert stored["screenshot"] == f"{ann.id}/bookmarks/{row['id']}/screenshot.png"
    assert (await system.count_messages(), await system.count_messages("a")) == (0, 1)
    [file_row] = await system.fetch(
        "select count(*), bool_and(expires_at is null), bool_and(key like $1) from holdfast.artifacts"
        " where owner = $2",
        f"{ann.id}%",
        ann.id,
    )
    assert tuple(file_row) == (3, True, True)


async def test_the_endpoint_answers_with_the_summary(system: BookmarksHarness) -> None:
    ann = system.create_user()
    first = await system.add(ann, "https://example.com/a")
    second = await system.add(ann, "https://example.com/b.png")
    summary = await consume(system)
    assert summary == {
        "success": True,
        "message": "Queue processing completed",
        "processedCount": 2,
        "archivedCount": 2,
        "failedCount": 0,
        "results": [
            {"messageId": 1, "bookmarkId": first["id"], "success": True, "archived": True,
             "screenshotSuccess": True, "remainingDataSuccess": True},
            {"messageId": 2, "bookmarkId": second["id"], "success": True, "archived": True,
             "remainingDataSuccess": True},
        ],
    }  # fmt: skip
    assert system.capture.count("capture_page") == 1
    assert (await consume(system))["processedCount"] == 0


async def test_the_endpoint_processes_ten_messages_at_most(system: BookmarksHarness) -> None:
    ann = system.create_user()
    for number in range(12):
        await system.add(ann, f"https://example.com/{number}.png")
    assert ((await consume(system))["processedCount"], await system.count_messages()) == (10, 2)


async def test_one_step_fails_and_only_that_step_is_repeated(
    system: BookmarksHarness, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    ann = system.create_user()
    row = await system.add(ann, "https://example.com/")
    system.capture.errors["capture_page"] = temporary_error("Network timeout")
    with caplog.at_level(logging.WARNING, "holdfast.systems.bookmarks"):
        summary = await consume(system)
    assert summary["results"] == [
        {"messageId": 1, "bookmarkId": row["id"], "success": False, "archived": False,
         "screenshotSuccess": False, "remainingDataSuccess": True, "error": "Screenshot: Network timeout"}
    ]  # fmt: skip
    for fact in (
        f"bookmarkId={row['id']}",
        "messageId=1",
        "screenshotSuccess=False",
        "remainingDataSuccess=True",
    ):
        assert fact in caplog.text
    failed = await system.get(ann, row["id"])
    assert (failed["status"], failed["screenshot_error"]) == ("retrying", "Network timeout")
    assert (failed["title"], failed["favicon"] is not None) == ("A page without a browser", True)
    assert (await consume(system))["processedCount"] == 0  # it rests
    del system.capture.errors["capture_page"]
    await clock.advance(timedelta(minutes=2))
    assert (await consume(system))["archivedCount"] == 1
    calls = [name for name, _ in system.capture.calls]
    assert (calls.count("capture_page"), calls.count("fetch_image"), calls.count("find_favicon")) == (2, 1, 1)
    done = await system.get(ann, row["id"])
    assert (done["status"], done["title"], done["screenshot_error"]) == ("complete", "A page", None)


async def test_messages_are_independent(system: BookmarksHarness) -> None:
    ann = system.create_user()
    bad = await system.add(ann, "https://example.com/bad.png")
    good = await system.add(ann, "https://example.com/good")
    system.capture.errors["fetch_image"] = permanent_error()
    summary = await consume(system)
    by_bookmark = {result["bookmarkId"]: result["success"] for result in summary["results"]}
    assert by_bookmark == {bad["id"]: False, good["id"]: True}  # a page is shown without its broken image


async def test_a_message_that_keeps_failing_goes_to_the_dead_letters_and_can_be_retried(
    system: BookmarksHarness, clock: Clock
) -> None:
    ann = system.create_user()
    row = await system.add(ann, "https://example.com/")
    system.capture.errors["capture_page"] = temporary_error()
    for _ in range(5):
        assert (await consume(system))["failedCount"] == 1
        await clock.advance(timedelta(hours=2))
    assert (await consume(system))["processedCount"] == 0
    assert (await system.get(ann, row["id"]))["status"] == "failed"
    assert await system.count_messages() == 0
    [dead] = await system.fetch(f'select headers::text from pgmq."q_{QUEUE}-dead"')
    assert "The page did not load in time." in dead[0]
    del system.capture.errors["capture_page"]
    retried = await ann.post(f"/api/v1/bookmarks/{row['id']}/retry")
    assert (retried.status_code, retried.json()["status"]) == (200, "pending")
    assert (await ann.post(f"/api/v1/bookmarks/{row['id']}/retry")).status_code == 409
    assert (await consume(system))["archivedCount"] == 1
    assert system.capture.count("fetch_image") == 1  # this step had succeeded


async def test_an_error_that_cannot_get_better_is_not_retried(system: BookmarksHarness) -> None:
    ann = system.create_user()
    row = await system.add(ann, "https://example.com/")
    system.capture.errors["capture_page"] = permanent_error()
    async with system.run_bookmark_worker():
        failed = await wait_for_status(system, ann, row["id"], "failed")

        async def is_empty() -> bool:
            return await system.count_messages() == 0

        await wait_until(is_empty, within=timedelta(seconds=60), what="the message is a dead letter")
    assert failed["screenshot_error"] == "The server answered with the status 404."
    assert system.capture.count("capture_page") == 1


async def test_internal_errors_are_not_shown(system: BookmarksHarness) -> None:
    ann = system.create_user()
    row = await system.add(ann, "https://example.com/")
    system.capture.errors["capture_page"] = ValueError("secret path /srv/x")
    assert "secret" not in json.dumps(await consume(system))
    assert "secret" not in json.dumps(await system.get(ann, row["id"]))


async def test_a_url_that_turns_out_to_be_an_image_needs_no_screenshot(system: BookmarksHarness) -> None:
    ann = system.create_user()
    row = await system.add(ann, "https://example.com/picture")
    system.capture.errors["capture_page"] = NotAPageError("This is an image.", content_type="image/png")
    assert (await consume(system))["archivedCount"] == 1
    done = await system.get(ann, row["id"])
    assert (done["is_image"], done["screenshot_status"], done["og_image"] is not None) == (
        True,
        "skipped",
        True,
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bookmarkId": None}, "bookmarkId"),
        ({"bookmarkId": "1"}, "bookmarkId"),
        ({"url": ""}, "url"),
        ({"url": "file:///etc/passwd"}, "url"),
        ({"userId": "nobody"}, "userId"),
        ({"isImage": "no"}, "isImage"),
        ({"bookmarkId": 999}, "does not exist"),
        ({"userId": "00000000-0000-4000-8000-000000000001"}, "does not exist"),
    ],
)
async def test_invalid_messages_stay_with_their_error_until_the_read_limit(
    system: BookmarksHarness, clock: Clock, changes: dict[str, Any], reason: str
) -> None:
    ann = system.create_user()
    row = await system.add(ann, "https://example.com/")
    await system.fetch(
        f'update pgmq."q_{QUEUE}" set message = message || $1::text::jsonb', json.dumps(changes)
    )
    for number in range(5):
        [result] = (await consume(system))["results"]
        assert (result["success"], result["archived"]) == (False, False)
        assert reason in result["error"]
        assert await system.count_messages() == (1 if number < 4 else 0)
        await clock.advance(timedelta(hours=2))
    assert await system.count_messages("a") == 0
    [dead] = await system.fetch(f'select count(*) from pgmq."q_{QUEUE}-dead"')
    assert dead[0] == 1
    assert system.capture.calls == []
    assert (await system.get(ann, row["id"]))["id"] == row["id"]


async def test_old_messages_without_user_are_processed_for_the_owner(system: BookmarksHarness) -> None:
    ann = system.create_user()
    row = await system.add(ann, "https://example.com/")
    await system.fetch(f"update pgmq.\"q_{QUEUE}\" set message = message - 'userId'")
    async with system.run_bookmark_worker():
        await wait_for_status(system, ann, row["id"], "complete")


async def test_worker_and_endpoint_at_once_do_nothing_twice(system: BookmarksHarness) -> None:
    ann = system.create_user()
    rows = [await system.add(ann, f"https://example.com/{number}") for number in range(20)]
    other = ControlledCapture()
    async with system.run_bookmark_worker(other):
        await asyncio.gather(*(consume(system) for _ in range(3)))
        for row in rows:
            await wait_for_status(system, ann, row["id"], "complete")
    calls = system.capture.calls + other.calls
    assert len([url for name, url in calls if name == "capture_page"]) == 20
    assert len({url for name, url in calls if name == "capture_page"}) == 20
    assert await system.count_messages("a") == 20


async def test_a_killed_reader_loses_its_message_to_the_next_one(
    system: BookmarksHarness, clock: Clock
) -> None:
    """The first reader hangs in a step and loses its lease. Its late end changes nothing."""
    ann = system.create_user()
    row = await system.add(ann, "https://example.com/")
    system.capture.gate = asyncio.Event()
    late = asyncio.create_task(consume(system))
    await wait_until(lambda: system.capture.calls, within=timedelta(seconds=30), what="the step begins")
    await clock.advance(timedelta(minutes=10))
    other = ControlledCapture()
    async with system.run_bookmark_worker(other):
        await wait_for_status(system, ann, row["id"], "complete")
    system.capture.gate.set()
    assert (await late)["archivedCount"] == 0
    assert await system.count_messages("a") == 1
    [files] = await system.fetch(
        "select count(*) from holdfast.artifacts where expires_at is null and status = 'visible'"
    )
    assert files[0] == 3


async def test_who_may_call_the_consumer(system: BookmarksHarness) -> None:
    ann, bob = system.create_user(), system.create_user()
    mine = await system.add(ann, "https://example.com/a.png")
    theirs = await system.add(bob, "https://example.com/b.png")
    assert (await system.http.post(CONSUMER_PATH)).status_code == 401
    assert (await system.http.get(CONSUMER_PATH)).status_code == 401
    assert (await ann.get(CONSUMER_PATH)).status_code == 403
    wrong = await system.http.get(CONSUMER_PATH, headers=bearer_headers(CRON_SECRET + "x"))
    assert wrong.status_code == 401
    answer = (await ann.post(CONSUMER_PATH)).json()
    assert [result["bookmarkId"] for result in answer["results"]] == [mine["id"]]
    cron = await system.http.get(CONSUMER_PATH, headers=bearer_headers(CRON_SECRET))
    assert [result["bookmarkId"] for result in cron.json()["results"]] == [theirs["id"]]
    assert (await system.http.post(CONSUMER_PATH, headers=bearer_headers(CRON_SECRET))).status_code == 200


@pytest.mark.parametrize("step", ["screenshot", "remaining"])
async def test_step_routes_are_for_services_and_the_right_owner(system: BookmarksHarness, step: str) -> None:
    ann, bob = system.create_user(), system.create_user()
    row = await system.add(ann, "https://example.com/")
    path = f"/api/v1/bookmarks/add/tasks/{step}"
    body = {"id": row["id"], "url": "https://example.com/", "userId": ann.id, "favIcon": None}
    assert (await system.http.post(path, json=body)).status_code == 401
    assert (await ann.post(path, body)).status_code == 403
    foreign = await system.http.post(path, json={**body, "userId": bob.id}, headers=SERVICE)
    assert foreign.status_code == 404
    assert system.capture.calls == []
    done = await system.http.post(path, json=body, headers=SERVICE)
    assert (done.status_code, done.json()["success"]) == (200, True), done.text
    assert done.json()["data"][f"{step}_status"] == "succeeded"
    calls = len(system.capture.calls)
    assert (await system.http.post(path, json=body, headers=SERVICE)).status_code == 200
    assert len(system.capture.calls) == calls


async def test_a_failed_step_route_answers_with_the_reason(system: BookmarksHarness) -> None:
    ann = system.create_user()
    row = await system.add(ann, "https://example.com/")
    system.capture.errors["capture_page"] = temporary_error("Network timeout")
    body = {"id": row["id"], "url": "https://example.com/", "userId": ann.id}
    failed = await system.http.post("/api/v1/bookmarks/add/tasks/screenshot", json=body, headers=SERVICE)
    assert (failed.status_code, "Network timeout" in failed.text) == (502, True)


async def test_the_daily_cleanup_deletes_old_archived_messages(
    system: BookmarksHarness, clock: Clock
) -> None:
    ann = system.create_user()
    await system.add(ann, "https://example.com/a.png")
    await consume(system)
    await clock.advance(timedelta(days=40))
    await system.fetch(f"update pgmq.\"a_{QUEUE}\" set archived_at = holdfast.now() - interval '40 days'")
    await system.add(ann, "https://example.com/b.png")
    await consume(system)
    await system.fetch(f'update pgmq."a_{QUEUE}" set archived_at = holdfast.now() where msg_id = 2')
    async with system.run_bookmark_worker() as state:
        await state.client.submit(bookmark_archive_cleanup())

        async def only_one_is_left() -> bool:
            return await system.count_messages("a") == 1

        await wait_until(only_one_is_left, within=timedelta(seconds=60), what="the clean-up ran")
