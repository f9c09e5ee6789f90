"""Where transcripts come from: captions and sound of real videos on a local site."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from clips_harness import ClipsHarness
from media_site import MediaSite, run_media_site
from sample_media import make_mp4

from holdfast.systems.media.ffmpeg import find_ffmpeg
from holdfast.systems.providers.local_speech import LocalSpeechProvider
from holdfast.systems.providers.usage import UsageAccount

pytestmark = pytest.mark.timeout(300)
VTT = """WEBVTT

1
00:00:00.000 --> 00:00:02.000
Water the <b>tomatoes</b> in the morning.

2
00:00:02.000 --> 00:00:03.500
Never water the leaves.
"""
LOCAL: dict[str, Any] = {"scraping_url": None, "text_url": None, "embeddings_url": None}


@pytest.fixture
async def site() -> AsyncGenerator[MediaSite]:
    async with run_media_site() as site:
        yield site


async def test_captions_of_a_page_become_the_transcript(
    system: ClipsHarness, site: MediaSite, tmp_path: Path
) -> None:
    film = make_mp4(tmp_path / "film.mp4", 4)
    picture = ["-i", str(film), "-frames:v", "1", str(tmp_path / "p.png")]
    subprocess.run([str(find_ffmpeg()), "-v", "error", *picture], check=True)
    site.add("/film.mp4", "video/mp4", film.read_bytes())
    site.add("/p.png", "image/png", (tmp_path / "p.png").read_bytes())
    site.add("/film.vtt", "text/vtt", VTT)
    page = site.add(
        "/garden.html",
        "text/html",
        '<title>Garden</title><meta property="og:title" content="Growing tomatoes">'
        f'<meta property="og:image" content="{site.server.url}/p.png">'
        '<video poster="/p.png"><source src="/film.mp4" type="video/mp4">'
        '<track kind="captions" src="/film.vtt" srclang="en"></video>',
    )
    ann = system.create_user()
    clip = await system.add(ann, page)
    async with system.run_clip_worker(**LOCAL, clips_sources="captions"):
        done = await system.wait_for(ann, clip["id"], "done")
    assert done["transcript"] == "Water the tomatoes in the morning. Never water the leaves."
    assert [line["start"] for line in done["segments"]] == [0, 2]
    assert done["title"] == "Growing tomatoes"
    assert (done["transcript_by"], done["enriched_by"]) == ("captions", "local extract")
    assert "without a language model" in done["notice"]
    assert "tomatoes" in done["tags"]
    assert (done["embedding_dimension"], done["embedding_model"]) == (256, "wordllama-l2-supercat-256")
    thumbnail = await system.http.get(done["thumbnail"])
    assert (thumbnail.status_code, thumbnail.headers["content-type"]) == (200, "image/jpeg")
    assert thumbnail.content.startswith(b"\xff\xd8")
    [row] = await system.fetch("select thumbnail, message_id from clipnest_videos")
    assert row["thumbnail"] == f"{ann.id}/clips/{clip['id']}/thumbnail.jpg"


async def test_sound_without_captions_is_transcribed(
    system: ClipsHarness, site: MediaSite, tmp_path: Path
) -> None:
    speech = await LocalSpeechProvider().synthesize_speech(
        "The weather is fine today. We go to the river.", "en", account=UsageAccount()
    )
    (tmp_path / "speech.mp3").write_bytes(speech.mp3)
    subprocess.run(
        [str(find_ffmpeg()), "-v", "error", "-f", "lavfi", "-i", "testsrc=s=160x120:r=5", "-i",
         str(tmp_path / "speech.mp3"), "-shortest", "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt",
         "yuv420p", str(tmp_path / "talk.mp4")],
        check=True,
    )  # fmt: skip
    url = site.add("/My%20talk.mp4", "video/mp4", (tmp_path / "talk.mp4").read_bytes())
    ann = system.create_user()
    clip = await system.add(ann, url)
    async with system.run_clip_worker(**LOCAL, clips_sources="captions,speech"):
        done = await system.wait_for(ann, clip["id"], "done")
    assert (done["title"], done["transcript_by"]) == ("My talk", "pocketsphinx")
    assert done["transcript"]
    assert "wrong" in done["notice"] or "language model" in done["notice"]
    assert done["duration_s"] > 2
    assert done["thumbnail"] is not None  # a picture of the video


async def test_music_only_and_missing_videos(system: ClipsHarness, site: MediaSite, tmp_path: Path) -> None:
    film = make_mp4(tmp_path / "silent.mp4", 2, "160x120", "-an")
    silent = site.add("/silent.mp4", "video/mp4", film.read_bytes())
    gone = site.fail("/gone.mp4", 404)
    private = f"http://127.0.0.1:{site.canary.port}/secret.mp4"
    ann = system.create_user()
    added = [await system.add(ann, url) for url in (silent, gone, private)]
    async with system.run_clip_worker(
        **LOCAL, clips_sources="captions,speech", egress_allow=site.server.authority
    ):
        done = await system.wait_for(ann, added[0]["id"], "done")
        missing = await system.wait_for(ann, added[1]["id"], "failed")
        refused = await system.wait_for(ann, added[2]["id"], "failed")
    assert (done["transcript"], done["summary"], done["title"]) == (None, None, "silent")
    assert "Nothing is said" in done["notice"]
    assert "does not exist" in missing["processing_error"]
    assert "secret" not in refused["processing_error"]
    assert site.canary.requests == []
