"""Download from video sites and pages with yt-dlp, in a process without rights behind the guarded proxy."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.egress import EgressPolicy, GuardedProxy, ProxyLimits
from holdfast.systems.media.contracts import (
    FetchedMedia,
    FetchLimits,
    MediaError,
    ProgressCallback,
    WorkProgress,
)
from holdfast.systems.media.ffmpeg import join_tracks
from holdfast.systems.media.ffmpeg_formats import detect_format
from holdfast.systems.media.ytdlp_errors import build_media_error, build_size_error
from holdfast.systems.sandbox.programs import (
    ProgramCall,
    ProgramKilledError,
    ProgramLimitError,
    ProgramLimits,
    run_program,
)

PROCESS_MODULE = "holdfast.systems.sandbox.ytdlp_process"
DESCRIBE_MODULE = "holdfast.systems.sandbox.ytdlp_describe_process"
AUDIO_FORMAT = "ba/wa*/w/b"
MAX_MEMORY_BYTES = 400 * 1024 * 1024
MAX_CONNECTIONS = 16
INTERRUPTED_MESSAGE = "The download was interrupted on our side. Try again."
# Pages, manifests and repeated fragments come on top of the file.
EXTRA_TRANSFER_BYTES = 50_000_000
CONTENT_TYPES = {
    "mov": "video/mp4",
    "matroska": "video/x-matroska",
    "avi": "video/x-msvideo",
    "flv": "video/x-flv",
    "ogg": "video/ogg",
    "mpegts": "video/mp2t",
    "mp3": "audio/mpeg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "png_pipe": "image/png",
    "jpeg_pipe": "image/jpeg",
    "webp_pipe": "image/webp",
    "gif": "image/gif",
}


async def fetch_with_ytdlp(
    url: str,
    folder: Path,
    *,
    limits: FetchLimits,
    policy: EgressPolicy | None = None,
    on_progress: ProgressCallback | None = None,
    audio_only: bool = False,
) -> FetchedMedia:
    """Download what a page or a manifest shows into `folder`. Of a playlist, the first item is downloaded.

    With `audio_only`, the sound is downloaded, or the smallest file if the site has no separate sound. Raise
    MediaError if there is nothing to download, a limit is exceeded, or the site refuses.
    """
    request = {"format": AUDIO_FORMAT} if audio_only else {}
    message = await _ask_process(PROCESS_MODULE, url, folder, limits, policy, request, on_progress)
    with _translate_killed_programs():
        return await _collect_result(message["result"], folder, limits)


async def describe_with_ytdlp(
    url: str, folder: Path, *, limits: FetchLimits, policy: EgressPolicy | None = None
) -> dict[str, Any]:
    """Return what a page says about its video. Captions are in the file `captions` of the folder.

    The keys are title, author, description, thumbnail, duration, language, captions_language and
    captions_automatic. Raise MediaError as `fetch_with_ytdlp` does.
    """
    message = await _ask_process(DESCRIBE_MODULE, url, folder, limits, policy, {}, None)
    result: dict[str, Any] = message["result"]
    return result


async def _ask_process(
    module: str,
    url: str,
    folder: Path,
    limits: FetchLimits,
    policy: EgressPolicy | None,
    options: dict[str, Any],
    on_progress: ProgressCallback | None,
) -> dict[str, Any]:
    """Run a program with yt-dlp behind the guarded proxy. Return its result, or raise MediaError."""
    proxy_limits = ProxyLimits(
        max_connections=MAX_CONNECTIONS,
        max_bytes=limits.max_bytes + limits.max_bytes // 10 + EXTRA_TRANSFER_BYTES,
        lifetime=timedelta(seconds=limits.timeout_s + 10),
    )
    policy = replace(policy or EgressPolicy.from_settings(), content_types=frozenset())
    async with GuardedProxy(policy, proxy_limits) as proxy:
        request = {
            "url": url,
            "proxy": proxy.url,
            "max_bytes": limits.max_bytes,
            "max_duration_s": limits.max_duration_s,
            **options,
        }
        message = await _run_process(module, request, folder, limits, proxy.port, on_progress)
        if "result" not in message:
            raise build_media_error(message.get("error") or {}, proxy.refusals, limits)
    return message


async def _run_process(
    module: str,
    request: dict[str, Any],
    folder: Path,
    limits: FetchLimits,
    proxy_port: int,
    on_progress: ProgressCallback | None,
) -> dict[str, Any]:
    """Run the child process. Return its last message, the result or the error."""
    last: dict[str, Any] = {}

    def read_line(line: str) -> None:
        message = json.loads(line)
        if "progress" not in message:
            last.update(message)
        elif on_progress is not None:
            progress = message["progress"]
            on_progress(WorkProgress(done=progress["done"], total=progress["total"]))

    call = ProgramCall(
        command=[module],
        folder=folder,
        request=json.dumps(request).encode(),
        proxy_port=proxy_port,
        limits=ProgramLimits(
            timeout_s=limits.timeout_s,
            max_file_bytes=limits.max_bytes + 1,
            max_folder_bytes=limits.max_bytes,
            max_memory_bytes=MAX_MEMORY_BYTES,
        ),
    )
    try:
        with _translate_killed_programs():
            _, log = await run_program(call, read_line)
    except ProgramLimitError as error:
        raise _build_limit_error(error, limits) from error
    except (ValueError, KeyError, TypeError) as error:
        raise MediaError("unsupported", "The link cannot be downloaded.") from error
    if not last:
        failure = MediaError("network", "The download ended unexpectedly.")
        failure.add_note(log[-2000:])
        raise failure
    return last


@contextmanager
def _translate_killed_programs() -> Generator[None]:
    """Raise MediaError if somebody else killed the program, such as the system when memory is short."""
    try:
        yield
    except ProgramKilledError as error:
        raise MediaError("interrupted", INTERRUPTED_MESSAGE) from error


def _build_limit_error(error: ProgramLimitError, limits: FetchLimits) -> MediaError:
    if error.limit == "bytes":
        return build_size_error(limits)
    if error.limit == "time":
        return MediaError("network", "The download took too long.")
    return MediaError("unsupported", "The link cannot be downloaded.")


async def _collect_result(result: dict[str, Any], folder: Path, limits: FetchLimits) -> FetchedMedia:
    """Find the downloaded files, join picture and sound, and name the result ourselves."""
    paths = [folder / Path(str(name)).name for name in result["files"]]
    if not paths or not all(path.is_file() and not path.is_symlink() for path in paths):
        raise MediaError("unsupported", "The link has no media that can be downloaded.")
    path = paths[0] if len(paths) == 1 else await join_tracks(paths, folder)
    for part in paths:
        if part != path:
            part.unlink()
    file_format = detect_format(path)
    count = result.get("playlist_count")
    return FetchedMedia(
        path=path.rename(folder / "media"),
        content_type=CONTENT_TYPES.get(file_format, "application/octet-stream"),
        title=result.get("title"),
        author=result.get("author"),
        duration_s=result.get("duration"),
        platform=result.get("platform"),
        notice=f"The playlist has {count:,} items; only the first was saved."
        if count and count > 1
        else None,
    )
