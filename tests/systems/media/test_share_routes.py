"""The routes of the media API: who may see a share, the same link twice, deletion, retry and events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
from media_harness import SHARES_PATH, MediaHarness, MediaSite, MediaUser, media_url
from web_servers import WebServer

from holdfast.settings import Settings
from holdfast.testing import wait_until


async def test_another_user_sees_and_changes_nothing(media_system: MediaHarness, website: WebServer) -> None:
    user, other = media_system.create_user(), media_system.create_user()
    share = await user.share(media_url(website))
    async with media_system.run_worker():
        await user.wait_until_finished(share["id"])
    path = f"{SHARES_PATH}/{share['id']}"
    assert [
        (await other.get(path)).status_code,
        (await other.get(f"{path}/file")).status_code,
        (await other.get(f"{path}/events")).status_code,
        (await other.delete(path)).status_code,
        (await other.post(f"{path}/retry")).status_code,
        (await media_system.http.get(path)).status_code,
    ] == [404, 404, 404, 404, 404, 401]
    assert (await other.get(SHARES_PATH)).json()["shares"] == []
    assert [each["id"] for each in (await user.get(SHARES_PATH)).json()["shares"]] == [share["id"]]


async def test_the_same_link_is_one_share_of_a_user(media_system: MediaHarness, website: WebServer) -> None:
    user, other = media_system.create_user(), media_system.create_user()
    first = await user.post(SHARES_PATH, {"url": media_url(website)})
    again = await user.post(SHARES_PATH, {"url": f" {media_url(website)}#t=10"})
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"] != (await other.share(media_url(website)))["id"]


@pytest.mark.parametrize(
    "link",
    [
        *("", "nonsense", "ftp://example.com/a", "file:///etc/passwd", "http://localhost/x", 7, None),
        *("http://10.0.0.1/v.mp4", "http://[::1]/v.mp4", "http://2130706433/", "http://u:p@example.com/"),
        *("https://example.com/\x00", "https://" + "a" * 9000),
    ],
)
async def test_a_link_that_is_not_allowed_is_refused_before_it_is_queued(
    media_system: MediaHarness, link: object
) -> None:
    response = await media_system.create_user().post(SHARES_PATH, {"url": link})
    assert response.status_code == 422, response.text
    assert await media_system.fetchval("select count(*) from shares") == 0


async def test_a_host_that_cannot_be_resolved_now_is_tried_by_the_worker(media_system: MediaHarness) -> None:
    response = await media_system.create_user().post(SHARES_PATH, {"url": "https://media.invalid/v.mp4"})
    assert response.status_code == 202, response.text


async def test_a_share_deleted_while_it_downloads_leaves_nothing(
    media_system: MediaHarness, website: WebServer, site: MediaSite
) -> None:
    site.stall_after = 100_000
    user = media_system.create_user()
    share = await user.share(media_url(website))
    async with media_system.run_worker():
        await site.stalled.wait()
        assert (await user.delete(f"{SHARES_PATH}/{share['id']}")).status_code == 204
        assert (await user.get(f"{SHARES_PATH}/{share['id']}")).status_code == 404
        site.resume.set()

        async def has_stopped() -> bool:
            running = "select count(*) from holdfast.tasks where status = 'running'"
            return bool(await media_system.fetchval(running) == 0)

        await wait_until(has_stopped, what="the download stops")
    assert (
        await media_system.fetchval("select count(*) from holdfast.artifacts where status = 'visible'") == 0
    )
    assert await media_system.fetchval("select count(*) from share_progress") == 0
    await media_system.fetch("update holdfast.artifacts set touched_at = now() - interval '10 minutes'")
    assert await media_system.count_stored_objects() == 0


async def test_a_failed_share_can_be_tried_again(
    media_system: MediaHarness, website: WebServer, site: MediaSite
) -> None:
    site.status = [404]
    user = media_system.create_user()
    share = await user.share(media_url(website))
    assert (await user.post(f"{SHARES_PATH}/{share['id']}/retry")).status_code == 409
    async with media_system.run_worker():
        await user.wait_for(share["id"], "failed")
        again = await user.post(f"{SHARES_PATH}/{share['id']}/retry")
        assert (again.status_code, again.json()["download_attempts"]) == (202, 0)
        done = await user.wait_until_finished(share["id"])
    assert done["download_status"] == "completed"


async def read_events(
    user: MediaUser, path: str, **headers: str
) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
    async with user.http.stream("GET", f"{SHARES_PATH}/{path}", headers=user.headers | headers) as response:
        assert response.status_code == 200
        event = ""
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                event = value
            elif name == "data":
                yield event, json.loads(value)


async def test_events_tell_bytes_total_speed_and_phase(
    media_system: MediaHarness, website: WebServer, site: MediaSite
) -> None:
    site.stall_after = 100_000
    user = media_system.create_user()
    share = await user.share(media_url(website))
    phases: list[str] = []
    async with media_system.run_worker():
        async for event, body in read_events(user, f"{share['id']}/events"):
            if event == "end":
                break
            phases.append(body["phase"])
            assert set(body) >= {"bytes", "total", "speed", "eta", "phase", "status"}
            if body["status"] == "processing" and body["bytes"] == 100_000:
                assert body["total"] == len(site.content)
                site.resume.set()
    assert body["download_status"] == "completed"
    assert phases[0] in ("queued", "download")
    assert "download" in phases
    assert phases[-1] == "completed"


async def test_the_stream_has_every_change_of_the_users_own_shares(
    media_system: MediaHarness, website: WebServer, site: MediaSite
) -> None:
    """Progress is a change, too. The page shows nothing else than what comes here."""
    site.stall_after = 100_000
    user, other = media_system.create_user(), media_system.create_user()
    await other.share(media_url(website, "other.mp4"))
    share = await user.share(media_url(website))
    seen: list[dict[str, Any]] = []
    async with media_system.run_worker():
        async for event, body in read_events(user, "stream"):
            assert (event, body["user_id"]) == ("share", user.id)
            seen.append(body)
            if body["download_status"] == "processing" and body["progress"]["bytes"] == 100_000:
                site.resume.set()
            if body["finished"]:
                break
    assert {body["id"] for body in seen} == {share["id"]}
    times = [body["updated_at"] for body in seen]
    assert times == sorted(times)
    assert any(0 < body["progress"]["bytes"] < len(site.content) for body in seen)
    assert seen[-1]["download_status"] == "completed"
    assert await media_system.fetchval("select count(*) from share_progress where user_id = $1", user.id) == 0


async def test_a_stream_that_reconnects_gets_what_it_missed(
    media_system: MediaHarness, website: WebServer
) -> None:
    user = media_system.create_user()
    share = await user.share(media_url(website))
    await media_system.fetch("update shares set updated_at = now()")
    await media_system.fetch("select pg_sleep(0.1)")
    minute_ago = await media_system.fetchval(
        "select (extract(epoch from now() - interval '1 minute') * 1000)::bigint"
    )
    async for _, body in read_events(user, "stream", **{"Last-Event-ID": str(minute_ago)}):
        assert body["id"] == share["id"]
        break
    response = await user.get(f"{SHARES_PATH}/stream", headers={"Last-Event-ID": "9" * 18})
    assert response.status_code == 422
    assert (await media_system.http.get(f"{SHARES_PATH}/stream")).status_code == 401


class TestSynchronousDownloads:
    @pytest.fixture
    def media_settings(self, media_settings: Settings) -> Settings:
        return replace(media_settings, async_downloads_enabled="off")

    async def test_the_request_answers_when_the_job_has_ended(
        self, media_system: MediaHarness, website: WebServer
    ) -> None:
        async with media_system.run_worker():
            share = await media_system.create_user().share(media_url(website))
        assert share["finished"]
        assert share["download_status"] == "completed"
        assert share["files"]


class TestRate:
    @pytest.fixture
    def media_settings(self, media_settings: Settings) -> Settings:
        return replace(media_settings, media_user_rate=2, media_hosts="127.0.0.1, example.com")

    async def test_a_user_may_add_so_many_shares_an_hour(
        self, media_system: MediaHarness, website: WebServer
    ) -> None:
        user = media_system.create_user()
        for number in range(2):
            share = await user.share(media_url(website, f"{number}.mp4"))
        await user.delete(f"{SHARES_PATH}/{share['id']}")
        response = await user.post(SHARES_PATH, {"url": media_url(website, "3.mp4")})
        assert response.status_code == 429, response.text
        assert int(response.headers["retry-after"]) > 0

    async def test_only_listed_hosts_are_allowed(self, media_system: MediaHarness) -> None:
        response = await media_system.create_user().post(SHARES_PATH, {"url": "https://other.example/v.mp4"})
        assert response.status_code == 422
        assert "other.example" in response.text
