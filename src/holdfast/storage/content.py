"""Read the content of files to save, upload it, and verify stored content while reading it.

`ContentReader` yields the content in chunks while it counts and hashes them; it holds one chunk at a time. It
rejects a file that changes while it is read, and stops when the content exceeds the quota.
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

from holdfast.errors import ConflictError, InvalidError, NotFoundError, QuotaExceededError, StorageError
from holdfast.model import Artifact
from holdfast.storage import ObjectStore
from holdfast.storage.file_names import format_content_disposition
from holdfast.storage.media_metadata import detect_media_metadata

Content: TypeAlias = "bytes | bytearray | memoryview | Path | AsyncIterable[bytes] | BinaryIO"

CONTENT_CHUNK_BYTES = 1024 * 1024
MIN_BYTES_HASHED_IN_THREAD = 256 * 1024  # below, handing over costs as much as hashing
METADATA_SAMPLE_BYTES = 64 * 1024  # how much of the beginning is kept to detect metadata
DISCARD_OBJECT_TIMEOUT_S = 5


class ContentReader:
    """Reads content to save in chunks, once. `size` is None if it is not known in advance.

    Set `max_bytes` to make reading fail with QuotaExceededError when the content is larger. `byte_count`,
    `sha256` and `media_metadata` are complete after the last chunk.
    """

    def __init__(self, content: Content) -> None:
        if not isinstance(content, bytes | bytearray | memoryview | Path | AsyncIterable) and not hasattr(
            content, "read"
        ):
            raise InvalidError(
                f"Cannot save a value of type {type(content).__name__}.",
                fix="Pass bytes, a pathlib.Path, a file opened with 'rb', or an async iterator of bytes.",
                field="content",
            )
        self._content = content
        self._hash = hashlib.sha256()
        self._sample = b""
        self.byte_count = 0
        self.max_bytes: int | None = None
        self.size = _find_content_size(content)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    @property
    def media_metadata(self) -> dict[str, Any]:
        """Width and height of an image, or duration of audio, if the first bytes contain them."""
        return detect_media_metadata(self._sample, self.byte_count)

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        hashing: asyncio.Future[None] | None = None
        async with contextlib.aclosing(_read_chunks(self._content)) as chunks:
            async for chunk in chunks:
                self.byte_count += len(chunk)
                if self.max_bytes is not None and self.byte_count > self.max_bytes:
                    raise QuotaExceededError(
                        f"The file is larger than the {self.max_bytes} bytes left in the storage quota.",
                        fix="Delete files that are no longer needed, or ask for a higher quota.",
                        field="quota",
                    )
                if hashing is not None:
                    await hashing
                hashing = self._hash_chunk(chunk)
                if len(self._sample) < METADATA_SAMPLE_BYTES:
                    self._sample += chunk[: METADATA_SAMPLE_BYTES - len(self._sample)]
                yield chunk
        if hashing is not None:
            await hashing

    def _hash_chunk(self, chunk: bytes) -> asyncio.Future[None] | None:
        """Add a chunk to the hash. A large one is hashed in a thread while the next one is read."""
        if len(chunk) < MIN_BYTES_HASHED_IN_THREAD:
            self._hash.update(chunk)
            return None
        return asyncio.get_running_loop().run_in_executor(None, self._hash.update, chunk)


def _find_content_size(content: Content) -> int | None:
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


def _read_chunks(content: Content) -> AsyncGenerator[bytes]:
    if isinstance(content, bytes | bytearray | memoryview):
        return _read_bytes(memoryview(content).cast("B"))
    if isinstance(content, Path):
        return _read_path(content)
    if isinstance(content, AsyncIterable):
        return _read_iterator(content)
    return _read_file(content)


async def _read_bytes(view: memoryview) -> AsyncGenerator[bytes]:
    for start in range(0, len(view), CONTENT_CHUNK_BYTES):
        yield bytes(view[start : start + CONTENT_CHUNK_BYTES])


async def _read_iterator(items: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    async for item in items:
        value: Any = item  # users may yield anything, whatever the annotation says
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidError(f"The iterator yielded {type(value).__name__}, not bytes.", field="content")
        async for chunk in _read_bytes(memoryview(cast("bytes", value)).cast("B")):
            yield chunk


async def _read_path(path: Path) -> AsyncGenerator[bytes]:
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except FileNotFoundError:
        raise NotFoundError(f"File {path.name} does not exist.", field="content") from None
    except IsADirectoryError:
        raise InvalidError(f"{path.name} is a folder, not a file.", field="content") from None
    with file:
        before = _read_file_version(file)
        byte_count = 0
        async for chunk in _read_file(file):
            byte_count += len(chunk)
            yield chunk
        if _read_file_version(file) != before or byte_count != before[0]:
            raise ConflictError(
                f"The file {path.name} changed while it was read.",
                fix="Save the file after it is written completely.",
            )


def _read_file_version(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


async def _read_file(file: BinaryIO) -> AsyncGenerator[bytes]:
    if isinstance(file, io.TextIOBase):
        raise InvalidError(
            "The file must be open in binary mode, not in text mode.",
            fix="Open it with 'rb'.",
            field="content",
        )
    while True:
        chunk: Any = await asyncio.to_thread(file.read, CONTENT_CHUNK_BYTES)
        if not isinstance(chunk, bytes | bytearray):
            raise InvalidError(f"The file returned {type(chunk).__name__}, not bytes.", field="content")
        if not chunk:
            return
        yield bytes(chunk)


async def upload_content(
    store: ObjectStore, key: str, reader: ContentReader, *, name: str, content_type: str
) -> None:
    """Upload content under `key`. If the upload fails or is cancelled, delete the partial object."""
    try:
        disposition = format_content_disposition(name)
        await store.put(key, reader, content_type=content_type, disposition=disposition)
    except BaseException:
        await discard_object(store, key)
        raise


async def discard_object(store: ObjectStore, key: str) -> None:
    """Try to delete an orphaned object. If the deletion fails, the next sweep deletes the object."""
    with contextlib.suppress(StorageError, TimeoutError):
        async with asyncio.timeout(DISCARD_OBJECT_TIMEOUT_S):
            await store.delete([key])


def merge_file_metadata(detected: Mapping[str, Any], provided: Mapping[str, Any] | None) -> dict[str, Any]:
    """Combine metadata read from the content with metadata from the caller. The caller's values win."""
    return {**detected, **(provided or {})}


class VerifiedFileReader:
    """Reads a saved file. Raises ConflictError at the end if the content differs from the saved checksum."""

    def __init__(self, chunks: AsyncIterator[bytes], artifact: Artifact) -> None:
        self._chunks = chunks
        self._artifact = artifact

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        digest, byte_count = hashlib.sha256(), 0
        async for chunk in self._chunks:
            digest.update(chunk)
            byte_count += len(chunk)
            yield chunk
        if byte_count != self._artifact.size or digest.hexdigest() != self._artifact.sha256:
            raise ConflictError(
                f"The stored content of file {self._artifact.name} differs from what was saved: "
                "its size or SHA-256 does not match."
            )

    async def read(self) -> bytes:
        """Read the whole content into memory."""
        return b"".join([chunk async for chunk in self])
