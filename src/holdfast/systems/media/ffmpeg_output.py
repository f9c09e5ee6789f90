"""Read facts about a file from what ffmpeg writes about it.

ffmpeg indents the values of tags and replaces line breaks in them, so a tag cannot pretend to be a stream.
"""

from __future__ import annotations

import re

from holdfast.systems.media.contracts import MediaInfo

DURATION = re.compile(r"^  Duration: (\d+):(\d\d):(\d\d(?:\.\d+)?),", re.MULTILINE)
STREAM = re.compile(r"^  Stream #0:\d+\S*: (Video|Audio): (.+)$", re.MULTILINE)
SIZE = re.compile(r", (\d{1,6})x(\d{1,6})(?=[ ,]|$)")
ROTATION = re.compile(r"^[ \t]+displaymatrix: rotation of (-?\d+)", re.MULTILINE)
CONTAINERS = {"mov": "mp4", "png_pipe": "png", "jpeg_pipe": "jpeg", "webp_pipe": "webp"}
WEB_VIDEO = {"mp4": {"h264", "av1"}, "webm": {"vp8", "vp9", "av1"}, "ogg": {"theora"}}
WEB_AUDIO = {
    "mp4": {"aac", "mp3", "opus", "flac"},
    "webm": {"opus", "vorbis"},
    "ogg": {"opus", "vorbis", "flac"},
    "mp3": {"mp3"},
    "aac": {"aac"},
    "flac": {"flac"},
    "wav": {"pcm_s16le", "pcm_u8", "pcm_f32le"},
}
WEB_IMAGES = {"png", "jpeg", "webp", "gif"}
# Browsers decode eight bits and halved colours only.
WEB_PIXEL_FORMATS = ("yuv420p(", "yuv420p,", "yuvj420p(", "yuvj420p,")


def parse_media_info(log: str, file_format: str, measured_s: float | None, is_webm: bool) -> MediaInfo | None:
    """Return the facts in the log of ffmpeg, or None if there is no stream of pictures or sound."""
    log = log.partition("\nOutput #0")[0]
    streams = STREAM.findall(log)
    video = next((text for kind, text in streams if kind == "Video" and "(attached pic)" not in text), None)
    audio = next((text for kind, text in streams if kind == "Audio"), None)
    if video is None and audio is None:
        return None
    width, height = _parse_size(video, log)
    container = "webm" if is_webm else CONTAINERS.get(file_format, file_format)
    video_codec, audio_codec = (re.match(r"\w+", text) if text else None for text in (video, audio))
    return MediaInfo(
        container=container,
        duration_s=None if container in WEB_IMAGES - {"gif"} else parse_duration(log) or measured_s,
        width=width,
        height=height,
        video_codec=video_codec[0] if video_codec else None,
        audio_codec=audio_codec[0] if audio_codec else None,
        web_playable=_is_web_playable(container, video, audio),
    )


def parse_duration(log: str) -> float | None:
    """Return the seconds that the file says it lasts."""
    match = DURATION.search(log)
    return int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3]) if match else None


def _parse_size(video: str | None, log: str) -> tuple[int | None, int | None]:
    match = SIZE.search(video) if video else None
    if match is None:
        return None, None
    width, height = int(match[1]), int(match[2])
    rotation = ROTATION.search(log)
    if rotation and abs(int(rotation[1])) % 180 == 90:
        return height, width
    return width, height


def _is_web_playable(container: str, video: str | None, audio: str | None) -> bool:
    if container in WEB_IMAGES:
        return True
    video_codec = video.split()[0].strip(",") if video else None
    audio_codec = audio.split()[0].strip(",") if audio else None
    if video is not None and (
        video_codec not in WEB_VIDEO.get(container, ())
        or not any(name in video for name in WEB_PIXEL_FORMATS)
    ):
        return False
    return audio_codec is None or audio_codec in WEB_AUDIO.get(container, ())
