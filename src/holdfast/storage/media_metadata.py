"""Metadata from the first bytes of a file: the dimensions of images, the duration of uncompressed audio."""

from __future__ import annotations

import struct
from typing import Any

# JPEG start-of-frame markers. C4, C8 and CC are in the same range but mark tables.
_JPEG_FRAME_MARKERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


def detect_media_metadata(sample: bytes, size: int) -> dict[str, Any]:
    """Return {width, height} of an image, {duration} of a WAV file in seconds, or {} for anything else.

    `sample` is the beginning of the file and `size` its total size in bytes. Broken files never raise: they
    can be saved like any other file.
    """
    try:
        if sample.startswith(b"\x89PNG\r\n\x1a\n"):
            return _build_dimensions(*struct.unpack(">II", sample[16:24]))
        if sample[:6] in {b"GIF87a", b"GIF89a"}:
            return _build_dimensions(*struct.unpack("<HH", sample[6:10]))
        if sample.startswith(b"\xff\xd8"):
            return _read_jpeg_dimensions(sample)
        if sample[:4] == b"RIFF" and sample[8:12] == b"WAVE":
            return _read_wave_duration(sample, size)
    except (struct.error, IndexError, ZeroDivisionError):
        pass
    return {}


def _build_dimensions(width: int, height: int) -> dict[str, Any]:
    return {"width": width, "height": height} if width and height else {}


def _read_jpeg_dimensions(sample: bytes) -> dict[str, Any]:
    position = 2
    while sample[position] == 0xFF:
        marker = sample[position + 1]
        if marker == 0xFF:  # padding
            position += 1
            continue
        if marker in _JPEG_FRAME_MARKERS:
            height, width = struct.unpack(">HH", sample[position + 5 : position + 9])
            return _build_dimensions(width, height)
        position += 2 + struct.unpack(">H", sample[position + 2 : position + 4])[0]
    return {}


def _read_wave_duration(sample: bytes, size: int) -> dict[str, Any]:
    position, bytes_per_second = 12, 0
    while position + 8 <= len(sample):
        chunk_id = sample[position : position + 4]
        length = struct.unpack("<I", sample[position + 4 : position + 8])[0]
        if chunk_id == b"fmt ":
            bytes_per_second = struct.unpack("<I", sample[position + 16 : position + 20])[0]
        if chunk_id == b"data":
            return {"duration": round(min(length, size - position - 8) / bytes_per_second, 3)}
        position += 8 + length + length % 2
    return {}
