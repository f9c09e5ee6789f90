"""Responses that never end, never come, or are far too large, and files that grow when they are decoded."""

from __future__ import annotations

import asyncio
import struct
import zlib

from web_servers import RecordedRequest

MEGABYTE = 1024 * 1024


async def never_answer(_: RecordedRequest, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def send_gigabyte(_: RecordedRequest, writer: asyncio.StreamWriter) -> None:
    """Send a gigabyte as a download."""
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 1073741824\r\n\r\n"
    )
    for _megabyte in range(1024):
        writer.write(bytes(MEGABYTE))
        await writer.drain()


async def send_gigabyte_of_html(_: RecordedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<title>Endless</title>")
    for _megabyte in range(1024):
        writer.write(b"<p>" + b"x" * MEGABYTE)
        await writer.drain()


def make_gzip_bomb(beginning: bytes, megabytes: int) -> bytes:
    """Return a gzip file of a few hundred kilobytes that begins like this and has this size."""
    compressor = zlib.compressobj(9, wbits=31)
    portion = b" " * MEGABYTE
    parts = [compressor.compress(beginning), *(compressor.compress(portion) for _ in range(megabytes))]
    return b"".join([*parts, compressor.flush()])


def make_pixel_bomb(width: int, height: int) -> bytes:
    """Return a valid PNG of few bytes that has this many black pixels."""

    def make_chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((width + 7) // 8 + 1) * height, 9)
    return (
        b"\x89PNG\r\n\x1a\n"
        + make_chunk(b"IHDR", header)
        + make_chunk(b"IDAT", rows)
        + make_chunk(b"IEND", b"")
    )
