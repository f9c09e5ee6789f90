"""The whole job of a share: download, then poster, thumbnails and audio, then the transcript."""

from __future__ import annotations

import asyncio
from pathlib import Path

from media_harness import MediaHarness, MediaSite, media_url
from sample_media import make_mp4
from web_servers import WebServer


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
