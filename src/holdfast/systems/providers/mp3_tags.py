"""Write the ID3v2.3 tag of an MP3 file: title, album, artist, track, cover and chapters.

Players show these fields. The format is that of id3.org (ID3v2.3.0 and the addendum for chapters).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

UTF_16 = b"\x01"
LATIN_1 = b"\x00"
FRONT_COVER = b"\x03"
TOP_LEVEL_ORDERED = b"\x03"
UNKNOWN_OFFSET = 0xFFFFFFFF
MAX_TAG_TEXT_CHARS = 500


@dataclass(frozen=True, kw_only=True)
class Mp3Chapter:
    """A chapter in a recording: its title, and its start and end in seconds."""

    title: str
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Mp3Tags:
    """Fields of the tag of an MP3 file. `cover` is a PNG image."""

    title: str
    album: str
    artist: str
    track: int | None = None
    track_count: int | None = None
    cover: bytes | None = None
    chapters: Sequence[Mp3Chapter] = ()


def add_mp3_tags(mp3: bytes, tags: Mp3Tags) -> bytes:
    """Return the MP3 file with these tags. A tag that the file already has is replaced."""
    frames = [
        _text_frame("TIT2", tags.title),
        _text_frame("TALB", tags.album),
        _text_frame("TPE1", tags.artist),
    ]
    if tags.track is not None:
        frames.append(
            _text_frame("TRCK", f"{tags.track}/{tags.track_count}" if tags.track_count else str(tags.track))
        )
    if tags.cover is not None:
        frames.append(_frame("APIC", LATIN_1 + b"image/png\0" + FRONT_COVER + b"\0" + tags.cover))
    frames += _chapter_frames(tags.chapters)
    body = b"".join(frames)
    return b"ID3\x03\x00\x00" + _encode_tag_size(len(body)) + body + mp3[find_audio_offset(mp3) :]


def find_audio_offset(mp3: bytes) -> int:
    """Return the byte offset of the first audio frame, which follows the optional ID3 tag."""
    if mp3[:3] != b"ID3" or len(mp3) < 10:
        return 0
    a, b, c, d = mp3[6:10]
    return 10 + (a << 21 | b << 14 | c << 7 | d)


def _chapter_frames(chapters: Sequence[Mp3Chapter]) -> list[bytes]:
    if not chapters:
        return []
    ids = [b"chapter%d\0" % number for number in range(1, len(chapters) + 1)]
    contents = b"contents\0" + TOP_LEVEL_ORDERED + bytes([min(len(ids), 255)]) + b"".join(ids[:255])
    frames = [_frame("CTOC", contents)]
    for chapter_id, chapter in zip(ids, chapters, strict=True):
        start, end = round(chapter.start_s * 1000), round(chapter.end_s * 1000)
        times = struct.pack(">IIII", start, end, UNKNOWN_OFFSET, UNKNOWN_OFFSET)
        frames.append(_frame("CHAP", chapter_id + times + _text_frame("TIT2", chapter.title)))
    return frames


def _text_frame(name: str, text: str) -> bytes:
    return _frame(name, UTF_16 + text[:MAX_TAG_TEXT_CHARS].encode("utf-16", "replace"))


def _frame(name: str, body: bytes) -> bytes:
    return name.encode() + struct.pack(">I", len(body)) + b"\0\0" + body


def _encode_tag_size(size: int) -> bytes:
    """Encode the size of a tag in four bytes of seven bits each."""
    return bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0))
