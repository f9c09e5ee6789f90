"""Object stores on folders, S3, GCS, Azure and memory, all through the library obstore.

No other module imports obstore. Uploads are split into parts, and at most two parts are in memory at a time.
The library does not stop an upload when the task that awaits it is cancelled. Therefore `put` makes the
source of bytes fail, which ends the upload, and waits for that end: nothing is written after `put` has
raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import obstore
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

from holdfast import errors
from holdfast.storage import READ_CHUNK_BYTES, UPLOAD_PART_BYTES, StorageLocation, StoredObject

ObstoreStore = AzureStore | GCSStore | LocalStore | MemoryStore | S3Store

# A store that does not respond within these times counts as unavailable.
HTTP_CLIENT_OPTIONS = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=60)}
OBSTORE_RETRY_OPTIONS = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=4), "base": 2},
}
MAX_CONCURRENT_UPLOAD_PARTS = 2
MAX_KEYS_PER_DELETE = 1000
OBJECTS_PER_LIST_PAGE = 1000
MAX_ERROR_TEXT_CHARS = 300
_DISK_FULL_CODES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ACCESS_DENIED_CODES = {errno.EACCES, errno.EPERM, errno.EROFS}
# Texts of the library also contain durations, such as "in 308.923µs".
_REFUSING_HTTP_STATUS = re.compile(r"(?<![.\w])(30[1278]|40[0135])(?!\.\d|\w)")


class ObstoreBackend:
    """An `ObjectStore` on one of the library's stores."""

    def __init__(self, store: ObstoreStore, root: Path | None = None) -> None:
        self._store = store
        self._root = root  # only for a local folder
        self.can_sign_urls = not isinstance(store, LocalStore | MemoryStore)

    @classmethod
    def from_location(cls, location: StorageLocation) -> ObstoreBackend:
        with translate_store_errors(location.scheme):
            if location.scheme == "memory":
                return cls(MemoryStore())
            if location.scheme == "file":
                root = Path(location.prefix)
                return cls(LocalStore(root, mkdir=True), root)
            return cls(_open_remote_store(location))

    async def put(
        self,
        key: str,
        content: AsyncIterable[bytes],
        *,
        content_type: str = "application/octet-stream",
        disposition: str | None = None,
    ) -> int:
        source = _UploadSource(content)
        first_part = await source.read_first_part()
        headers = {"Content-Type": content_type, "Content-Disposition": disposition}
        attributes = {name: value for name, value in headers.items() if value}
        upload = obstore.put_async(
            self._store,
            key,
            first_part if source.exhausted else source,
            attributes=cast("Any", attributes) if self.can_sign_urls else None,
            use_multipart=not source.exhausted,
            chunk_size=UPLOAD_PART_BYTES,
            max_concurrency=MAX_CONCURRENT_UPLOAD_PARTS,
        )
        try:
            with translate_store_errors(key):
                await _await_upload(asyncio.ensure_future(upload), source)
        except (errors.StorageError, errors.NotFoundError) as error:
            if source.error is not None:
                raise source.error from None
            # NotFoundError has two causes: the bucket does not exist, or the library repeated the request
            # that completes the upload because its response was lost. The size check below tells them apart.
            if not isinstance(error, errors.NotFoundError):
                raise
        await self._check_stored_size(key, source.byte_count)
        return source.byte_count

    async def _check_stored_size(self, key: str, byte_count: int) -> None:
        stored = await self.find(key)
        if stored is None or stored.size != byte_count:
            raise errors.StorageUnavailableError(
                f"The store has {stored.size if stored else 0} of the {byte_count} bytes that were uploaded.",
                fix="Check that the bucket in storage_url exists, then try again.",
            )

    @asynccontextmanager
    async def open(
        self, key: str, *, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        if end is not None and end <= start:
            yield _yield_no_chunks()
            return
        byte_range: Any = {"offset": start} if end is None else (start, end)
        with translate_store_errors(key):
            result = await obstore.get_async(
                self._store, key, options={"range": byte_range} if start or end is not None else None
            )
            if result.range[0] != start:
                raise errors.StorageError(f"The store ignored the requested byte range of object {key}.")
        stream = _split_chunks(result.stream(min_chunk_size=READ_CHUNK_BYTES), key)
        async with contextlib.aclosing(stream):
            yield stream

    async def find(self, key: str) -> StoredObject | None:
        try:
            with translate_store_errors(key):
                meta = await obstore.head_async(self._store, key)
        except errors.NotFoundError:
            return None
        return StoredObject(meta["path"], meta["size"], meta["last_modified"])

    async def delete(self, keys: Sequence[str]) -> None:
        if self._root is not None:
            with translate_store_errors("files"):
                await asyncio.to_thread(_delete_local_files, self._root, list(keys))
            return
        for start in range(0, len(keys), MAX_KEYS_PER_DELETE):
            await self._delete_remote(list(keys[start : start + MAX_KEYS_PER_DELETE]))

    async def _delete_remote(self, keys: list[str]) -> None:
        try:
            with translate_store_errors("files"):
                await obstore.delete_async(self._store, keys)
        except errors.NotFoundError:
            if len(keys) > 1:
                for key in keys:
                    await self._delete_remote([key])

    async def list(self, prefix: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        with translate_store_errors(prefix):
            pages: Any = obstore.list(self._store, prefix or None, chunk_size=OBJECTS_PER_LIST_PAGE)  # pyright: ignore[reportUnknownMemberType]
            async for page in pages:
                yield [StoredObject(meta["path"], meta["size"], meta["last_modified"]) for meta in page]

    async def sign_url(self, key: str, expires_in: timedelta) -> str:
        if isinstance(self._store, LocalStore | MemoryStore):
            raise errors.RefusedError("Folder and memory stores cannot sign URLs.")
        with translate_store_errors(key):
            return await obstore.sign_async(self._store, "GET", key, expires_in)


def _open_remote_store(location: StorageLocation) -> ObstoreStore:
    config: dict[str, Any] = dict(location.options)
    allow_http = config.get("endpoint", "").startswith("http://")
    options: dict[str, Any] = {
        "prefix": location.prefix or None,
        "client_options": {**HTTP_CLIENT_OPTIONS, "allow_http": allow_http},
        "retry_config": OBSTORE_RETRY_OPTIONS,
    }
    if location.scheme == "gs":
        if "endpoint" in config:
            config["base_url"] = config.pop("endpoint")
        return GCSStore(location.bucket, config=cast("Any", config), **options)
    if location.scheme == "az":
        return AzureStore(location.bucket, config=cast("Any", config), **options)
    return S3Store(location.bucket, config=cast("Any", config), **options)


class _UploadSource:
    """The source of the bytes of an upload. Setting `cancelled` makes the next read fail."""

    def __init__(self, content: AsyncIterable[bytes]) -> None:
        self._content = aiter(content)
        self._buffered: list[bytes] = []
        self.byte_count = 0
        self.exhausted = False
        self.cancelled = False
        self.error: BaseException | None = None

    async def read_first_part(self) -> bytes:
        """Return the whole content and set `exhausted` if it fits into one part; otherwise return b""."""
        size = 0
        async for chunk in self._content:
            self._buffered.append(chunk)
            size += len(chunk)
            if size > UPLOAD_PART_BYTES:
                return b""
        self.exhausted = True
        self.byte_count = size
        return b"".join(self._buffered)

    def __aiter__(self) -> _UploadSource:
        return self

    async def __anext__(self) -> bytes:
        if self.cancelled:
            raise InterruptedError("the upload was cancelled")
        try:
            chunk = self._buffered.pop(0) if self._buffered else await anext(self._content)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            self.error = error  # the caller's own error, which `put` raises unchanged
            raise InterruptedError("the source failed") from error
        self.byte_count += len(chunk)
        return chunk


async def _await_upload(upload: asyncio.Future[Any], source: _UploadSource) -> None:
    try:
        await asyncio.shield(upload)
    except asyncio.CancelledError:
        source.cancelled = True
        await asyncio.wait({upload}, timeout=HTTP_CLIENT_OPTIONS["timeout"].total_seconds())
        if upload.done() and not upload.cancelled():
            upload.exception()  # retrieved, so that asyncio does not log it
        raise


async def _yield_no_chunks() -> AsyncIterator[bytes]:
    return
    yield b""


async def _split_chunks(stream: Any, key: str) -> AsyncGenerator[bytes]:
    with translate_store_errors(key):
        async for block in stream:
            for start in range(0, len(block), READ_CHUNK_BYTES):
                yield bytes(block[start : start + READ_CHUNK_BYTES])


def _delete_local_files(root: Path, keys: Sequence[str]) -> None:
    """Delete files, their interrupted uploads, and the folders that become empty."""
    for key in keys:
        path = root / key
        path.unlink(missing_ok=True)
        _delete_partial_uploads(path)
        for folder in path.parents:
            if folder == root:
                break
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                break


def _delete_partial_uploads(path: Path) -> None:
    """Delete the files of interrupted uploads beside `path`: `name#1`, `name#2`, ...

    The library writes an upload to such a file and renames it at the end; a killed process leaves it behind.
    """
    number = 1
    while (part := path.with_name(f"{path.name}#{number}")).exists():
        part.unlink(missing_ok=True)
        number += 1


@contextmanager
def translate_store_errors(key: str) -> Generator[None]:
    """Convert errors of obstore inside the block to exceptions of `holdfast.errors`."""
    try:
        yield
    except FileNotFoundError:
        raise errors.NotFoundError(f"The object {key} does not exist in the store.") from None
    except (PermissionError, PermissionDeniedError, UnauthenticatedError) as error:
        raise _build_permission_error(error) from error
    except (InvalidPathError, ValueError) as error:
        raise errors.InvalidError(f"{key!r} is not a valid storage key.", field="key") from error
    except UnknownConfigurationKeyError as error:
        raise errors.SettingsError(
            f"storage_url has an unknown option: {_format_library_error(error)}.", field="storage_url"
        ) from error
    except (BaseError, OSError) as error:
        raise _build_storage_error(error) from error


def _build_storage_error(error: BaseException) -> errors.StorageError:
    text = _format_library_error(error)
    os_error = re.search(r"\(os error (\d+)\)", str(error))
    code = getattr(error, "errno", None) or (int(os_error[1]) if os_error else 0)
    if code in _DISK_FULL_CODES:
        return errors.StorageFullError(
            f"The store has no space left: {os.strerror(code)}.",
            fix="Free disk space, or delete expired files with `holdfast file sweep`.",
        )
    if code in _ACCESS_DENIED_CODES or _REFUSING_HTTP_STATUS.search(text):
        return _build_permission_error(error)
    return errors.StorageUnavailableError(
        f"The file store cannot be reached: {text}.",
        fix="Check storage_url and that the store is running, then try again.",
    )


def _build_permission_error(error: BaseException) -> errors.StoragePermissionError:
    return errors.StoragePermissionError(
        f"The file store refused access: {_format_library_error(error)}.",
        fix="Check the key, the secret, the region and the bucket in storage_url.",
    )


def _format_library_error(error: BaseException) -> str:
    """Return the first line of an obstore error, without URLs because a URL may contain a signature."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    line = re.sub(r"https?://[^\s\"')]+", "the store", line)
    return line.strip().rstrip(".:")[:MAX_ERROR_TEXT_CHARS]
