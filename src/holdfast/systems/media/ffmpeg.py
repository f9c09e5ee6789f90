"""Facts, pictures, sound and conversions of media files, by ffmpeg in a process without rights.

The program is that of the setting `ffmpeg`, or the binary in the wheel imageio-ffmpeg. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast import load_settings
from holdfast.errors import RefusedError
from holdfast.systems.media.contracts import (
    MediaError,
    MediaInfo,
    ProgressCallback,
    ThumbnailStrip,
    WorkProgress,
)
from holdfast.systems.media.ffmpeg_formats import IMAGE_FORMATS, detect_format
from holdfast.systems.media.ffmpeg_output import parse_duration, parse_media_info
from holdfast.systems.sandbox.programs import ProgramCall, ProgramLimitError, ProgramLimits, run_program

PROBE_TIMEOUT_S = 300.0
PICTURE_TIMEOUT_S = 300.0
AUDIO_TIMEOUT_S = 3600.0
TRANSCODE_TIMEOUT_S = 4 * 3600.0
# A frame of 8K video has 33 million pixels.
MAX_FRAME_PIXELS = 36_000_000
MAX_PICTURE_BYTES = 20_000_000
MIN_OUTPUT_BYTES = 1_000_000_000
MAX_POSTER_SIDE, STRIP_FRAME_WIDTH, MAX_STRIP_FRAMES = 1280, 160, 20
# Longer files get a strip of key frames, which are found without decoding the rest.
MAX_FULLY_DECODED_S = 300.0
MAX_WEB_SIDE = 1920
# Sound and pictures of one file seldom end at exactly the same time.
MIN_COMPLETE_SHARE, INCOMPLETE_SLACK_S = 0.9, 2.0
LIMIT_MESSAGES = {
    "time": "The file takes too long to process.",
    "memory": "The file needs too much memory.",
    "bytes": "The converted file would be too large.",
}


@dataclass(frozen=True)
class FfmpegResult:
    """What a run left behind: its log, and the last time in seconds that it wrote."""

    log: str
    time_s: float | None


def find_ffmpeg() -> Path:
    """Return the path of ffmpeg. Raise RefusedError if the setting is wrong or the extra is missing."""
    path = load_settings().ffmpeg
    if path is not None:
        if not os.access(path, os.X_OK) or path.is_dir():
            raise RefusedError(
                f"The ffmpeg {str(path)!r} does not exist or is not executable.",
                fix="Correct HOLDFAST_FFMPEG.",
            )
        return path.absolute()
    package = importlib.util.find_spec("imageio_ffmpeg")
    folders = package.submodule_search_locations if package else None
    binaries = sorted(Path(folders[0], "binaries").glob("ffmpeg-*")) if folders else []
    if not binaries:
        raise RefusedError(
            "ffmpeg is not installed.",
            fix="pip install 'holdfast[media]', or set HOLDFAST_FFMPEG to its path.",
        )
    return binaries[0]


async def run_ffmpeg(
    path: Path,
    output: Sequence[str],
    folder: Path,
    *,
    timeout_s: float,
    before: Sequence[str] = (),
    max_output_bytes: int = MAX_PICTURE_BYTES,
    on_time: Callable[[float], None] | None = None,
) -> FfmpegResult:
    """Run ffmpeg on one file that lies in `folder`. `output` names files relative to the folder.

    Raise MediaError if the file is no media file, is damaged, or exceeds a limit.
    """
    program = find_ffmpeg()
    times: list[float] = []

    def read_line(line: str) -> None:
        name, _, value = line.partition("=")
        if name == "out_time_us" and value.lstrip("-").isdigit():
            times[:] = [max(0.0, int(value) / 1e6)]
            if on_time is not None:
                on_time(times[0])

    max_folder_bytes = measure_folder(folder) + 2 * max_output_bytes
    call = ProgramCall(
        command=[
            str(program), "-hide_banner", "-nostdin", "-nostats", "-progress", "pipe:1", "-y", *before,
            *build_input_arguments(path, folder), *output,
        ],
        folder=folder,
        readable=(str(program), str(program.resolve())),
        limits=ProgramLimits(
            timeout_s=timeout_s, max_file_bytes=max_output_bytes, max_folder_bytes=max_folder_bytes
        ),
    )  # fmt: skip
    try:
        exit_code, log = await run_program(call, read_line)
    except ProgramLimitError as error:
        message = LIMIT_MESSAGES.get(error.limit, "The file cannot be processed.")
        raise MediaError("too_large" if error.limit == "bytes" else "unsupported", message) from error
    if exit_code != 0:
        failure = MediaError("unsupported", "The file is damaged or incomplete.")
        failure.add_note(log[-2000:])
        raise failure
    return FfmpegResult(log, times[0] if times else None)


def measure_file(path: Path) -> int:
    """Return the bytes of a file."""
    return path.stat().st_size


def measure_folder(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(measure_file(path) for path in folder.iterdir() if path.is_file())


def build_input_arguments(path: Path, folder: Path) -> list[str]:
    """Return the arguments that open one file with exactly its own format, and nothing else."""
    file_format = detect_format(path)
    name = path.resolve().relative_to(folder.resolve())
    return [
        "-protocol_whitelist", "file,pipe", "-format_whitelist", file_format, "-f", file_format,
        "-max_pixels", str(MAX_FRAME_PIXELS), "-i", f"file:{name}",
    ]  # fmt: skip


async def probe_media(path: Path) -> MediaInfo:
    """Read the whole file once and return what it contains. Raise MediaError if it is damaged or no media."""
    file_format = detect_format(path)
    copy = ["-map", "0:v:0?", "-map", "0:a:0?", "-c", "copy", "-f", "null", "-"]
    result = await run_ffmpeg(path, copy, path.parent, timeout_s=PROBE_TIMEOUT_S)
    measured = result.time_s if file_format not in IMAGE_FORMATS else None
    info = parse_media_info(result.log, file_format, measured, _is_webm(path))
    if info is None:
        raise MediaError("unsupported", "The file has neither pictures nor sound.")
    declared = parse_duration(result.log)
    if declared and measured is not None and measured < declared * MIN_COMPLETE_SHARE - INCOMPLETE_SLACK_S:
        raise MediaError("unsupported", "The file is incomplete: its end is missing.")
    if (info.width or 0) * (info.height or 0) > MAX_FRAME_PIXELS:
        raise MediaError("unsupported", "The pictures in the file are too large.")
    return info


def _is_webm(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(64)
    return head.startswith(b"\x1a\x45\xdf\xa3") and b"webm" in head


async def make_poster(path: Path, info: MediaInfo, folder: Path) -> Path | None:
    """Save a picture of the file as JPEG. Return None for files without pictures."""
    if not info.has_video:
        return None
    target = folder / "poster.jpg"
    scale = f"thumbnail=50,scale='min({MAX_POSTER_SIDE},iw)':-2,format=yuvj420p"
    output = [
        "-map",
        "0:v:0",
        "-vf",
        scale,
        "-frames:v",
        "1",
        "-q:v",
        "4",
        "-update",
        "1",
        "-f",
        "image2",
        target.name,
    ]
    # The first pictures of a film are often black. A file that cannot be searched is read from its beginning.
    for start in (min(10.0, (info.duration_s or 0) * 0.1), 0.0):
        before = ["-ss", f"{start:.3f}"] if start else []
        await run_ffmpeg(path, output, folder, timeout_s=PICTURE_TIMEOUT_S, before=before)
        if target.exists() and target.stat().st_size:
            return target
    return None


async def make_thumbnail_strip(path: Path, info: MediaInfo, folder: Path) -> ThumbnailStrip | None:
    """Save pictures from the whole length of the file in one JPEG. Return None for sound and still images."""
    if not info.has_video or not info.duration_s or not info.width or not info.height:
        return None
    count = max(1, min(MAX_STRIP_FRAMES, int(info.duration_s)))
    interval = info.duration_s / count
    height = max(2, min(STRIP_FRAME_WIDTH * 4, round(STRIP_FRAME_WIDTH * info.height / info.width / 2) * 2))
    target = folder / "thumbnails.jpg"
    scale = f"scale={STRIP_FRAME_WIDTH}:{height},setsar=1,tile={count}x1,format=yuvj420p"
    filters = f"fps=1/{interval:.6f}:start_time=0,{scale}"
    before = ["-skip_frame", "nokey"] if info.duration_s > MAX_FULLY_DECODED_S else []
    output = [
        "-map",
        "0:v:0",
        "-vf",
        filters,
        "-frames:v",
        "1",
        "-q:v",
        "5",
        "-update",
        "1",
        "-f",
        "image2",
        target.name,
    ]
    await run_ffmpeg(path, output, folder, timeout_s=PICTURE_TIMEOUT_S, before=before)
    if not target.exists():
        return None
    return ThumbnailStrip(
        path=target, count=count, interval_s=interval, width=STRIP_FRAME_WIDTH, height=height
    )


async def extract_audio(path: Path, info: MediaInfo, folder: Path) -> Path | None:
    """Save the sound track as M4A. Return None for files without sound."""
    if not info.has_audio:
        return None
    target = folder / "audio.m4a"
    codec = ["copy"] if info.audio_codec == "aac" else ["aac", "-b:a", "128k", "-ac", "2"]
    output = ["-map", "0:a:0", "-vn", "-c:a", *codec, "-map_metadata", "-1", "-f", "ipod", target.name]
    limit = max(MIN_OUTPUT_BYTES, measure_file(path))
    await run_ffmpeg(path, output, folder, timeout_s=AUDIO_TIMEOUT_S, max_output_bytes=limit)
    return target


async def transcode_for_web(
    path: Path, info: MediaInfo, folder: Path, *, on_progress: ProgressCallback | None = None
) -> Path:
    """Convert to H.264 and AAC in MP4, which every browser plays. Tracks that fit already are copied."""
    target = folder / "web.mp4"
    scale = (
        f"scale='min({MAX_WEB_SIDE},iw)':'min({MAX_WEB_SIDE},ih)':force_original_aspect_ratio=decrease"
        ":force_divisible_by=2,format=yuv420p"
    )
    video = ["-c:v", "libx264", "-preset", "veryfast", "-crf", "23", "-vf", scale, "-threads", "2"]
    audio = ["-c:a", "copy"] if info.audio_codec == "aac" else ["-c:a", "aac", "-b:a", "128k", "-ac", "2"]
    output = [
        "-map", "0:v:0?", "-map", "0:a:0?", *video, *audio, "-map_metadata", "-1", "-sn", "-dn",
        "-movflags", "+faststart", "-f", "mp4", target.name,
    ]  # fmt: skip

    def report(time_s: float) -> None:
        if on_progress is not None:
            on_progress(WorkProgress(done=time_s, total=info.duration_s))

    limit = max(MIN_OUTPUT_BYTES, 4 * measure_file(path))
    await run_ffmpeg(
        path, output, folder, timeout_s=TRANSCODE_TIMEOUT_S, max_output_bytes=limit, on_time=report
    )
    return target


async def join_tracks(paths: Sequence[Path], folder: Path) -> Path:
    """Join pictures and sound that were downloaded separately into one file, without converting them."""
    first, *others = paths
    formats = {"webm" if _is_webm(path) else detect_format(path) for path in paths}
    container = "mp4" if formats == {"mov"} else "webm" if formats == {"webm"} else "matroska"
    target = folder / f"joined.{container}"
    output: list[str] = []
    for path in others:
        output += build_input_arguments(path, folder)
    maps = [argument for number in range(len(paths)) for argument in ("-map", str(number))]
    output += [*maps, "-c", "copy", "-map_metadata", "-1", "-f", container, target.name]
    limit = 2 * sum(map(measure_file, paths)) + MAX_PICTURE_BYTES
    await run_ffmpeg(first, output, folder, timeout_s=AUDIO_TIMEOUT_S, max_output_bytes=limit)
    return target
