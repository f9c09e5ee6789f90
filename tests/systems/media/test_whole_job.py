"""The whole job of a share: download, then poster, thumbnails and audio, then the transcript."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
import media_site
import pytest
from api_clients import serve_app
from media_harness import MediaHarness, MediaSite, media_url
from sample_media import make_mp4
from web_servers import WebServer

from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import media
from holdfast.systems.media.contracts import MediaError, Transcript, TranscriptSegment
from holdfast.testing import wait_until

PAGE_JOB_TIMEOUT = timedelta(minutes=5)  # yt-dlp needs ten seconds of processor time to try all its sites


async def test_a_video_gets_a_poster_and_a_transcript(
    media_system: MediaHarness, website: WebServer, site: MediaSite, tmp_path: Path
) -> None:
    site.content = await asyncio.to_thread(lambda: make_mp4(tmp_path / "film.mp4").read_bytes())
    user = media_system.create_user()
    share = await user.share(media_url(website))
    async with media_system.run_worker():
        done = await user.wait_until_finished(share["id"])
    assert (done["processing_status"], done["processing_error"]) == ("completed", None), done
    assert (done["transcript_status"], done["transcript_error"]) == ("completed", None), done
    assert done["media_info"]["width"] == 160
    assert 2 < done["platform_data"]["downloadMetadata"]["duration"] < 4
    kinds = sorted(file["kind"] for file in done["files"])
    assert kinds == ["audio", "media", "poster", "strip", "transcript", "transcript", "transcript"]
    poster = await user.get(f"/api/v1/shares/{share['id']}/file?kind=poster")
    picture = await user.http.get(poster.headers["location"])
    assert picture.content.startswith(b"\xff\xd8")


class InterruptedProvider:
    """A provider whose first calls fail as when the system kills its program."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    async def transcribe_piece(self, path: Path, *, language: str | None) -> Transcript:
        self.failures -= 1
        if self.failures >= 0:
            raise MediaError("interrupted", "The transcription was interrupted on our side. Try again.")
        return Transcript(by="test", language="en", segments=[TranscriptSegment(0, 1, "Hello.")])

    async def close(self) -> None: ...


@pytest.mark.parametrize(("failures", "status"), [(2, "completed"), (3, "failed")])
async def test_attempts_of_killed_workers_do_not_count_for_a_transcript(
    media_system: MediaHarness,
    website: WebServer,
    site: MediaSite,
    tmp_path: Path,
    failures: int,
    status: str,
) -> None:
    site.content = await asyncio.to_thread(lambda: make_mp4(tmp_path / "film.mp4").read_bytes())
    user, provider = media_system.create_user(), InterruptedProvider(failures)
    share = await user.share(media_url(website))
    async with media_system.run_worker() as state:
        state._transcription_provider = provider
        async with state.ffmpeg_slots, state.ffmpeg_slots:  # nothing is processed meanwhile
            await user.wait_for(share["id"], "completed")
            lost = "update holdfast.tasks set attempt = 5 where name = 'transcribe' and status = 'waiting'"
            assert await media_system.fetchval(f"{lost} returning attempt") == 5

        async def is_finished() -> bool:
            await media_system.fetch(  # instead of waiting until its next attempt
                "select holdfast.start_scheduled_task(id) from holdfast.tasks"
                " where name = 'transcribe' and status = 'scheduled'"
            )
            return bool((await user.get_share(share["id"]))["finished"])

        await wait_until(is_finished, within=PAGE_JOB_TIMEOUT)
    done = await user.get_share(share["id"])
    assert (done["transcript_status"], provider.failures) == (status, -1 if status == "completed" else 0)
    message = "The transcription was interrupted on our side. Try again."
    assert done["transcript_error"] == (None if status == "completed" else message)


class TestPages:
    """Pages that only yt-dlp understands, through the API and a worker, to the transcript."""

    @pytest.fixture
    async def pages(self) -> AsyncGenerator[media_site.MediaSite]:
        async with media_site.run_media_site() as site:
            yield site

    @pytest.fixture
    async def page_system(
        self, url: Secret, system_settings: Settings, pages: media_site.MediaSite
    ) -> AsyncGenerator[MediaHarness]:
        settings = replace(system_settings, egress_allow=pages.server.authority)
        async with Database(url, settings) as db:
            async with db.connection() as connection:
                await media.install(connection)
            app = create_app(settings, database=db, **media.mount())
            async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
                yield MediaHarness(db, http)

    @pytest.mark.timeout(600)
    async def test_pages_are_downloaded_one_after_the_other_at_a_limit_of_one(
        self, page_system: MediaHarness, pages: media_site.MediaSite, tmp_path: Path
    ) -> None:
        film = await asyncio.to_thread(make_mp4, tmp_path / "film.mp4")
        pages.add("/film.mp4", "video/mp4", film.read_bytes())
        html = "<title>A film</title><video src='/film.mp4'></video>"
        links = [pages.add(f"/page{number}", "text/html", html) for number in range(2)]
        await page_system.fetch("update holdfast.limit_rules set max_running = 1 where name like '%yt-dlp'")
        user = page_system.create_user()
        shares = [await user.share(link) for link in links]
        async with page_system.run_worker():
            ended = [await user.wait_until_finished(share["id"], PAGE_JOB_TIMEOUT) for share in shares]
        for share in ended:
            statuses = [share[f"{name}_status"] for name in ("download", "processing", "transcript")]
            assert statuses == ["completed"] * 3, share
            assert share["platform_data"]["title"].startswith("A film")
            assert share["download_attempts"] == 0, "waiting for its turn is not an attempt"
            assert (await user.download(share["id"])).content == film.read_bytes()
        first, second = sorted(ended, key=lambda share: str(share["download_completed_at"]))
        assert second["download_started_at"] >= first["download_completed_at"]
        assert list(tmp_path.parent.glob("**/holdfast-media-*")) == []


class TestPlayingTime:
    @pytest.fixture
    def media_settings(self, media_settings: Settings) -> Settings:
        return replace(media_settings, media_max_duration=timedelta(seconds=1))

    async def test_a_file_that_plays_too_long_is_kept_and_not_processed(
        self, media_system: MediaHarness, website: WebServer, site: MediaSite, tmp_path: Path
    ) -> None:
        site.content = await asyncio.to_thread(lambda: make_mp4(tmp_path / "film.mp4").read_bytes())
        user = media_system.create_user()
        share = await user.share(media_url(website))
        async with media_system.run_worker():
            done = await user.wait_until_finished(share["id"])
        assert (done["download_status"], done["processing_status"]) == ("completed", "failed")
        assert done["processing_error"] == "The file plays longer than allowed, so it was not processed."
        assert done["transcript_status"] == "skipped"
        assert [file["kind"] for file in done["files"]] == ["media"]
