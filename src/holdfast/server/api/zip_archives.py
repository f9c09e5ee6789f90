"""Stream many files as one ZIP archive, with at most one chunk of one file in memory.

Every file is read once and compared with its stored hash. A file that cannot be read is left out, or ends
early if the store failed halfway. The last entry, `manifest.json`, lists the included files with sizes and
hashes, and the missing ones. When the client disconnects, reading stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import zipfile
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any, TypeAlias, cast

import msgspec
from starlette.responses import Response, StreamingResponse

from holdfast.errors import ConflictError, HoldfastError, StorageError
from holdfast.model import Artifact
from holdfast.storage import ObjectStore
from holdfast.storage.file_names import ZipEntryNames, format_content_disposition

MAX_FILE_READ_ATTEMPTS = 4  # per file; each attempt continues where the previous one failed
FIRST_READ_RETRY_DELAY_S = 0.2
_log = logging.getLogger("holdfast.server.api")


@dataclass(frozen=True)
class ZipEntry:
    """One file of a ZIP archive. `open(start)` opens its content at the byte `start`.

    >>> from contextlib import asynccontextmanager
    >>> from holdfast.server import ZipEntry
    >>> @asynccontextmanager
    ... async def open_readme(start: int):
    ...     async def chunks():
    ...         yield b"Read me"[start:]
    ...
    ...     yield chunks()
    >>> entry = ZipEntry("README.txt", open_readme, content_type="text/plain")
    """

    name: str
    open: Callable[[int], AbstractAsyncContextManager[AsyncIterator[bytes]]]
    size: int | None = None
    sha256: str | None = None
    content_type: str = "application/octet-stream"
    modified_at: datetime | None = None
    id: str | None = None


ZipEntries: TypeAlias = Iterable[ZipEntry] | AsyncIterable[ZipEntry]
ManifestSource: TypeAlias = Callable[[], Awaitable["dict[str, Any]"]]
"""Returns more fields for the manifest. Called after the last file. `failed_jobs` mark it as incomplete."""


def make_zip_entry(store: ObjectStore, file: Artifact, name: str | None = None) -> ZipEntry:
    """Create the ZIP entry of an artifact. `name` overrides the file name of the artifact.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import get_client, get_store, make_zip_entry, parse_path_uuid, zip_response
    >>> async def download_files(request: Request) -> Response:
    ...     files = await get_client(request).files.list(job=parse_path_uuid(request))
    ...     return zip_response([make_zip_entry(get_store(request), file) for file in files], "files.zip")
    """
    return ZipEntry(
        name=name or file.name,
        open=lambda start: store.open(file.key, start=start),
        size=file.size,
        sha256=file.sha256,
        content_type=file.content_type,
        modified_at=file.created_at,
        id=str(file.id),
    )


def zip_response(
    entries: ZipEntries, filename: str, manifest_source: ManifestSource | None = None
) -> Response:
    """Return a response that streams a ZIP archive of the entries as a download named `filename`.

    Entries with the same name get different names in the archive. The last entry is `manifest.json`;
    `manifest_source` is a coroutine function that returns more fields for it.

    >>> from holdfast.server import zip_response
    >>> response = zip_response([], "empty.zip")
    """
    headers = {"content-disposition": format_content_disposition(filename), "cache-control": "no-store"}
    content = stream_zip(entries, manifest_source)
    return StreamingResponse(content, media_type="application/zip", headers=headers)


async def stream_zip(
    entries: ZipEntries, manifest_source: ManifestSource | None = None
) -> AsyncGenerator[bytes]:
    """Yield the bytes of a ZIP archive with the entries and a manifest."""
    archive, names = _ZipWriter(), ZipEntryNames()
    try:
        async for entry in _iterate_entries(entries):
            async with contextlib.aclosing(archive.add_file(entry, names.reserve_name(entry.name))) as chunks:
                async for chunk in chunks:
                    yield chunk
        archive.add_manifest({} if manifest_source is None else await manifest_source())
        yield archive.take_written_bytes()
    finally:
        archive.close()
    yield archive.take_written_bytes()


async def _iterate_entries(entries: ZipEntries) -> AsyncIterator[ZipEntry]:
    if isinstance(entries, AsyncIterable):
        async for entry in entries:
            yield entry
    else:
        for entry in entries:
            yield entry


class _ZipOutputBuffer:
    """Output buffer of a ZIP archive. It cannot seek, so `zipfile` writes the sizes after each file."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []

    def write(self, data: bytes) -> int:
        self.chunks.append(bytes(data))
        return len(data)

    def flush(self) -> None: ...


class _ZipWriter:
    """Writer of a ZIP archive. Take the written bytes while the archive grows."""

    def __init__(self) -> None:
        self._output = _ZipOutputBuffer()
        self._zip = zipfile.ZipFile(cast("IO[bytes]", self._output), "w", allowZip64=True)
        self._files: list[dict[str, Any]] = []
        self._failures: list[dict[str, Any]] = []

    def take_written_bytes(self) -> bytes:
        chunks, self._output.chunks = self._output.chunks, []
        return b"".join(chunks)

    async def add_file(self, entry: ZipEntry, name: str) -> AsyncGenerator[bytes]:
        reader = _ZipEntryReader(entry)
        try:
            async with contextlib.aclosing(reader.read_chunks()) as chunks:
                first = await anext(chunks, None)
                compress = _is_compressible(entry.content_type)
                with self._zip.open(
                    _build_zip_info(entry, name, compress=compress), "w", force_zip64=True
                ) as file:
                    yield self.take_written_bytes()
                    chunk = first
                    while chunk is not None:
                        await _write_chunk(file, chunk, compress=compress)
                        if self._output.chunks:
                            yield self.take_written_bytes()
                        chunk = await anext(chunks, None)
            reader.verify_hash()
        except (HoldfastError, OSError) as error:
            _log.warning("a file could not be added to a ZIP archive: %s", error)
            self._record_failed_entry(entry, name, reader.size, error)
        else:
            facts = {"size": reader.size, "sha256": reader.sha256, "type": entry.content_type}
            self._files.append({"name": name, "id": entry.id, **facts})
        yield self.take_written_bytes()

    def _record_failed_entry(self, entry: ZipEntry, name: str, size: int, error: Exception) -> None:
        reason = "could not be read" if size == 0 else "could not be read completely"
        if isinstance(error, ConflictError):
            reason = "differs from the file that was saved"
        self._failures.append({"name": name, "id": entry.id, "error": reason, "included": size > 0})

    def add_manifest(self, fields: dict[str, Any]) -> None:
        complete = not self._failures and not fields.get("failed_jobs") and fields.get("ended", True)
        manifest = {"complete": complete, **fields, "files": self._files, "failures": self._failures}
        text = msgspec.json.format(msgspec.json.encode(manifest))
        self._zip.writestr(zipfile.ZipInfo("manifest.json", datetime.now(UTC).timetuple()[:6]), text)

    def close(self) -> None:
        self._zip.close()


class _ZipEntryReader:
    """Reader of the content of one ZIP entry, which also computes the SHA-256 hash."""

    def __init__(self, entry: ZipEntry) -> None:
        self._entry = entry
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    async def read_chunks(self) -> AsyncGenerator[bytes]:
        """Yield the content of the entry. After a store error, continue at the byte that failed."""
        for attempt in range(1, MAX_FILE_READ_ATTEMPTS + 1):
            try:
                async with self._entry.open(self.size) as chunks:
                    async for chunk in chunks:
                        self.size += len(chunk)
                        self._hash.update(chunk)
                        yield chunk
            except StorageError:
                if attempt == MAX_FILE_READ_ATTEMPTS:
                    raise
                await asyncio.sleep(FIRST_READ_RETRY_DELAY_S * 2 ** (attempt - 1))
            else:
                return

    def verify_hash(self) -> None:
        expected = self._entry.sha256
        if expected is not None and expected != self.sha256:
            raise ConflictError("The stored file differs from the file that was saved.")


def _build_zip_info(entry: ZipEntry, name: str, *, compress: bool) -> zipfile.ZipInfo:
    modified_at = (entry.modified_at or datetime.now(UTC)).astimezone(UTC)
    header = zipfile.ZipInfo(name, max(modified_at.timetuple()[:6], (1980, 1, 1, 0, 0, 0)))
    header.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    header.external_attr = 0o644 << 16
    return header


def _is_compressible(content_type: str) -> bool:
    """Return whether content of this type gets smaller by compression. Images, audio, PDF and ZIP do not."""
    media_type = content_type.partition(";")[0].strip().lower()
    return (
        media_type.startswith("text/")
        or media_type.endswith(("json", "xml"))
        or media_type == "application/x-ndjson"
    )


async def _write_chunk(file: IO[bytes], chunk: bytes, *, compress: bool) -> None:
    if compress:
        await asyncio.to_thread(file.write, chunk)
    else:
        file.write(chunk)
