"""Read captions: WebVTT, SubRip and the JSON of YouTube, as parts with times in seconds."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec

Segment: TypeAlias = tuple[float, float, str]  # start, end, text
MAX_SEGMENTS: Final = 100_000
MAX_TIME_S: Final = 1e6
_TIME: Final = r"(?:(\d{1,3}):)?(\d{1,2}):(\d{1,2})[.,](\d{1,3})"
_CUE_TIMES: Final = re.compile(rf"^\s*{_TIME}\s*-->\s*{_TIME}")
_TAG: Final = re.compile(r"<[^<>]*>")


def parse_captions(text: str) -> tuple[Segment, ...]:
    """Return the parts of captions, in the order of the file. A file of another kind has no parts.

    Automatic captions roll: each cue repeats the line above. A line that repeats the last one is left out.
    """
    text = text.removeprefix("\ufeff").replace("\0", "")
    if text.lstrip().startswith("{"):
        return _parse_json_captions(text)
    segments: list[Segment] = []
    last_line = ""
    for start, end, lines in _iterate_cues(text):
        new_lines: list[str] = []
        for line in map(clean_line, lines):
            if line and line != last_line:
                new_lines.append(line)
                last_line = line
        if new_lines:
            segments.append((start, end, " ".join(new_lines)))
        if len(segments) >= MAX_SEGMENTS:
            break
    return tuple(segments)


def _iterate_cues(text: str) -> Iterator[tuple[float, float, list[str]]]:
    """Generate the times and lines of each cue. Everything before the times of a cue is left out."""
    times: tuple[float, float] | None = None
    lines: list[str] = []
    for line in text.splitlines():
        match = _CUE_TIMES.match(line)
        if match is None and (line.strip() or not lines):
            # A cue may begin with an empty line; after its text, an empty line ends it.
            lines += [line] if line.strip() else []
            continue
        if times is not None:
            yield *times, lines
        lines = []
        times = (_read_time(match.groups()[:4]), _read_time(match.groups()[4:])) if match else None
    if times is not None:
        yield *times, lines


def clean_line(line: str) -> str:
    """Return a line without tags, entities and control characters."""
    text = html.unescape(_TAG.sub("", line))
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _read_time(groups: tuple[str | Any, ...]) -> float:
    hours, minutes, seconds, fraction = groups
    milliseconds = int(fraction.ljust(3, "0"))
    return min(MAX_TIME_S, int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds) + milliseconds / 1000)


def _parse_json_captions(text: str) -> tuple[Segment, ...]:
    """Read the format json3: events with a start, a duration and pieces of text."""
    try:
        document: Any = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()
    events: list[Any] = _read_list(document, "events")
    segments: list[Segment] = []
    for event in events[:MAX_SEGMENTS]:
        pieces = _read_list(event, "segs")
        start, duration = (_read_milliseconds(event, name) for name in ("tStartMs", "dDurationMs"))
        line = clean_line("".join(_read_text(piece) for piece in pieces))
        if line and start is not None:
            segments.append((start / 1000, (start + (duration or 0)) / 1000, line))
    return tuple(segments)


def _read_list(value: Any, name: str) -> list[Any]:
    items: Any = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return [*cast("Sequence[Any]", items)] if isinstance(items, list) else []


def _read_text(value: Any) -> str:
    return str(cast("dict[str, Any]", value).get("utf8", "")) if isinstance(value, dict) else ""


def _read_milliseconds(value: Any, name: str) -> int | None:
    number: Any = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return number if type(number) is int and number >= 0 else None
