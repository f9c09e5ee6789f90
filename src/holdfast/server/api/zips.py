"""Many files as one ZIP, written while it is sent: never more than one piece of one file is in memory.

Every file is read once and checked against what was saved. One that cannot be read is left out, or ends early
if it broke halfway; the last entry, `manifest.json`, says what is there, with sizes and hashes, and what is
not. A reader who goes away ends the reading.
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
from holdfast.storage import Store
from holdfast.storage.names import ArchiveNames, disposition

TRIES = 4  # to read one file on, from where it broke
_log = logging.getLogger("holdfast.server.api")


@dataclass(frozen=True)
class ZipEntry:
    """One file. `open(start)` gives its bytes from there on."""

    name: str
    open: Callable[[int], AbstractAsyncContextManager[AsyncIterator[bytes]]]
    size: int | None = None
    sha256: str | None = None
    content_type: str = "application/octet-stream"
    modified_at: datetime | None = None
    id: str | None = None


Entries: TypeAlias = Iterable[ZipEntry] | AsyncIterable[ZipEntry]
About: TypeAlias = Callable[[], Awaitable["dict[str, Any]"]]
"""What else the manifest says, asked for when the last file is in; `failed_jobs` make it incomplete."""


def entry_of(store: Store, file: Artifact, name: str | None = None) -> ZipEntry:
    return ZipEntry(
        name=name or file.name,
        open=lambda start: store.open(file.key, start=start),
        size=file.size,
        sha256=file.sha256,
        content_type=file.content_type,
        modified_at=file.created_at,
        id=str(file.id),
    )


def zip_response(entries: Entries, filename: str, about: About | None = None) -> Response:
    headers = {"content-disposition": disposition(filename), "cache-control": "no-store"}
    return StreamingResponse(zip_stream(entries, about), media_type="application/zip", headers=headers)


async def zip_stream(entries: Entries, about: About | None = None) -> AsyncGenerator[bytes]:
    archive, names = _Archive(), ArchiveNames()
    try:
        async for entry in _each(entries):
            async with contextlib.aclosing(archive.add(entry, names.take(entry.name))) as pieces:
                async for piece in pieces:
                    yield piece
        archive.add_manifest({} if about is None else await about())
        yield archive.taken()
    finally:
        archive.close()
    yield archive.taken()


async def _each(entries: Entries) -> AsyncIterator[ZipEntry]:
    if isinstance(entries, AsyncIterable):
        async for entry in entries:
            yield entry
    else:
        for entry in entries:
            yield entry


class _Sink:
    """Where the archive is written to: it cannot go back, so sizes follow the bytes of each file."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, octets: bytes) -> int:
        self.parts.append(bytes(octets))
        return len(octets)

    def flush(self) -> None: ...


class _Archive:
    def __init__(self) -> None:
        self._sink = _Sink()
        self._zip = zipfile.ZipFile(cast("IO[bytes]", self._sink), "w", allowZip64=True)
        self._files: list[dict[str, Any]] = []
        self._failures: list[dict[str, Any]] = []

    def taken(self) -> bytes:
        parts, self._sink.parts = self._sink.parts, []
        return b"".join(parts)

    async def add(self, entry: ZipEntry, name: str) -> AsyncGenerator[bytes]:
        reading = _Reading(entry)
        try:
            async with contextlib.aclosing(reading.pieces()) as pieces:
                first = await anext(pieces, None)
                packed = _packs(entry.content_type)
                with self._zip.open(_header(entry, name, packed=packed), "w", force_zip64=True) as file:
                    yield self.taken()
                    piece = first
                    while piece is not None:
                        await _write(file, piece, packed=packed)
                        if self._sink.parts:
                            yield self.taken()
                        piece = await anext(pieces, None)
            reading.check()
        except (HoldfastError, OSError) as problem:
            _log.warning("a file of an archive could not be read: %s", problem)
            told = "could not be read" if reading.count == 0 else "could not be read to its end"
            told = "is not what was saved" if isinstance(problem, ConflictError) else told
            included = reading.count > 0
            self._failures.append({"name": name, "id": entry.id, "error": told, "included": included})
        else:
            about = {"size": reading.count, "sha256": reading.sha256, "type": entry.content_type}
            self._files.append({"name": name, "id": entry.id, **about})
        yield self.taken()

    def add_manifest(self, about: dict[str, Any]) -> None:
        complete = not self._failures and not about.get("failed_jobs") and about.get("ended", True)
        manifest = {"complete": complete, **about, "files": self._files, "failures": self._failures}
        text = msgspec.json.format(msgspec.json.encode(manifest))
        self._zip.writestr(zipfile.ZipInfo("manifest.json", datetime.now(UTC).timetuple()[:6]), text)

    def close(self) -> None:
        self._zip.close()


class _Reading:
    def __init__(self, entry: ZipEntry) -> None:
        self._entry = entry
        self._hash = hashlib.sha256()
        self.count = 0

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    async def pieces(self) -> AsyncGenerator[bytes]:
        """The bytes; where the store breaks off, it is asked again from there."""
        for attempt in range(1, TRIES + 1):
            try:
                async with self._entry.open(self.count) as pieces:
                    async for piece in pieces:
                        self.count += len(piece)
                        self._hash.update(piece)
                        yield piece
            except StorageError:
                if attempt == TRIES:
                    raise
                await asyncio.sleep(0.1 * 2**attempt)
            else:
                return

    def check(self) -> None:
        wanted = self._entry.sha256
        if wanted is not None and wanted != self.sha256:
            raise ConflictError("The stored file is not what was saved.")


def _header(entry: ZipEntry, name: str, *, packed: bool) -> zipfile.ZipInfo:
    at = (entry.modified_at or datetime.now(UTC)).astimezone(UTC)
    header = zipfile.ZipInfo(name, max(at.timetuple()[:6], (1980, 1, 1, 0, 0, 0)))
    header.compress_type = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    header.external_attr = 0o644 << 16
    return header


def _packs(content_type: str) -> bool:
    """Whether packing is worth its time; pictures, sound, PDF and archives are packed already."""
    plain = content_type.partition(";")[0].strip().lower()
    return plain.startswith("text/") or plain.endswith(("json", "xml")) or plain == "application/x-ndjson"


async def _write(file: IO[bytes], piece: bytes, *, packed: bool) -> None:
    if packed:
        await asyncio.to_thread(file.write, piece)
    else:
        file.write(piece)
