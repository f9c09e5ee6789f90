"""Download a media file over HTTP into the object store, without a temporary file.

The body goes from the connection through a multipart upload into the store, a few megabytes at a time. If the
connection breaks, the download goes on with a range request. If that does not work either, what has arrived
is stored as a part (a step of the task, which survives the attempt), and the next attempt asks only for the
rest. A file in several parts is joined in the store at the end. All parts and the joined file have the same
kind and name: when the task succeeds, the newest replaces the others, so exactly one file remains.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from holdfast import Artifact, Ctx
from holdfast.egress import EgressClient, EgressError, EgressStream
from holdfast.errors import QuotaExceededError, StorageError
from holdfast.systems.media.contracts import MediaError, ProgressCallback, WorkProgress
from holdfast.systems.media.download_errors import (
    build_quota_error,
    check_response_status,
    translate_egress_error,
    translate_storage_error,
)
from holdfast.systems.media.media_types import (
    SNIFFED_BYTES,
    choose_file_name,
    classify_source,
    get_source_name,
    sniff_content_type,
)

MEDIA_FILE_KIND: Final = "media"
MAX_REOPENINGS: Final = 5  # in a row without a new byte
REOPENING_DELAY_S: Final = 0.3
MIN_KEPT_BYTES: Final = 64 * 1024  # less is downloaded again
# Pieces of the connection are joined: hashing and storing cost less for fewer, larger chunks.
STORED_CHUNK_BYTES: Final = 512 * 1024
MAX_PARTS: Final = 20
_CONTENT_RANGE_UNKNOWN: Final = "*"


class StoredPart(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one step: a stored part of a file, or what the response was instead of a file.

    `start` is the first byte of the part. A part that is not `complete` is followed by another one.
    """

    source: Literal["media", "page"]
    file: Artifact | None = None
    start: int = 0
    complete: bool = False
    content_type: str = ""
    validator: str | None = None
    source_url: str = ""


@dataclass(frozen=True, kw_only=True)
class DownloadLimits:
    """How many bytes a file may have: the limit of a file, and what is left of the storage of the user."""

    max_file_bytes: int
    max_stored_bytes: int


@dataclass(frozen=True)
class DownloadedFile:
    """The stored file, its content type by its first bytes, and its URL after redirects."""

    file: Artifact
    content_type: str
    url: str


async def download_direct_media(
    ctx: Ctx[Any], web: EgressClient, url: str, limits: DownloadLimits, on_progress: ProgressCallback
) -> DownloadedFile | None:
    """Download a media file, or return None if the URL is a page or a playlist.

    Raise MediaError if the download failed. Parts that were stored before are used.
    """
    parts: list[StoredPart] = []
    for number in range(1, MAX_PARTS + 1):
        fetcher = _PartFetcher(ctx, web, url, limits, on_progress, parts)
        part = await ctx.step(f"part {number}", fetcher.fetch_part)
        if part.source == "page":
            return None
        # A server that ignores the range sends the file from its beginning.
        parts = [*parts, part] if part.start else [part]
        if part.complete:
            return await _join_parts(ctx, parts)
        if fetcher.error is not None:
            raise fetcher.error
    raise MediaError("unsupported", "The connection to the website broke too often.")


async def _join_parts(ctx: Ctx[Any], parts: list[StoredPart]) -> DownloadedFile:
    first, files = parts[0], [part.file for part in parts if part.file is not None]
    file = files[0]
    if len(files) > 1:

        async def read_parts() -> AsyncGenerator[bytes]:
            for stored in files:
                async with ctx.open(stored) as chunks:
                    async for chunk in chunks:
                        yield chunk

        try:
            file = await ctx.save(file.name, read_parts(), first.content_type, kind=MEDIA_FILE_KIND)
        except (StorageError, QuotaExceededError) as error:
            raise translate_storage_error(error) from error
    return DownloadedFile(file, first.content_type, first.source_url)


class _PartFetcher:
    """Fetches one part: from the end of the stored parts to the end of the file, or to a broken connection.

    `error` is why the part is not complete, if it is not.
    """

    def __init__(
        self,
        ctx: Ctx[Any],
        web: EgressClient,
        url: str,
        limits: DownloadLimits,
        on_progress: ProgressCallback,
        parts: list[StoredPart],
    ) -> None:
        self._ctx, self._web, self._url = ctx, web, url
        self._limits, self._on_progress = limits, on_progress
        self._first = parts[0] if parts else None
        self._start = sum(part.file.size for part in parts if part.file is not None)
        self._position = self._start
        self._total: int | None = None
        self._validator = self._first.validator if self._first else None
        self._source_url = url
        self._ended = False
        self.error: MediaError | None = None

    async def fetch_part(self) -> StoredPart:
        async with AsyncExitStack() as stack:
            try:
                return await self._fetch(stack)
            except EgressError as error:
                raise translate_egress_error(error) from error
            except (StorageError, QuotaExceededError) as error:
                raise translate_storage_error(error) from error

    async def _fetch(self, stack: AsyncExitStack) -> StoredPart:
        body = await self._open(stack)
        if body is None:  # the stored parts are the whole file
            return StoredPart(source="media", start=self._start, complete=True)
        head = await self._read_head(body)
        content_type = self._first.content_type if self._start and self._first else ""
        if not self._start:
            if classify_source(self._declared_type, head) == "page":
                return StoredPart(source="page")
            content_type = sniff_content_type(head) or ""
            if not content_type:
                raise MediaError("unsupported", "There is no video, sound or picture at this link.")
        name = self._choose_name(content_type)
        content = self._read_content(stack, body, head)
        file = await self._ctx.save(name, content, content_type, kind=MEDIA_FILE_KIND)
        return StoredPart(
            source="media",
            file=file,
            start=self._start,
            complete=self._ended,
            content_type=content_type,
            validator=self._validator,
            source_url=self._source_url,
        )

    def _choose_name(self, content_type: str) -> str:
        if self._first is not None and self._first.file is not None and self._start:
            return self._first.file.name
        return choose_file_name(self._source_name, content_type)

    async def _open(self, stack: AsyncExitStack) -> AsyncIterator[bytes] | None:
        """Open the body at the position. Return None if the file ends there."""
        headers = {"Accept-Encoding": "identity"}
        if self._position:
            headers["Range"] = f"bytes={self._position}-"
            if self._validator:
                headers["If-Range"] = self._validator
        response = await stack.enter_async_context(self._web.stream("GET", self._url, headers=headers))
        if response.status == 416 and self._position:
            if _parse_content_range(response)[1] == self._position:
                return None
            raise MediaError("network", "The file has changed while it was downloaded.")
        check_response_status(response.status, response.headers.get("retry-after"))
        self._read_response_facts(response)
        return response.iterate_bytes()

    def _read_response_facts(self, response: EgressStream) -> None:
        start, total = 0, _parse_content_length(response)
        if response.status == 206:
            start, total = _parse_content_range(response)
            if start != self._position:
                raise MediaError("network", "The website sent another part of the file than we asked for.")
        elif self._position:
            if self._position != self._start:
                # The upload of this part has begun, so its beginning cannot be replaced.
                raise MediaError("network", "The connection to the website broke.")
            self._position = self._start = 0
        self._total = total
        self._source_url = response.url
        self._declared_type = response.content_type
        self._source_name = get_source_name(response.url, response.headers.get("content-disposition", ""))
        etag = response.headers.get("etag", "")
        self._validator = (
            etag if etag and not etag.startswith("W/") else response.headers.get("last-modified")
        )
        self._accepts_ranges = (
            response.status == 206 or response.headers.get("accept-ranges", "").lower() == "bytes"
        )
        self._check_size(total or 0)

    def _check_size(self, byte_count: int) -> None:
        if byte_count > self._limits.max_file_bytes:
            size = self._limits.max_file_bytes / 1024**2
            raise MediaError("too_large", f"The file is larger than {size:,.0f} MB.")
        if byte_count > self._limits.max_stored_bytes:
            raise build_quota_error()

    async def _read_head(self, body: AsyncIterator[bytes]) -> bytes:
        head = b""
        while len(head) < SNIFFED_BYTES and (piece := await anext(body, None)) is not None:
            head += piece
        return head

    async def _read_content(
        self, stack: AsyncExitStack, body: AsyncIterator[bytes], head: bytes
    ) -> AsyncGenerator[bytes]:
        """Yield the content of the part. Open the body again where the connection broke."""
        pieces, size = [head], len(head)
        self._count(head)
        failures = 0
        while True:
            try:
                async for piece in body:
                    failures = 0
                    self._count(piece)
                    pieces.append(piece)
                    size += len(piece)
                    if size >= STORED_CHUNK_BYTES:
                        chunk, pieces, size = b"".join(pieces), [], 0
                        yield chunk
            except EgressError as error:
                failures += 1
                broken = translate_egress_error(error)
                if not broken.retryable or not self._accepts_ranges:
                    raise broken from error
            else:
                self._ended = True
                break
            reopened = await self._reopen(stack, failures, broken)
            if reopened is None:
                break
            body = reopened
        if size:
            yield b"".join(pieces)

    async def _reopen(
        self, stack: AsyncExitStack, failures: int, broken: MediaError
    ) -> AsyncIterator[bytes] | None:
        """Open the body again after a break. Return None if the part ends here."""
        while failures < MAX_REOPENINGS:
            await stack.aclose()
            await asyncio.sleep(REOPENING_DELAY_S * 2**failures)
            try:
                body = await self._open(stack)
            except (EgressError, MediaError) as error:
                broken = translate_egress_error(error) if isinstance(error, EgressError) else error
                if not broken.retryable:
                    raise broken from error
                failures += 1
                if broken.kind == "rate_limited":
                    break
                continue
            self._ended = body is None
            return body
        if self._position - self._start < MIN_KEPT_BYTES:
            raise broken
        self.error = broken
        return None

    def _count(self, piece: bytes) -> None:
        self._position += len(piece)
        self._check_size(self._position)
        self._on_progress(WorkProgress(done=self._position, total=self._total))


def _parse_content_length(response: EgressStream) -> int | None:
    text = response.headers.get("content-length", "")
    return int(text) if text.isdigit() and len(text) < 19 else None


def _parse_content_range(response: EgressStream) -> tuple[int, int | None]:
    """Return the first byte and the total of a `Content-Range` header: `bytes 5-9/10` is (5, 10)."""
    unit, _, rest = response.headers.get("content-range", "").strip().partition(" ")
    span, _, total = rest.partition("/")
    first = span.partition("-")[0]
    if unit.lower() != "bytes" or not (first.isdigit() or span == _CONTENT_RANGE_UNKNOWN):
        raise MediaError("network", "The website sent a range that is not valid.")
    start = int(first[:18]) if first.isdigit() else 0
    return start, int(total[:18]) if total.isdigit() else None
