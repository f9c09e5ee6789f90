"""Downloads with yt-dlp from local pages and manifests, and sites that want to reach private addresses."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from media_site import MediaSite, run_media_site
from process_tree import is_running
from sample_media import make_mp4

from holdfast.systems.capture.chromium_launcher import find_descendants
from holdfast.systems.media.contracts import FetchedMedia, FetchLimits, MediaError, WorkProgress
from holdfast.systems.media.ffmpeg import find_ffmpeg, probe_media
from holdfast.systems.media.ytdlp import fetch_with_ytdlp
from holdfast.testing import wait_until

LIMITS = FetchLimits(max_bytes=5_000_000, max_duration_s=600, timeout_s=300)
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
async def site() -> AsyncGenerator[MediaSite]:
    async with run_media_site() as site:
        yield site


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "attempt"
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mp4(tmp_path_factory.mktemp("film") / "film.mp4", 4, "160x120", "-g", "10")


async def fetch(site: MediaSite, url: str, folder: Path, limits: FetchLimits = LIMITS) -> FetchedMedia:
    return await fetch_with_ytdlp(url, folder, limits=limits, policy=site.policy)


async def refuse(site: MediaSite, url: str, folder: Path, limits: FetchLimits = LIMITS) -> MediaError:
    with pytest.raises(MediaError) as caught:
        await fetch(site, url, folder, limits)
    assert site.server.authority not in caught.value.message
    return caught.value


def add_stream(site: MediaSite, film: Path, kind: str) -> str:
    """Cut a film into the segments of an HLS playlist or a DASH manifest, and add them to the site."""
    work = film.parent / kind
    work.mkdir(exist_ok=True)
    name = "index.m3u8" if kind == "hls" else "index.mpd"
    options = ["-hls_time", "1", "-hls_list_size", "0"] if kind == "hls" else ["-seg_duration", "1"]
    command = [
        str(find_ffmpeg()),
        "-v",
        "error",
        "-y",
        "-i",
        str(film),
        "-c",
        "copy",
        *options,
        "-f",
        kind,
        name,
    ]
    subprocess.run(command, check=True, cwd=work, stdin=subprocess.DEVNULL)
    for path in work.iterdir():
        types = {".m3u8": "application/vnd.apple.mpegurl", ".mpd": "application/dash+xml"}
        site.add(f"/{kind}/{path.name}", types.get(path.suffix, "video/mp2t"), path.read_bytes())
    return f"{site.server.url}/{kind}/{name}"


async def test_a_page_with_a_film(site: MediaSite, film: Path, folder: Path) -> None:
    site.add("/film.mp4", "video/mp4", film.read_bytes())
    title = "../../etc/passwd\x07 <b>&amp; a film"
    url = site.add("/page", "text/html", f"<title>{title}</title><video src='/film.mp4'></video>")
    progress: list[WorkProgress] = []
    media = await fetch_with_ytdlp(
        url, folder, limits=LIMITS, policy=site.policy, on_progress=progress.append
    )
    assert media.path == folder / "media"
    assert media.path.read_bytes() == film.read_bytes()
    assert [path.name for path in folder.iterdir()] == ["media"]
    assert media.title is not None
    assert media.title.isprintable()
    assert progress[-1] == WorkProgress(done=film.stat().st_size, total=film.stat().st_size)


@pytest.mark.parametrize("kind", ["hls", "dash"])
async def test_segments_become_one_file(site: MediaSite, film: Path, folder: Path, kind: str) -> None:
    media = await fetch(site, add_stream(site, film, kind), folder)
    info = await probe_media(media.path)
    assert (info.video_codec, info.audio_codec) == ("h264", "aac")
    assert info.duration_s == pytest.approx(4, abs=0.5)


@pytest.mark.parametrize("kind", ["hls", "dash"])
@pytest.mark.parametrize("how", ["redirect", "reference"])
async def test_segments_do_not_reach_private_addresses(
    site: MediaSite, film: Path, folder: Path, kind: str, how: str
) -> None:
    url = add_stream(site, film, kind)
    path = "/hls/index1.ts" if kind == "hls" else "/dash/chunk-stream0-00002.m4s"
    if how == "redirect":
        site.fail(path, 302, Location=f"{site.canary.url}/segment")
    else:
        manifest = "/hls/index.m3u8" if kind == "hls" else "/dash/index.mpd"
        content_type, body = site.pages[manifest]
        target = f"{site.canary.url}/{path.rpartition('/')[2]}".encode()
        if kind == "hls":
            body = body.replace(b"index1.ts", target)
        else:
            body = body.replace(b"<Period", f"<BaseURL>{site.canary.url}/</BaseURL><Period".encode(), 1)
        site.add(manifest, content_type, body)
    error = await refuse(site, url, folder)
    assert (error.kind, site.canary.connections) == ("private", 0)


@pytest.mark.parametrize(
    "page",
    [
        "<video src='{canary}/film.mp4'></video>",
        "<meta http-equiv='refresh' content='0;url={canary}/film.mp4'>",
        "<video src='file:///etc/passwd'></video>",
        "<video src='ftp://{authority}/film.mp4'></video>",
    ],
)
async def test_pages_do_not_reach_private_addresses(site: MediaSite, folder: Path, page: str) -> None:
    body = page.format(canary=site.canary.url, authority=site.canary.authority)
    error = await refuse(site, site.add("/page", "text/html", body), folder)
    assert not error.retryable
    assert site.canary.connections == 0
    assert not list(folder.iterdir())


async def test_a_playlist_is_capped_and_says_so(site: MediaSite, film: Path, folder: Path) -> None:
    site.add("/film.mp4", "video/mp4", film.read_bytes())
    items = "".join(
        f"<item><title>Film {number}</title><link>{site.server.url}/film.mp4?{number}</link></item>"
        for number in range(1000)
    )
    feed = f'<?xml version="1.0"?><rss version="2.0"><channel><title>Feed</title>{items}</channel></rss>'
    media = await fetch(site, site.add("/feed", "application/rss+xml", feed), folder)
    assert media.notice is not None
    assert "1,000 items" in media.notice
    assert len([request for request in site.server.requests if "film" in request.target]) <= 3


async def test_a_live_stream_is_refused(site: MediaSite, film: Path, folder: Path) -> None:
    url = add_stream(site, film, "hls")
    content_type, body = site.pages["/hls/index.m3u8"]
    site.add("/hls/index.m3u8", content_type, body.replace(b"#EXT-X-ENDLIST", b"").replace(b"VOD", b"EVENT"))
    error = await refuse(site, url, folder)
    assert (error.kind, "Live" in error.message) == ("unsupported", True)


@pytest.mark.parametrize(
    ("status", "headers", "kind", "retry_after"),
    [
        (404, {}, "not_found", None),
        (403, {}, "private", None),
        (429, {"Retry_After": "120"}, "rate_limited", timedelta(seconds=120)),
        (503, {}, "network", None),
    ],
)
async def test_statuses_are_told_apart(
    site: MediaSite,
    folder: Path,
    status: int,
    headers: dict[str, str],
    kind: str,
    retry_after: timedelta | None,
) -> None:
    error = await refuse(site, site.fail("/page", status, **headers), folder)
    assert (error.kind, error.retry_after) == (kind, retry_after)


async def test_a_page_without_media_is_refused(site: MediaSite, folder: Path) -> None:
    url = site.add("/page", "text/html", "<title>News</title><p>Nothing to see.")
    assert (await refuse(site, url, folder)).kind == "unsupported"


async def test_the_quota_holds_while_the_download_runs(site: MediaSite, film: Path, folder: Path) -> None:
    """The segments are small. Together they are larger than the limit."""
    url = add_stream(site, film, "hls")
    limits = FetchLimits(max_bytes=film.stat().st_size // 2, max_duration_s=600, timeout_s=300)
    error = await refuse(site, url, folder, limits)
    assert error.kind == "too_large"


async def test_a_killed_program_is_told_to_the_user(site: MediaSite, folder: Path) -> None:
    """The system kills programs when memory is short. That is not the fault of the site."""

    async def stall(*_: object) -> None:
        await asyncio.sleep(300)

    site.server.responder = stall
    download = asyncio.create_task(refuse(site, f"{site.server.url}/film.mp4", folder))
    await wait_until(lambda: site.server.requests, within=timedelta(seconds=120))
    pids = find_descendants(os.getpid())
    launcher = next(pid for pid in pids if find_descendants(pid))
    [program] = find_descendants(launcher)
    os.kill(program, signal.SIGKILL)
    error = await download
    assert (error.kind, error.retryable) == ("interrupted", True)
    assert error.message == "The download was interrupted on our side. Try again."
    await wait_until(lambda: not [pid for pid in (program, launcher) if is_running(pid)])


async def test_a_cancelled_download_leaves_no_process(site: MediaSite, folder: Path) -> None:
    async def stall(*_: object) -> None:
        await asyncio.sleep(300)

    site.server.responder = stall
    download = asyncio.create_task(fetch(site, f"{site.server.url}/film.mp4", folder))
    await wait_until(lambda: site.server.requests, within=timedelta(seconds=120))
    pids = find_descendants(os.getpid())
    assert len(pids) >= 2
    download.cancel()
    with pytest.raises(asyncio.CancelledError):
        await download
    assert not [pid for pid in pids if is_running(pid)]
