"""The program that downloads with yt-dlp. It reads one request and writes one JSON object per line.

    python -m holdfast.systems.sandbox.ytdlp_process NAME=VALUE ... --

It writes `{"progress": {...}}` while it downloads, and at the end `{"result": {...}}` or `{"error": {...}}`.
yt-dlp gets no plugins, no configuration, no external downloader, no ffmpeg and no way to start a program. All
its connections go to the guarded proxy. File names are ours, and the texts of a site are only reported.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

from holdfast.systems.sandbox.confinement import confine_process, open_standard_streams, parse_options

PROGRESS_INTERVAL_S = 0.25
MAX_TEXT_CHARS = 500
FORBIDDEN_EVENTS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.forkpty",
    "pty.spawn",
    "os.spawn",
)
LIVE_STATUSES = {"is_live", "is_upcoming", "post_live"}


class RefusedMediaError(Exception):
    """The media is not downloaded. `reason` is a code that the worker translates for users."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def write_message(**message: Any) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def forbid_programs(event: str, _: object) -> None:
    if event in FORBIDDEN_EVENTS:
        raise PermissionError("No program may be started.")


class QuietLogger:
    """Drops what yt-dlp would print. Errors arrive as exceptions."""

    def debug(self, message: str) -> None: ...
    def warning(self, message: str) -> None: ...
    def error(self, message: str) -> None: ...


class Download:
    """One download: its limits, its progress and its result."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._max_bytes = int(request["max_bytes"])
        self._max_duration_s = float(request["max_duration_s"])
        self._url = str(request["url"])
        self._proxy = str(request["proxy"])
        self._format: str | None = request.get("format")
        self._finished_bytes = 0
        self._last_progress = 0.0

    def build_parameters(self) -> dict[str, Any]:
        return {
            "proxy": self._proxy,
            "quiet": True,
            "no_warnings": True,
            "noprogress": True,
            "logger": QuietLogger(),
            "color": "no_color",
            "outtmpl": {"default": "media.%(format_id)s.%(ext)s"},
            "restrictfilenames": True,
            "trim_file_name": 80,
            "paths": {"home": ".", "temp": "."},
            "format": self._format or "b[height<=1080]/(bv[height<=1080],ba)/b/(bv,ba)/bv*/ba",
            "ffmpeg_location": "/nonexistent",
            "hls_prefer_native": True,
            "external_downloader": {"default": "native"},
            "cachedir": False,
            "cookiefile": None,
            "usenetrc": False,
            "updatetime": False,
            "js_runtimes": {},
            "enable_file_urls": False,
            "noplaylist": True,
            "playlist_items": "1",
            "extract_flat": "in_playlist",
            "lazy_playlist": True,
            "postprocessors": [],
            "fixup": "never",
            "writesubtitles": False,
            "writethumbnail": False,
            "socket_timeout": 30,
            "retries": 3,
            "fragment_retries": 3,
            "extractor_retries": 1,
            "file_access_retries": 0,
            "skip_unavailable_fragments": False,
            "concurrent_fragment_downloads": 1,
            "progress_hooks": [self._report_progress],
        }

    def run(self, yt_dlp: Any) -> dict[str, Any]:
        with yt_dlp.YoutubeDL(self.build_parameters(), auto_init="no_verbose_header") as ydl:
            info, count = self.find_video(ydl)
            self._check_info(info)
            result = ydl.process_ie_result(info, download=True)
        return self._describe(result, count)

    def find_video(self, ydl: Any) -> tuple[dict[str, Any], int | None]:
        """Return what yt-dlp knows about the video, or the first of a playlist, and the number of items."""
        info = ydl.extract_info(self._url, download=False)
        count = None
        while info is not None and info.get("_type") in ("playlist", "multi_video"):
            count = max(count or 0, int(info.get("playlist_count") or 0)) or None
            entry = next((entry for entry in info.get("entries") or () if entry), None)
            if entry is None:
                raise RefusedMediaError("empty")
            is_reference = entry.get("_type") in ("url", "url_transparent")
            info = ydl.extract_info(entry["url"], download=False) if is_reference else entry
        if info is None:
            raise RefusedMediaError("empty")
        return info, count

    def _check_info(self, info: dict[str, Any]) -> None:
        if info.get("is_live") or info.get("live_status") in LIVE_STATUSES:
            raise RefusedMediaError("live")
        if (info.get("duration") or 0) > self._max_duration_s:
            raise RefusedMediaError("too_long")
        chosen = info.get("requested_formats") or [info]
        if sum(item.get("filesize") or 0 for item in chosen) > self._max_bytes:
            raise RefusedMediaError("too_large")

    def _report_progress(self, status: dict[str, Any]) -> None:
        earlier = self._finished_bytes
        done = earlier + (status.get("downloaded_bytes") or 0)
        total = status.get("total_bytes") or status.get("total_bytes_estimate")
        if done > self._max_bytes or (status.get("total_bytes") or 0) > self._max_bytes:
            raise RefusedMediaError("too_large")
        info: dict[str, Any] = status.get("info_dict") or {}
        if info.get("is_live"):
            raise RefusedMediaError("live")
        if status.get("status") == "finished":
            self._finished_bytes = done
        elif time.monotonic() - self._last_progress < PROGRESS_INTERVAL_S:
            return
        self._last_progress = time.monotonic()
        write_message(
            progress={
                "done": done,
                "total": total and earlier + total,
                "speed": status.get("speed"),
                "eta": status.get("eta"),
            }
        )

    def _describe(self, info: dict[str, Any], count: int | None) -> dict[str, Any]:
        # Pictures and sound that come separately are two downloads. The worker joins them.
        downloads: list[dict[str, Any]] = info.get("requested_downloads") or []
        names = [download.get("filepath") for download in downloads]
        return {
            "files": [os.path.basename(str(name)) for name in names],  # noqa: PTH119
            "title": clean_text(info.get("title")),
            "author": clean_text(info.get("uploader") or info.get("channel") or info.get("creator")),
            "duration": info.get("duration"),
            "platform": clean_text(info.get("extractor_key")),
            "playlist_count": count,
        }


def clean_text(value: object, max_chars: int = MAX_TEXT_CHARS) -> str | None:
    """Return a text of a site as one line without control characters."""
    if not isinstance(value, str):
        return None
    text = "".join(char if char.isprintable() else " " for char in value)
    return " ".join(text.split())[:max_chars] or None


def describe_error(error: BaseException) -> dict[str, Any]:
    """Find the HTTP status and the type of the error that yt-dlp wrapped."""
    details: dict[str, Any] = {"types": [], "text": str(error)[:2000], "status": None, "retry_after": None}
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        details["types"].append(type(current).__name__)
        if isinstance(current, RefusedMediaError):
            details["reason"] = current.reason
        status = getattr(current, "status", None)
        if isinstance(status, int) and details["status"] is None:
            details["status"] = status
            headers: Any = getattr(getattr(current, "response", None), "headers", None) or {}
            details["retry_after"] = headers.get("Retry-After")
        wrapped = getattr(current, "exc_info", None) or (None, None)
        pending += [wrapped[1], getattr(current, "cause", None), current.__cause__, current.__context__]
    return details


def load_ytdlp() -> Any:
    """Import yt-dlp without plugins and with one way to send requests, which uses the proxy."""
    # The library has no complete types.
    yt_dlp: Any = importlib.import_module("yt_dlp")
    library_globals: Any = importlib.import_module("yt_dlp.globals")
    networking: Any = importlib.import_module("yt_dlp.networking.common")
    library_globals.plugin_dirs.value = []
    handlers: dict[str, Any] = networking._REQUEST_HANDLERS
    for key in [key for key in handlers if key != "Urllib"]:
        del handlers[key]
    return yt_dlp


def main() -> None:
    options, _ = parse_options(sys.argv[1:])
    open_standard_streams()
    request = json.loads(sys.stdin.buffer.read())
    confine_process(options, is_python=True)
    yt_dlp = load_ytdlp()
    sys.addaudithook(forbid_programs)
    try:
        write_message(result=Download(request).run(yt_dlp))
    except Exception as error:  # extractors raise anything for pages that they do not understand
        write_message(error=describe_error(error))


if __name__ == "__main__":
    main()
