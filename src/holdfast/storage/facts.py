"""What the first bytes of a file tell for free: the size of pictures, the length of uncompressed sound."""

from __future__ import annotations

import struct
from typing import Any

# Start-of-frame markers of JPEG; C4, C8 and CC among them are tables.
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


def facts_of(sample: bytes, size: int) -> dict[str, Any]:
    """{width, height}, {duration} or nothing. Never raises: a broken file is still a file."""
    try:
        if sample.startswith(b"\x89PNG\r\n\x1a\n"):
            return _picture(*struct.unpack(">II", sample[16:24]))
        if sample[:6] in {b"GIF87a", b"GIF89a"}:
            return _picture(*struct.unpack("<HH", sample[6:10]))
        if sample.startswith(b"\xff\xd8"):
            return _jpeg(sample)
        if sample[:4] == b"RIFF" and sample[8:12] == b"WAVE":
            return _wave(sample, size)
    except (struct.error, IndexError, ZeroDivisionError):
        pass
    return {}


def _picture(width: int, height: int) -> dict[str, Any]:
    return {"width": width, "height": height} if width and height else {}


def _jpeg(sample: bytes) -> dict[str, Any]:
    place = 2
    while sample[place] == 0xFF:
        marker = sample[place + 1]
        if marker == 0xFF:  # padding
            place += 1
            continue
        if marker in _FRAMES:
            height, width = struct.unpack(">HH", sample[place + 5 : place + 9])
            return _picture(width, height)
        place += 2 + struct.unpack(">H", sample[place + 2 : place + 4])[0]
    return {}


def _wave(sample: bytes, size: int) -> dict[str, Any]:
    place, rate = 12, 0
    while place + 8 <= len(sample):
        name, length = sample[place : place + 4], struct.unpack("<I", sample[place + 4 : place + 8])[0]
        if name == b"fmt ":
            rate = struct.unpack("<I", sample[place + 16 : place + 20])[0]
        if name == b"data":
            return {"duration": round(min(length, size - place - 8) / rate, 3)}
        place += 8 + length + length % 2
    return {}
