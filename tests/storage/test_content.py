"""Content readers: accepted types of content, changing files, quotas, and detected metadata."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import wave
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from object_store_servers import make_storage_settings, stream_chunks

from holdfast.errors import ConflictError, InvalidError, NotFoundError, QuotaExceededError
from holdfast.storage import open_store
from holdfast.storage.content import CONTENT_CHUNK_BYTES, ContentReader, upload_content
from holdfast.storage.media_metadata import detect_media_metadata

CONTENT = os.urandom(2 * CONTENT_CHUNK_BYTES + 77)


async def read_content(content: Any) -> tuple[bytes, ContentReader]:
    reader = ContentReader(content)
    return b"".join([chunk async for chunk in reader]), reader


async def test_reads_every_type_of_content(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(CONTENT)
    with path.open("rb") as file:
        contents: list[tuple[Any, int | None]] = [
            (CONTENT, len(CONTENT)),
            (bytearray(CONTENT), len(CONTENT)),
            (memoryview(CONTENT), len(CONTENT)),
            (path, len(CONTENT)),
            (file, None),
            (io.BytesIO(CONTENT), None),
            (stream_chunks(CONTENT[:5], b"", CONTENT[5:]), None),
        ]
        for content, size in contents:
            chunks, reader = await read_content(content)
            assert chunks == CONTENT
            assert (reader.byte_count, reader.size) == (len(CONTENT), size)
            assert reader.sha256 == hashlib.sha256(CONTENT).hexdigest()


async def test_refuses_content_that_is_not_bytes(tmp_path: Path) -> None:
    async def text_iterator() -> AsyncIterator[Any]:
        yield "text"

    for content in ("text", 5, None, ["a"], io.StringIO("text"), text_iterator(), tmp_path):
        with pytest.raises(InvalidError) as caught:
            await read_content(content)
        assert caught.value.field == "content"
    with pytest.raises(NotFoundError):
        await read_content(tmp_path / "missing")


@pytest.mark.parametrize("change", ["grows", "shrinks", "same size"])
async def test_refuses_a_file_that_changes_while_it_is_read(tmp_path: Path, change: str) -> None:
    path, store = tmp_path / "a", open_store(make_storage_settings(tmp_path))
    path.write_bytes(CONTENT)
    os.utime(path, (1, 1))
    reader = ContentReader(path)
    chunks = aiter(reader)

    async def change_file_after_first_chunk() -> AsyncIterator[bytes]:
        yield await anext(chunks)
        if change == "grows":
            with path.open("ab") as file:
                file.write(b"more")
        elif change == "shrinks":
            os.truncate(path, CONTENT_CHUNK_BYTES + 10)
        else:
            with path.open("r+b") as file:
                file.seek(2 * CONTENT_CHUNK_BYTES)
                file.write(b"other")
        async for chunk in chunks:
            yield chunk

    with pytest.raises(ConflictError, match="changed while it was read"):
        await store.put("k", change_file_after_first_chunk())
    assert await store.find("k") is None


async def test_an_upload_stops_at_the_quota(tmp_path: Path) -> None:
    store = open_store(make_storage_settings(tmp_path))
    chunk_count = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal chunk_count
        while True:
            chunk_count += 1
            yield bytes(CONTENT_CHUNK_BYTES)

    reader = ContentReader(endless())
    reader.max_bytes = 20 * CONTENT_CHUNK_BYTES
    with pytest.raises(QuotaExceededError):
        await upload_content(store, "k", reader, name="a", content_type="text/plain")
    assert chunk_count == 21
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_detects_image_dimensions_and_audio_duration() -> None:
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + b"\x08\x02\0\0\0"
    png += struct.pack(">I", zlib.crc32(png[12:]))
    gif = b"GIF89a" + struct.pack("<HH", 32, 16)
    jpeg = (
        b"\xff\xd8\xff\xe0\x00\x10JFIF\x00"
        + bytes(9)
        + b"\xff\xff\xc2\x00\x11\x08"
        + struct.pack(">HH", 90, 120)
    )
    wav_file = io.BytesIO()
    with wave.open(wav_file, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(4 * 12_000))
    wav = wav_file.getvalue()
    assert detect_media_metadata(png, 100) == {"width": 640, "height": 480}
    assert detect_media_metadata(gif, 100) == {"width": 32, "height": 16}
    assert detect_media_metadata(jpeg, 100) == {"width": 120, "height": 90}
    assert detect_media_metadata(wav[:1000], len(wav)) == {"duration": 1.5}
    for content in (png, gif, jpeg, wav[:60]):
        for length in range(len(content)):
            detect_media_metadata(content[:length], length)  # a truncated file does not raise
    assert detect_media_metadata(b"", 0) == detect_media_metadata(b"%PDF-1.7", 8) == {}
