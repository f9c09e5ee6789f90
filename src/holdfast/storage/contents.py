"""What is to be saved, whatever it is given as: bytes, a path, an open file, or an async iterator.

A reader turns it into pieces while it counts and hashes them, never holding more than one. It refuses a file
that changes while it is read, and stops when there is more than may be saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from holdfast.errors import ConflictError, InvalidError, NotFoundError, QuotaError, StorageError
from holdfast.model import Artifact
from holdfast.storage import Store
from holdfast.storage.facts import facts_of
from holdfast.storage.names import disposition

Content: TypeAlias = "bytes | bytearray | memoryview | Path | AsyncIterable[bytes] | BinaryIO"

PIECE = 1024 * 1024
SAMPLE = 64 * 1024  # of the beginning, for what can be read from it


class Reader:
    """Pieces of the content, once. `size` is known beforehand for bytes and files, else None."""

    def __init__(self, content: Content) -> None:
        if not isinstance(content, bytes | bytearray | memoryview | Path | AsyncIterable) and not hasattr(
            content, "read"
        ):
            raise InvalidError(
                f"Cannot save a value of type {type(content).__name__}.",
                fix="Give bytes, a pathlib.Path, a file opened with 'rb', or an async iterator of bytes.",
                field="content",
            )
        self._content = content
        self._hash = hashlib.sha256()
        self._sample = b""
        self.count = 0
        self.most: int | None = None
        self.size = _size(content)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    @property
    def facts(self) -> dict[str, Any]:
        return facts_of(self._sample, self.count)

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        async with contextlib.aclosing(_pieces(self._content)) as pieces:
            async for piece in pieces:
                self.count += len(piece)
                if self.most is not None and self.count > self.most:
                    raise QuotaError(
                        f"The quota of bytes is used up: {self.most} are left, and this file is larger.",
                        fix="Delete files that are not needed any more, or have the quota raised.",
                        field="quota",
                    )
                self._hash.update(piece)
                if len(self._sample) < SAMPLE:
                    self._sample += piece[: SAMPLE - len(self._sample)]
                yield piece


def _size(content: Content) -> int | None:
    if isinstance(content, bytes | bytearray):
        return len(content)
    if isinstance(content, memoryview):
        return content.nbytes
    if isinstance(content, Path):
        try:
            return content.stat().st_size if content.is_file() else None
        except OSError:
            return None
    return None


def _pieces(content: Content) -> AsyncGenerator[bytes]:
    if isinstance(content, bytes | bytearray | memoryview):
        return _of_bytes(memoryview(content).cast("B"))
    if isinstance(content, Path):
        return _of_path(content)
    if isinstance(content, AsyncIterable):
        return _of_iterator(content)
    return _of_file(content)


async def _of_bytes(view: memoryview) -> AsyncGenerator[bytes]:
    for begin in range(0, len(view), PIECE):
        yield bytes(view[begin : begin + PIECE])


async def _of_iterator(pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    async for piece in pieces:
        given: Any = piece
        if not isinstance(given, bytes | bytearray | memoryview):
            raise InvalidError(f"The iterator gave {type(given).__name__}, not bytes.", field="content")
        async for part in _of_bytes(memoryview(cast("bytes", given)).cast("B")):
            yield part


async def _of_path(path: Path) -> AsyncGenerator[bytes]:
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {path.name} to save.", field="content") from None
    except IsADirectoryError:
        raise InvalidError(f"{path.name} is a folder.", field="content") from None
    with file:
        before = _state(file)
        count = 0
        async for piece in _of_file(file):
            count += len(piece)
            yield piece
        if _state(file) != before or count != before[0]:
            raise ConflictError(
                f"The file {path.name} changed while it was read.", fix="Save it when it is complete."
            )


def _state(file: BinaryIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


async def _of_file(file: BinaryIO) -> AsyncGenerator[bytes]:
    if isinstance(file, io.TextIOBase):
        raise InvalidError("The file is open as text.", fix="Open it with 'rb'.", field="content")
    while True:
        piece: Any = await asyncio.to_thread(file.read, PIECE)
        if not isinstance(piece, bytes | bytearray):
            raise InvalidError(f"The file gave {type(piece).__name__}, not bytes.", field="content")
        if not piece:
            return
        yield bytes(piece)


async def upload(store: Store, key: str, reader: Reader, *, name: str, content_type: str) -> None:
    """Store what the reader gives. When it fails or is stopped, nothing is left but what the sweep finds."""
    try:
        await store.put(key, reader, content_type=content_type, disposition=disposition(name))
    except BaseException:
        await discard(store, key)
        raise


async def discard(store: Store, key: str) -> None:
    """Delete an object that nobody will see; the sweep does it if we cannot."""
    with contextlib.suppress(StorageError, TimeoutError):
        async with asyncio.timeout(5):
            await store.delete([key])


def merged(facts: Mapping[str, Any], meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """What was read from the bytes, unless the one who saves them says otherwise."""
    return {**facts, **(meta or {})}


class Checked:
    """A file being read. One that is not what was saved is an error, at its end."""

    def __init__(self, pieces: AsyncIterator[bytes], artifact: Artifact) -> None:
        self._pieces = pieces
        self._artifact = artifact

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        digest, count = hashlib.sha256(), 0
        async for piece in self._pieces:
            digest.update(piece)
            count += len(piece)
            yield piece
        if count != self._artifact.size or digest.hexdigest() != self._artifact.sha256:
            raise ConflictError(f"The stored file {self._artifact.name} is not what was saved.")

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self])
