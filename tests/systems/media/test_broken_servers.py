"""Websites that stall, break, lie and never end: the download continues, or says why it cannot."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta

import pytest
from media_harness import MediaHarness, MediaSite, make_video_bytes, media_url
from web_servers import RecordedRequest, WebServer, run_web_server

from holdfast.settings import Settings
from holdfast.systems.media import direct_download


@pytest.fixture(autouse=True)
def quick_reopening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_download, "REOPENING_DELAY_S", 0.01)


def get_ranges(website: WebServer) -> list[str | None]:
    return [request.headers.get("range") for request in website.requests]


async def test_a_download_cut_at_90_percent_continues_with_a_range(
    media_system: MediaHarness, website: WebServer, site: MediaSite
) -> None:
    site.cut_after = [int(len(site.content) * 0.9)]
    user = media_system.create_user()
    share = await user.share(media_url(website))
    async with media_system.run_worker():
        done = await user.wait_for(share["id"], "completed")
    assert done["download_attempts"] == 0
    assert get_ranges(website) == [None, "bytes=270000-"]
    assert (await user.download(share["id"])).content == site.content
    assert await media_system.count_stored_objects() == 1


async def test_a_retry_continues_after_the_stored_part(
    media_system: MediaHarness, website: WebServer, site: MediaSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt breaks and gives up; the second asks for the rest only, and one file remains."""
    monkeypatch.setattr(direct_download, "MAX_REOPENINGS", 1)
    site.cut_after = [200_000]
    user = media_system.create_user()
    share = await user.share(media_url(website))
    async with media_system.run_worker():
        done = await user.wait_for(share["id"], "completed")
    assert done["download_attempts"] == 1
    assert get_ranges(website) == [None, "bytes=200000-"]
    assert (await user.download(share["id"])).content == site.content
    assert len(done["files"]) == 1
    assert await media_system.count_stored_objects() == 1


async def test_a_server_without_ranges_starts_again(
    media_system: MediaHarness, website: WebServer, site: MediaSite
) -> None:
    site.ranges = False
    site.cut_after = [200_000]
    user = media_system.create_user()
    share = await user.share(media_url(website))
    async with media_system.run_worker():
        done = await user.wait_for(share["id"], "completed")
    assert done["download_attempts"] == 1
    assert (await user.download(share["id"])).content == site.content
    assert await media_system.count_stored_objects() == 1


async def test_a_length_that_is_too_long_is_corrected_by_the_server(
    media_system: MediaHarness, website: WebServer, site: MediaSite
) -> None:
    site.declared_length = len(site.content) + 5000
    user = media_system.create_user()
    share = await user.share(media_url(website))
    async with media_system.run_worker():
        await user.wait_for(share["id"], "completed")
    assert (await user.download(share["id"])).content == site.content


async def test_a_length_that_stays_a_lie_fails_after_three_attempts(
    media_system: MediaHarness, website: WebServer, site: MediaSite
) -> None:
    site.declared_length, site.ranges = len(site.content) + 5000, False
    user = media_system.create_user()
    share = await user.share(media_url(website))
    async with media_system.run_worker():
        done = await user.wait_for(share["id"], "failed")
    assert done["download_attempts"] == 3
    assert done["download_error"] == "The connection to the website broke."
    assert done["finished"]
    assert await media_system.count_stored_objects() == 0


class TestStalls:
    @pytest.fixture
    def media_settings(self, media_settings: Settings) -> Settings:
        return replace(media_settings, media_idle_timeout=timedelta(milliseconds=300))

    async def test_a_stalled_download_is_opened_again(
        self, media_system: MediaHarness, website: WebServer, site: MediaSite
    ) -> None:
        site.stall_after = 100_000
        user = media_system.create_user()
        share = await user.share(media_url(website))
        async with media_system.run_worker():
            await user.wait_for(share["id"], "completed")
        assert get_ranges(website)[1] == "bytes=100000-"
        assert (await user.download(share["id"])).content == site.content


async def serve_for_ever(_: RecordedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\n\r\n" + make_video_bytes(1000))
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


class TestEndlessServer:
    @pytest.fixture
    async def website(self) -> AsyncGenerator[WebServer]:
        async with run_web_server(serve_for_ever) as server:
            yield server

    @pytest.fixture
    def media_settings(self, media_settings: Settings) -> Settings:
        return replace(media_settings, media_max_bytes=2_000_000)

    async def test_an_endless_file_is_too_large(self, media_system: MediaHarness, website: WebServer) -> None:
        user = media_system.create_user()
        share = await user.share(media_url(website))
        async with media_system.run_worker():
            done = await user.wait_for(share["id"], "failed")
        assert done["download_attempts"] == 1
        assert "larger than" in done["download_error"]
        assert await media_system.count_stored_objects() == 0


class TestQuota:
    @pytest.fixture
    def media_settings(self, media_settings: Settings) -> Settings:
        return replace(media_settings, media_user_bytes=200_000)

    async def test_a_quota_reached_half_way_ends_the_download(
        self, media_system: MediaHarness, website: WebServer, site: MediaSite
    ) -> None:
        site.declares_length = False
        user = media_system.create_user()
        share = await user.share(media_url(website))
        async with media_system.run_worker():
            done = await user.wait_for(share["id"], "failed")
        assert done["download_error"].startswith("Your storage is full.")
        assert done["download_attempts"] == 1
        assert await media_system.count_stored_objects() == 0

    async def test_a_full_storage_refuses_new_shares(
        self, media_system: MediaHarness, website: WebServer, site: MediaSite
    ) -> None:
        site.content = make_video_bytes(200_000)
        user = media_system.create_user()
        share = await user.share(media_url(website))
        async with media_system.run_worker():
            await user.wait_for(share["id"], "completed")
        response = await user.post("/api/v1/shares", {"url": media_url(website, "other.mp4")})
        assert response.status_code == 507, response.text
        assert (await user.delete(f"/api/v1/shares/{share['id']}")).status_code == 204
        assert (await user.share(media_url(website, "other.mp4")))["download_status"] == "pending"


async def test_a_redirect_into_a_private_network_is_refused(
    media_system: MediaHarness, website: WebServer, site: MediaSite
) -> None:
    site.status, site.headers = [302], {"Location": "http://10.0.0.7/secret.mp4"}
    user = media_system.create_user()
    share = await user.share(media_url(website))
    async with media_system.run_worker():
        done = await user.wait_for(share["id"], "failed")
    assert done["download_error"] == "The link leads to an address that is not on the public internet."
    assert done["download_attempts"] == 1


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, "There is nothing at this link any more."),
        (403, "The website does not let us download this. It may need a login."),
    ],
)
async def test_an_answer_that_cannot_change_is_not_tried_again(
    media_system: MediaHarness, website: WebServer, site: MediaSite, status: int, error: str
) -> None:
    site.status = [status]
    user = media_system.create_user()
    share = await user.share(media_url(website))
    async with media_system.run_worker():
        done = await user.wait_for(share["id"], "failed")
    assert (done["download_attempts"], done["download_error"]) == (1, error)


async def test_a_rate_limit_waits_as_long_as_the_server_says(
    media_system: MediaHarness, website: WebServer, site: MediaSite
) -> None:
    site.status, site.headers = [429], {"Retry-After": "1800"}
    user = media_system.create_user()
    share = await user.share(media_url(website))
    async with media_system.run_worker():
        waiting = await user.wait_for(share["id"], "retry")
    assert waiting["download_error"] == "The website asks us to wait."
    seconds = await media_system.fetchval(
        "select extract(epoch from run_after - updated_at) from shares where id = $1", share["id"]
    )
    assert 1700 < seconds <= 1800
    assert waiting["retry_at"] is not None


@pytest.mark.parametrize(
    "content", [b"PK\x03\x04" + b"\0" * 9000, b"\x1f\x8b" + b"\1" * 9000, b"", b"%PDF-1.7 \0" * 500]
)
async def test_what_is_no_media_is_refused(
    media_system: MediaHarness, website: WebServer, site: MediaSite, content: bytes
) -> None:
    site.content = content
    user = media_system.create_user()
    share = await user.share(media_url(website))
    async with media_system.run_worker():
        done = await user.wait_for(share["id"], "failed")
    assert done["download_error"] == "There is no video, sound or picture at this link."
    assert done["download_attempts"] == 1
    assert await media_system.count_stored_objects() == 0


@pytest.mark.parametrize(
    "disposition",
    [
        'attachment; filename="../../etc/passwd"',
        "attachment; filename*=UTF-8''..%2F..%2Fx%00%0d%0aSet-Cookie%3A%20a=b",
        'attachment; filename="' + "a" * 5000 + '.mp4"',
        'attachment; filename="\u202efdp.exe"'.encode().decode("latin-1"),
    ],
)
async def test_hostile_file_names_become_harmless(
    media_system: MediaHarness, website: WebServer, site: MediaSite, disposition: str
) -> None:
    site.headers = {"Content-Disposition": disposition}
    user = media_system.create_user()
    share = await user.share(media_url(website))
    async with media_system.run_worker():
        done = await user.wait_for(share["id"], "completed")
    [file] = done["files"]
    assert file["name"].endswith(".mp4")
    assert len(file["name"]) <= 125
    assert not set("/\\\0\r\n\u202e") & set(file["name"])
    assert ".." not in file["name"]
    answer = await user.download(share["id"])
    assert answer.content == site.content
    assert "set-cookie" not in answer.headers


async def test_a_full_store_is_tried_again_later(
    media_system: MediaHarness, website: WebServer, site: MediaSite
) -> None:
    """The limit of the size of files makes the operating system refuse writes, as a full disk does."""
    site.content = make_video_bytes(9_000_000)
    user = media_system.create_user()
    share = await user.share(media_url(website))
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        async with media_system.run_worker():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
            waiting = await user.wait_for(share["id"], "retry", "failed")
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert waiting["download_error"] == "Our file storage is full at the moment."
            await user.wait_for(share["id"], "completed")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert (await user.download(share["id"])).content == site.content
    assert await media_system.count_stored_objects() == 1
