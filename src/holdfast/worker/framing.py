"""Frames on the sockets between a worker, its heartbeat process and its child processes.

A frame is one letter that names its kind, the length of the body, and the body.
"""

from __future__ import annotations

import struct

FRAME_HEADER_STRUCT = struct.Struct("<cI")


def encode_frame(kind: bytes, body: bytes = b"") -> bytes:
    return FRAME_HEADER_STRUCT.pack(kind, len(body)) + body


class FrameDecoder:
    """Splits received bytes into complete frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> list[tuple[bytes, bytes]]:
        """Add received bytes. Return the kind and body of every frame that is complete now."""
        self._buffer += received
        frames: list[tuple[bytes, bytes]] = []
        start = 0
        while len(self._buffer) - start >= FRAME_HEADER_STRUCT.size:
            kind, length = FRAME_HEADER_STRUCT.unpack_from(self._buffer, start)
            end = start + FRAME_HEADER_STRUCT.size + length
            if len(self._buffer) < end:
                break
            frames.append((kind, bytes(self._buffer[start + FRAME_HEADER_STRUCT.size : end])))
            start = end
        del self._buffer[:start]
        return frames
