"""The back ends, all through obstore: the only module that imports it.

Uploads are cut into parts, so that two of them are all that is ever in memory. The library does not stop an
upload whose awaiting task was cancelled: the source of bytes is told to end it, and the upload is waited for,
so that nothing is written after `put` has raised.
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
from holdfast.storage import CHUNK_BYTES, PART_BYTES, Place, Stored

AnyStore = AzureStore | GCSStore | LocalStore | MemoryStore | S3Store

# A store that answers nothing for so long is away.
CLIENT = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=60)}
RETRY = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=4), "base": 2},
}
UPLOADS_AT_ONCE = 2
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class ObjectStorage:
    def __init__(self, store: AnyStore, root: Path | None = None) -> None:
        self._store = store
        self._root = root  # of a local folder
        self.signs = not isinstance(store, LocalStore | MemoryStore)

    @classmethod
    def at(cls, place: Place) -> ObjectStorage:
        with translated(place.scheme):
            if place.scheme == "memory":
                return cls(MemoryStore())
            if place.scheme == "file":
                root = Path(place.prefix)
                return cls(LocalStore(root, mkdir=True), root)
            return cls(_remote(place))

    async def put(
        self,
        key: str,
        content: AsyncIterable[bytes],
        *,
        content_type: str = "application/octet-stream",
        disposition: str | None = None,
    ) -> int:
        source = _Source(content)
        first = await source.first()
        attributes = {"Content-Type": content_type, "Content-Disposition": disposition}
        upload = obstore.put_async(
            self._store,
            key,
            first if source.ended else source,
            attributes=cast("Any", {n: v for n, v in attributes.items() if v}) if self.signs else None,
            use_multipart=not source.ended,
            chunk_size=PART_BYTES,
            max_concurrency=UPLOADS_AT_ONCE,
        )
        try:
            with translated(key):
                await _finished(asyncio.ensure_future(upload), source)
        except (errors.StorageError, errors.NotFoundError) as problem:
            if source.problem is not None:
                raise source.problem from None
            # No such bucket; or the end of the upload was asked for twice, because its answer was lost.
            if not isinstance(problem, errors.NotFoundError):
                raise
        await self._compare(key, source.count)
        return source.count

    async def _compare(self, key: str, count: int) -> None:
        found = await self.find(key)
        if found is None or found.size != count:
            raise errors.StorageAwayError(
                f"The store has {found.size if found else 'nothing'} of the {count} bytes that were sent.",
                fix="Check that the bucket in storage_url exists.",
            )

    @asynccontextmanager
    async def open(
        self, key: str, *, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        if end is not None and end <= start:
            yield _nothing()
            return
        wanted: Any = {"offset": start} if end is None else (start, end)
        with translated(key):
            result = await obstore.get_async(
                self._store, key, options={"range": wanted} if start or end is not None else None
            )
            if result.range[0] != start:
                raise errors.StorageError(f"The store does not answer with a part of {key}.")
        stream = _pieces(result.stream(min_chunk_size=CHUNK_BYTES), key)
        async with contextlib.aclosing(stream):
            yield stream

    async def find(self, key: str) -> Stored | None:
        try:
            with translated(key):
                found = await obstore.head_async(self._store, key)
        except errors.NotFoundError:
            return None
        return Stored(found["path"], found["size"], found["last_modified"])

    async def delete(self, keys: Sequence[str]) -> None:
        if self._root is not None:
            with translated("files"):
                await asyncio.to_thread(_unlink, self._root, list(keys))
            return
        for begin in range(0, len(keys), 1000):
            await self._delete(list(keys[begin : begin + 1000]))

    async def _delete(self, keys: list[str]) -> None:
        try:
            with translated("files"):
                await obstore.delete_async(self._store, keys)
        except errors.NotFoundError:
            if len(keys) > 1:
                for key in keys:
                    await self._delete([key])

    async def list(self, prefix: str = "") -> AsyncIterator[Sequence[Stored]]:
        with translated(prefix):
            listing: Any = obstore.list(self._store, prefix or None, chunk_size=1000)  # pyright: ignore[reportUnknownMemberType]
            async for page in listing:
                yield [Stored(each["path"], each["size"], each["last_modified"]) for each in page]

    async def sign(self, key: str, expires: timedelta) -> str:
        if isinstance(self._store, LocalStore | MemoryStore):
            raise errors.RefusedError("This store makes no links of its own.")
        with translated(key):
            return await obstore.sign_async(self._store, "GET", key, expires)


def _remote(place: Place) -> AnyStore:
    options: dict[str, Any] = dict(place.options)
    plain = options.get("endpoint", "").startswith("http://")
    known: dict[str, Any] = {
        "prefix": place.prefix or None,
        "client_options": {**CLIENT, "allow_http": plain},
        "retry_config": RETRY,
    }
    if place.scheme == "gs":
        if "endpoint" in options:
            options["base_url"] = options.pop("endpoint")
        return GCSStore(place.bucket, config=cast("Any", options), **known)
    if place.scheme == "az":
        return AzureStore(place.bucket, config=cast("Any", options), **known)
    return S3Store(place.bucket, config=cast("Any", options), **known)


class _Source:
    """The bytes of an upload, counted; `stop` makes it end with an error, which ends the upload."""

    def __init__(self, content: AsyncIterable[bytes]) -> None:
        self._content = aiter(content)
        self._before: list[bytes] = []
        self.count = 0
        self.ended = False
        self.stopped = False
        self.problem: BaseException | None = None

    async def first(self) -> bytes:
        """As much as fits into one part; `ended` says whether that was all."""
        size = 0
        async for piece in self._content:
            self._before.append(piece)
            size += len(piece)
            if size > PART_BYTES:
                return b""
        self.ended = True
        self.count = size
        return b"".join(self._before)

    def __aiter__(self) -> _Source:
        return self

    async def __anext__(self) -> bytes:
        if self.stopped:
            raise InterruptedError("the upload was stopped")
        try:
            piece = self._before.pop(0) if self._before else await anext(self._content)
        except StopAsyncIteration:
            raise
        except BaseException as problem:
            self.problem = problem  # the caller's own; told as it is, not as the store's
            raise InterruptedError("the source failed") from problem
        self.count += len(piece)
        return piece


async def _finished(upload: asyncio.Future[Any], source: _Source) -> None:
    try:
        await asyncio.shield(upload)
    except asyncio.CancelledError:
        source.stopped = True
        await asyncio.wait({upload}, timeout=CLIENT["timeout"].total_seconds())
        if upload.done() and not upload.cancelled():
            upload.exception()  # seen
        raise


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def _pieces(stream: Any, key: str) -> AsyncGenerator[bytes]:
    with translated(key):
        async for piece in stream:
            for begin in range(0, len(piece), CHUNK_BYTES):
                yield bytes(piece[begin : begin + CHUNK_BYTES])


def _unlink(root: Path, keys: Sequence[str]) -> None:
    """Objects, what broken uploads left beside them, and folders that are empty now."""
    for key in keys:
        path = root / key
        path.unlink(missing_ok=True)
        _unlink_parts(path)
        for folder in path.parents:
            if folder == root:
                break
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                break


def _unlink_parts(path: Path) -> None:
    """An upload to a folder writes `name#1` and renames it at its end; a killed one leaves that behind."""
    number = 1
    while (part := path.with_name(f"{path.name}#{number}")).exists():
        part.unlink(missing_ok=True)
        number += 1


@contextmanager
def translated(what: str) -> Generator[None]:
    """Raise our exceptions instead of the library's; what it adds for its own developers is left out."""
    try:
        yield
    except FileNotFoundError:
        raise errors.NotFoundError(f"There is no object {what} in the store.") from None
    except (PermissionError, PermissionDeniedError, UnauthenticatedError) as problem:
        raise _refused(problem) from problem
    except (InvalidPathError, ValueError) as problem:
        raise errors.InvalidError(f"{what!r} is no key of a store.", field="key") from problem
    except UnknownConfigurationKeyError as problem:
        raise errors.SettingsError(
            f"storage_url has an unknown option: {_said(problem)}.", field="storage_url"
        ) from problem
    except (BaseError, OSError) as problem:
        raise _meaning(problem) from problem


def _meaning(problem: BaseException) -> errors.StorageError:
    said = _said(problem)
    number = re.search(r"\(os error (\d+)\)", str(problem))
    code = getattr(problem, "errno", None) or (int(number[1]) if number else 0)
    if code in _FULL:
        return errors.StorageFullError(
            f"The store has no space left: {os.strerror(code)}.", fix="Make room, or sweep expired files."
        )
    if code in {errno.EACCES, errno.EPERM, errno.EROFS} or re.search(r"\b(30[1278]|40[0135])\b", said):
        return _refused(problem)
    return errors.StorageAwayError(
        f"The store of files cannot be reached: {said}.",
        fix="Check storage_url, and that the store is up; then try again.",
    )


def _refused(problem: BaseException) -> errors.StorageRightsError:
    return errors.StorageRightsError(
        f"The store of files refused us: {_said(problem)}.",
        fix="Check the key, the secret, the region and the bucket of storage_url.",
    )


def _said(problem: BaseException) -> str:
    """The first line, without addresses: they may carry a signature."""
    line = (str(problem).splitlines() or [type(problem).__name__])[0]
    line = re.sub(r"https?://[^\s\"')]+", "the store", line)
    return line.strip().rstrip(".:")[:300]
