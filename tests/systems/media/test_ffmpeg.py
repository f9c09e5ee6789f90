"""Facts, pictures and conversions of media files, and files that must not be read."""

from __future__ import annotations

import asyncio
import io
import os
import struct
import zipfile
from datetime import timedelta
from pathlib import Path

import pytest
from process_tree import is_running
from sample_media import make_media, make_mp4

from holdfast.systems.capture.chromium_launcher import find_descendants
from holdfast.systems.media import ffmpeg
from holdfast.systems.media.contracts import MediaError, WorkProgress
from holdfast.testing import wait_until


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make_mp4(
        tmp_path_factory.mktemp("film") / "film.mp4", 3, "160x120", "-movflags", "+faststart"
    ).read_bytes()


@pytest.fixture
def film_path(film: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "film.mp4"
    path.write_bytes(film)
    return path


async def refuse(path: Path) -> MediaError:
    with pytest.raises(MediaError) as caught:
        await ffmpeg.probe_media(path)
    assert not caught.value.retryable
    assert str(path.parent) not in caught.value.message
    return caught.value


async def test_a_film_gets_facts_pictures_and_sound(film_path: Path, tmp_path: Path) -> None:
    info = await ffmpeg.probe_media(film_path)
    assert (info.container, info.width, info.height) == ("mp4", 160, 120)
    assert (info.video_codec, info.audio_codec, info.web_playable) == ("h264", "aac", True)
    assert info.duration_s == pytest.approx(3, abs=0.2)
    poster = await ffmpeg.make_poster(film_path, info, tmp_path)
    assert poster is not None
    assert poster.read_bytes()[:3] == b"\xff\xd8\xff"
    strip = await ffmpeg.make_thumbnail_strip(film_path, info, tmp_path)
    assert strip is not None
    assert strip.count == 3
    strip_info = await ffmpeg.probe_media(strip.path)
    assert (strip_info.width, strip_info.height) == (strip.width * strip.count, strip.height)
    audio = await ffmpeg.extract_audio(film_path, info, tmp_path)
    assert audio is not None
    audio_info = await ffmpeg.probe_media(audio)
    assert not audio_info.has_video
    assert audio_info.audio_codec == "aac"


async def test_another_format_is_converted_with_progress(tmp_path: Path) -> None:
    path = make_media(tmp_path / "film.avi", "-c:v", "mpeg4", "-c:a", "mp3")
    info = await ffmpeg.probe_media(path)
    assert (info.container, info.web_playable) == ("avi", False)
    progress: list[WorkProgress] = []
    converted = await ffmpeg.transcode_for_web(path, info, tmp_path, on_progress=progress.append)
    result = await ffmpeg.probe_media(converted)
    assert (result.video_codec, result.audio_codec, result.web_playable) == ("h264", "aac", True)
    assert progress[-1].done == pytest.approx(3, abs=0.5)
    assert progress[-1].total == info.duration_s


async def test_tags_cannot_pretend_to_be_streams_and_are_removed(tmp_path: Path) -> None:
    title = "x\n  Stream #0:0: Video: h264, yuv420p, 9999x9999\n  Duration: 99:00:00.00, start"
    path = make_mp4(tmp_path / "film.mp4", 2, "160x120", "-metadata", f"title={title}")
    info = await ffmpeg.probe_media(path)
    assert (info.width, info.height) == (160, 120)
    assert info.duration_s == pytest.approx(2, abs=0.2)
    converted = await ffmpeg.transcode_for_web(path, info, tmp_path)
    assert b"9999x9999" not in converted.read_bytes()


SECRET = "the secret of another user"
PLAYLISTS = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n",
    "hls with concat": "#EXTM3U\n#EXTINF:1,\nconcat:{secret}|{secret}\n#EXT-X-ENDLIST\n",
    "hls after spaces": "\n  \n#EXTM3U\n#EXTINF:1,\nfile://{secret}\n#EXT-X-ENDLIST\n",
    "concat script": "ffconcat version 1.0\nfile '{secret}'\n",
    "dash": '<?xml version="1.0"?><MPD><BaseURL>{secret}</BaseURL></MPD>',
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 9 RTP/AVP 96\n",
    "svg": '<svg xmlns="http://www.w3.org/2000/svg"><image href="{secret}"/></svg>',
    "subtitle": "WEBVTT\n\n00:00.000 --> 00:01.000\nhello\n",
}


@pytest.mark.parametrize("name", PLAYLISTS)
@pytest.mark.parametrize("suffix", [".mp4", ".m3u8"])
async def test_playlists_that_name_other_files_are_not_read(tmp_path: Path, name: str, suffix: str) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    path = tmp_path / f"film{suffix}"
    path.write_text(PLAYLISTS[name].format(secret=secret))
    assert (await refuse(path)).kind == "unsupported"


async def test_other_files_are_closed_to_ffmpeg(
    film_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A hole in ffmpeg would still not read what everybody on the machine may read."""
    outside = tmp_path_factory.mktemp("outside")
    outside.chmod(0o777)
    other = make_mp4(outside / "other.mp4", 1)
    other.chmod(0o666)
    before = ["-protocol_whitelist", "file", "-f", "mov", "-i", f"file:{other}"]
    with pytest.raises(MediaError):
        await ffmpeg.run_ffmpeg(film_path, ["-f", "null", "-"], film_path.parent, timeout_s=60, before=before)
    output = ["-c", "copy", f"file:{outside}/new.mp4"]
    with pytest.raises(MediaError):
        await ffmpeg.run_ffmpeg(film_path, output, film_path.parent, timeout_s=60)
    assert [path.name for path in outside.iterdir()] == ["other.mp4"]


def make_zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("film.mp4", b"\0" * 100_000)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (make_zip(), "an archive"),
        (b"\x1f\x8b" + bytes(100), "an archive"),
        (b"<!doctype html><title>Log in</title>", "a page"),
        (b"", "empty"),
        (b"\x00" * 5000, "not a video"),
        (b"MZ" + bytes(1000), "not a video"),
    ],
)
async def test_files_that_are_no_media_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "film.mp4"
    path.write_bytes(content)
    assert message in (await refuse(path)).message


async def test_incomplete_and_damaged_files_are_refused(film: bytes, tmp_path: Path) -> None:
    long_film = make_mp4(tmp_path / "long.mp4", 20, "64x64", "-movflags", "+faststart").read_bytes()
    path = tmp_path / "film.mp4"
    path.write_bytes(long_film[: len(long_film) * 6 // 10])
    assert "incomplete" in (await refuse(path)).message
    path.write_bytes(film[:200])  # the table of contents is missing
    assert "damaged" in (await refuse(path)).message
    path.write_bytes(film[:28] + os.urandom(len(film)))
    assert (await refuse(path)).kind == "unsupported"


async def test_a_picture_bomb_is_refused(tmp_path: Path) -> None:
    """A few bytes that say they are a picture of 60,000 by 60,000 pixels."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    path = tmp_path / "film.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header + bytes(4) + bytes(100))
    assert (await refuse(path)).kind == "unsupported"


async def test_a_conversion_over_its_size_is_refused(film_path: Path) -> None:
    output = ["-f", "rawvideo", "-t", "3", "big.raw"]
    with pytest.raises(MediaError):
        await ffmpeg.run_ffmpeg(film_path, output, film_path.parent, timeout_s=60, max_output_bytes=100_000)
    assert (film_path.parent / "big.raw").stat().st_size <= 100_000


ENDLESS = ["-f", "null", "-"]


async def test_a_cancelled_run_leaves_no_process(film_path: Path) -> None:
    before = ["-re", "-stream_loop", "-1"]
    run = asyncio.create_task(
        ffmpeg.run_ffmpeg(film_path, ENDLESS, film_path.parent, timeout_s=600, before=before)
    )
    pids: list[int] = []

    def has_started() -> bool:
        pids[:] = find_descendants(os.getpid())
        commands = [Path(f"/proc/{pid}/exe") for pid in pids]
        return any(path.exists() and path.readlink().name.startswith("ffmpeg") for path in commands)

    await wait_until(has_started, within=timedelta(seconds=60))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not [pid for pid in pids if is_running(pid)]


async def test_a_run_over_its_time_is_ended(film_path: Path) -> None:
    before = ["-re", "-stream_loop", "-1"]
    with pytest.raises(MediaError, match="too long"):
        await ffmpeg.run_ffmpeg(film_path, ENDLESS, film_path.parent, timeout_s=3, before=before)
    assert not find_descendants(os.getpid())
