"""The program that asks yt-dlp what a page says about its video, and fetches captions without the video.

    python -m holdfast.systems.sandbox.ytdlp_describe_process NAME=VALUE ... --

It writes one JSON object: `{"result": {...}}` or `{"error": {...}}`. The captions are a file in its folder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from holdfast.systems.sandbox.confinement import confine_process, open_standard_streams, parse_options
from holdfast.systems.sandbox.ytdlp_process import (
    Download,
    RefusedMediaError,
    clean_text,
    describe_error,
    forbid_programs,
    load_ytdlp,
    write_message,
)

CAPTIONS_FILE = "captions"
MAX_CAPTIONS_BYTES = 8 * 1024 * 1024
MAX_DESCRIPTION_CHARS = 5_000
FORMATS = ("vtt", "srt", "json3")  # that we can read, the best first
NUMBERING_READERS = {"Generic", "HTML5MediaEmbed"}
NOT_CAPTIONS = {"live_chat", "rechat", "danmaku", "comments"}


class Description(Download):
    """What yt-dlp knows about a video, and its captions."""

    def run(self, yt_dlp: Any) -> dict[str, Any]:
        parameters = {**self.build_parameters(), "skip_download": True, "ignore_no_formats_error": True}
        with yt_dlp.YoutubeDL(parameters, auto_init="no_verbose_header") as ydl:
            info, count = self.find_video(ydl)
            self._check_info(info)
            captions = self._fetch_captions(ydl, info)
        return {
            "title": clean_text(remove_item_number(info)),
            "author": clean_text(info.get("uploader") or info.get("channel") or info.get("creator")),
            "description": clean_text(info.get("description"), MAX_DESCRIPTION_CHARS),
            "thumbnail": info.get("thumbnail") if isinstance(info.get("thumbnail"), str) else None,
            "duration": info.get("duration"),
            "language": clean_text(info.get("language")),
            "platform": clean_text(info.get("extractor_key")),
            "playlist_count": count,
            **captions,
        }

    def _fetch_captions(self, ydl: Any, info: dict[str, Any]) -> dict[str, Any]:
        """Write the best captions into a file: those of a person before automatic ones."""
        for kind, is_automatic in (("subtitles", False), ("automatic_captions", True)):
            for language, entry in choose_captions(info.get(kind), info.get("language")):
                content = entry.get("data")
                if content is None:
                    try:
                        content = ydl.urlopen(entry["url"]).read(MAX_CAPTIONS_BYTES)
                    except Exception:  # noqa: S112  (the next track may work; speech is the last resort)
                        continue
                data = content if isinstance(content, bytes) else str(content).encode()
                Path(CAPTIONS_FILE).write_bytes(data)
                return {"captions_language": language, "captions_automatic": is_automatic}
        return {}


def remove_item_number(info: dict[str, Any]) -> Any:
    """Return the title without the number that yt-dlp adds to videos of pages that it has no reader for."""
    title: Any = info.get("title")
    is_numbered = isinstance(title, str) and info.get("extractor_key") in NUMBERING_READERS
    return title.removesuffix(" (1)") if is_numbered else title


def choose_captions(tracks: Any, language: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the tracks that can be read: in the language of the video, in English, then the others."""
    if not isinstance(tracks, dict):
        return []
    spoken = language.split("-")[0].lower() if isinstance(language, str) and language else None
    chosen: list[tuple[int, int, str, dict[str, Any]]] = []
    for code, entries in cast("dict[str, Any]", tracks).items():
        if code in NOT_CAPTIONS or not isinstance(entries, list):
            continue
        base = code.split("-")[0].lower()
        place = 0 if code.endswith("-orig") else 1 if base == spoken else 2 if base == "en" else 3
        for item in cast("Sequence[Any]", entries):
            entry = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
            extension = str(entry.get("ext"))
            if extension in FORMATS and (entry.get("url") or entry.get("data")):
                chosen.append((place, FORMATS.index(extension), code, entry))
    chosen.sort(key=lambda item: item[:3])
    return [(code, entry) for _, _, code, entry in chosen[:4]]


def main() -> None:
    options, _ = parse_options(sys.argv[1:])
    open_standard_streams()
    request = json.loads(sys.stdin.buffer.read())
    confine_process(options, is_python=True)
    yt_dlp = load_ytdlp()
    sys.addaudithook(forbid_programs)
    try:
        write_message(result=Description(request).run(yt_dlp))
    except RefusedMediaError as error:
        write_message(error={**describe_error(error), "reason": error.reason})
    except Exception as error:  # extractors raise anything for pages that they do not understand
        write_message(error=describe_error(error))


if __name__ == "__main__":
    main()
