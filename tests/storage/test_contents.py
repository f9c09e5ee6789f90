"""What can be saved, and what is read from it on the way."""

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
from stores import settings_for, stream

from holdfast.errors import ConflictError, InvalidError, NotFoundError, QuotaError
from holdfast.storage import open_store
from holdfast.storage.contents import PIECE, Reader, upload
from holdfast.storage.facts import facts_of

CONTENT = os.urandom(2 * PIECE + 77)


async def drained(content: Any) -> tuple[bytes, Reader]:
    reader = Reader(content)
    return b"".join([piece async for piece in reader]), reader


async def test_every_kind_of_content(tmp_path: Path) -> None:
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
            (stream(CONTENT[:5], b"", CONTENT[5:]), None),
        ]
        for content, size in contents:
            found, reader = await drained(content)
            assert found == CONTENT
            assert (reader.count, reader.size) == (len(CONTENT), size)
            assert reader.sha256 == hashlib.sha256(CONTENT).hexdigest()


async def test_what_cannot_be_saved(tmp_path: Path) -> None:
    async def words() -> AsyncIterator[Any]:
        yield "text"

    for content in ("text", 5, None, ["a"], io.StringIO("text"), words(), tmp_path):
        with pytest.raises(InvalidError) as caught:
            await drained(content)
        assert caught.value.field == "content"
    with pytest.raises(NotFoundError):
        await drained(tmp_path / "missing")


@pytest.mark.parametrize("change", ["grows", "shrinks", "same size"])
async def test_a_file_that_changes_while_it_is_read(tmp_path: Path, change: str) -> None:
    path, store = tmp_path / "a", open_store(settings_for(tmp_path))
    path.write_bytes(CONTENT)
    os.utime(path, (1, 1))
    reader = Reader(path)
    pieces = aiter(reader)

    async def changing() -> AsyncIterator[bytes]:
        yield await anext(pieces)
        if change == "grows":
            with path.open("ab") as file:
                file.write(b"more")
        elif change == "shrinks":
            os.truncate(path, PIECE + 10)
        else:
            with path.open("r+b") as file:
                file.seek(2 * PIECE)
                file.write(b"other")
        async for piece in pieces:
            yield piece

    with pytest.raises(ConflictError, match="changed while it was read"):
        await store.put("k", changing())
    assert await store.find("k") is None


async def test_an_upload_stops_where_the_quota_ends(tmp_path: Path) -> None:
    store = open_store(settings_for(tmp_path))
    given = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal given
        while True:
            given += 1
            yield bytes(PIECE)

    reader = Reader(endless())
    reader.most = 20 * PIECE
    with pytest.raises(QuotaError):
        await upload(store, "k", reader, name="a", content_type="text/plain")
    assert given == 21
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_pictures_and_sound_tell_their_size() -> None:
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + b"\x08\x02\0\0\0"
    png += struct.pack(">I", zlib.crc32(png[12:]))
    gif = b"GIF89a" + struct.pack("<HH", 32, 16)
    jpeg = (
        b"\xff\xd8\xff\xe0\x00\x10JFIF\x00"
        + bytes(9)
        + b"\xff\xff\xc2\x00\x11\x08"
        + struct.pack(">HH", 90, 120)
    )
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(4 * 12_000))
    told = sound.getvalue()
    assert facts_of(png, 100) == {"width": 640, "height": 480}
    assert facts_of(gif, 100) == {"width": 32, "height": 16}
    assert facts_of(jpeg, 100) == {"width": 120, "height": 90}
    assert facts_of(told[:1000], len(told)) == {"duration": 1.5}
    for whole in (png, gif, jpeg, told[:60]):
        for cut in range(len(whole)):
            facts_of(whole[:cut], cut)  # a broken file is still a file
    assert facts_of(b"", 0) == facts_of(b"%PDF-1.7", 8) == {}
